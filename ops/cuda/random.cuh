// SPDX-License-Identifier: Apache-2.0
//
// Philox and dropout masks in device code: the same numbers as ops/philox.h, which says what the
// bits of the counter mean. A block costs ten rounds of two wide multiplications, about 70
// instructions for four elements: that hides behind the memory accesses of an element-wise kernel.
#ifndef ZEROBOX_OPS_CUDA_RANDOM_CUH_
#define ZEROBOX_OPS_CUDA_RANDOM_CUH_

#include <cstdint>

#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/philox.h"

namespace zerobox::cuda {

__device__ __forceinline__ uint4 PhiloxOnDevice(uint4 counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ k0, low1, high0 ^ counter.w ^ k1, low0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// A DropoutMask as kernels take it: what depends on the call alone is worked out on the host.
struct DropoutDraw {
  uint64_t seed = 0;
  const int64_t* samples = nullptr;
  uint32_t place = 0;  // site and layer, in the upper bits of the counter's position
  uint32_t threshold = 0;
  float scale = 1;

  DropoutDraw() = default;
  explicit DropoutDraw(const DropoutMask& mask)
      : seed(mask.seed),
        samples(mask.samples),
        place(DropoutCounter(0, static_cast<uint32_t>(mask.layer), static_cast<uint32_t>(mask.site),
                             0)[1]),
        threshold(DropoutThreshold(mask.p)),
        scale(DropoutScale(mask.p)) {}

  // The words of elements 4 * block .. 4 * block + 3 of a sample.
  __device__ __forceinline__ uint4 Words(int64_t sample_number, uint64_t block) const {
    constexpr uint32_t kUse = uint32_t{static_cast<uint8_t>(RandomUse::kDropout)} << 24;
    const uint64_t sample = static_cast<uint64_t>(sample_number);
    return PhiloxOnDevice(
        make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32) | place,
                   static_cast<uint32_t>(sample),
                   (static_cast<uint32_t>(sample >> 32) & 0x00FFFFFFu) | kUse),
        seed);
  }
  // What an element with this word is multiplied with.
  __device__ __forceinline__ float Factor(uint32_t word) const {
    return word < threshold ? 0.0f : scale;
  }
  // Of one element of a sample.
  __device__ __forceinline__ float FactorAt(int64_t sample_number, uint64_t element) const {
    const uint4 words = Words(sample_number, element / 4);
    const uint32_t i = static_cast<uint32_t>(element) % 4;
    return Factor(i < 2 ? (i == 0 ? words.x : words.y) : (i == 2 ? words.z : words.w));
  }
  // x / (1 - p) or 0: kCount (1, or a multiple of 4) elements of a sample from `element` on, which
  // is a multiple of 4 unless kCount is 1. The product is never fused with a sum, so that it is
  // that of the host; and what is dropped is 0, also where x is not finite.
  template <int kCount>
  __device__ __forceinline__ void Apply(float (&x)[kCount], int64_t sample_number,
                                        uint64_t element) const {
    if constexpr (kCount == 1) {
      const float factor = FactorAt(sample_number, element);
      x[0] = factor == 0 ? 0.0f : __fmul_rn(x[0], factor);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const uint4 block = Words(sample_number, element / 4 + i / 4);
        const uint32_t words[4] = {block.x, block.y, block.z, block.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[i + j] = words[j] < threshold ? 0.0f : __fmul_rn(x[i + j], scale);
        }
      }
    }
  }
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_RANDOM_CUH_
