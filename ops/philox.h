// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC11), section 3.3, and what is drawn from it. A number is a function of (key, counter), so it
// does not depend on who draws it or when.
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

// Number `index` of the sequence (seed, stream): normal with mean 0 and deviation 1, by Box and
// Muller in double precision.
double NormalAt(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_PHILOX_H_
