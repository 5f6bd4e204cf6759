// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC11), section 3.3, and what is drawn from it. A number is a function of (key,
// counter), so it does not depend on who draws it or when.
//
// The key is the run's seed. The 128 bits of the counter say what the number is for:
//   bits 0-63    position: which block of the sequence; it counts up
//   bits 64-119  sequence
//   bits 120-127 use, see RandomUse, so that two uses never draw the same block
// For kNormal and kUniform the sequence is the caller's `stream` (initial weights: the parameter's
// number). For kDropout the sequence is the global sample number and the position is
//   bits 0-43    (element in the sample) / 4: a block holds the words of four elements
//   bits 44-47   site
//   bits 48-63   layer
#ifndef ZEROBOX_OPS_PHILOX_H_
#define ZEROBOX_OPS_PHILOX_H_

#include <array>
#include <cstdint>

namespace zerobox {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox(PhiloxBlock counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// 0 is the order of samples (data/permutation.cpp, whose counter has an epoch in its upper half).
// Others may take numbers from 16 on for draws of their own.
enum class RandomUse : uint8_t { kNormal = 1, kUniform = 2, kDropout = 3 };

// `sequence` < 2^56.
constexpr PhiloxBlock RandomCounter(RandomUse use, uint64_t sequence, uint64_t position) {
  const uint64_t high = (sequence & 0x00FF'FFFF'FFFF'FFFF) | uint64_t{static_cast<uint8_t>(use)}
                                                                 << 56;
  return {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
          static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
}

// 53 bits as a double in [0, 1), and in (0, 1].
constexpr double ToUniform(uint32_t low, uint32_t high) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}
constexpr double ToUniformAboveZero(uint32_t low, uint32_t high) {
  return static_cast<double>(((uint64_t{high} << 32 | low) >> 11) + 1) * 0x1p-53;
}

// Number `index` of the sequence (seed, stream): uniform in [0, 1).
constexpr double UniformAt(uint64_t seed, uint64_t stream, uint64_t index) {
  const PhiloxBlock words = Philox(RandomCounter(RandomUse::kUniform, stream, index / 2), seed);
  return index % 2 == 0 ? ToUniform(words[0], words[1]) : ToUniform(words[2], words[3]);
}

// Number `index` of the sequence (seed, stream): normal with mean 0 and deviation 1, by Box and
// Muller in double precision. NormalPairAt gives numbers 2 * pair and 2 * pair + 1.
double NormalAt(uint64_t seed, uint64_t stream, uint64_t index);
std::array<double, 2> NormalPairAt(uint64_t seed, uint64_t stream, uint64_t pair);

// The block that decides over elements 4 * block .. 4 * block + 3 of a sample, in this order.
constexpr PhiloxBlock DropoutCounter(uint64_t sample, uint32_t layer, uint32_t site,
                                     uint64_t block) {
  const uint64_t place = uint64_t{site & 0xF} << 44 | uint64_t{layer & 0xFFFF} << 48;
  return RandomCounter(RandomUse::kDropout, sample, place | block);
}

// An element is kept when its word is not below this: with probability 1 - p, for 0 <= p < 1.
constexpr uint32_t DropoutThreshold(float p) {
  const double threshold = static_cast<double>(p) * 0x1p32 + 0.5;
  return threshold >= 0x1p32 ? 0xFFFFFFFF : static_cast<uint32_t>(threshold);
}
// And it is then multiplied with this.
constexpr float DropoutScale(float p) {
  return static_cast<float>(1 / (1 - static_cast<double>(p)));
}

}  // namespace zerobox

#endif  // ZEROBOX_OPS_PHILOX_H_
