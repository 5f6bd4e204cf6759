// SPDX-License-Identifier: Apache-2.0
//
// The sum of a collective between ranks that share a GPU:
//   to[k][i] = ((from[0][i] + from[1][i]) + from[2][i]) + ...   for every k,
// in the order of the ranks, in fp32 for bf16, which is rounded once: the bits of SumInOrder in
// ops/collectives/reduce.h, but for those of a NaN.
//
// Shapes: n elements in each of up to 64 operands and 64 results. Mapping: blocks of 256 threads,
// each thread 8 neighbouring elements at a time and then those a grid further. A thread has read
// its elements of all operands before it writes any, so a result may be an operand. The pointers
// are arguments: the GPU reads those from the constant cache, where all lanes of a warp get the
// same one at once. What bounds it: memory, in an all-reduce of N ranks 2 N times the buffer; the
// loop over operands is unrolled so that loads of four are on their way at once. fp64 and integers,
// which are sent a few at a time, go element by element. To expect: 90% of a copy's bandwidth.
#include <cstddef>
#include <type_traits>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

template <typename T>
struct RankSums {
  // The elements are summed as numbers of this type.
  using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  const T* from[kMostSummedRanks];
  T* to[kMostSummedRanks];
  int operands, results;

  template <int kCount>
  __device__ __forceinline__ void Run(int64_t i) const {
    Sum sums[kCount];
    Load(sums, from[0] + i);
#pragma unroll 4
    for (int r = 1; r < operands; ++r) {
      Sum next[kCount];
      Load(next, from[r] + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] = sums[k] + next[k];
    }
    for (int r = 0; r < results; ++r) Store(to[r] + i, sums);
  }

  template <int kCount>
  __device__ __forceinline__ static void Load(Sum (&values)[kCount], const T* address) {
    if constexpr (std::is_same_v<Sum, float>) {
      Read(values, address);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = address[k];
    }
  }
  template <int kCount>
  __device__ __forceinline__ static void Store(T* address, const Sum (&values)[kCount]) {
    if constexpr (std::is_same_v<Sum, float>) {
      Write(address, values);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) address[k] = values[k];
    }
  }
};

template <typename T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    RankSumsKernel(const __grid_constant__ RankSums<T> sums, int64_t n) {
  constexpr int kCount = kPacked ? kPack : 1;
  const int64_t thread = int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kElementwiseThreads * kCount;
  for (int64_t i = thread * kCount; i < n; i += stride) {
    if (i + kCount <= n) {
      sums.template Run<kCount>(i);
    } else {
      for (int64_t k = i; k < n; ++k) sums.template Run<1>(k);
    }
  }
}

constexpr int64_t kMostBlocks = 2048;

}  // namespace

template <typename T>
cudaError_t SumRanks(cudaStream_t stream, std::span<T* const> to, std::span<const T* const> from,
                     int64_t n) {
  if (to.empty() || to.size() > kMostSummedRanks || from.empty() ||
      from.size() > kMostSummedRanks) {
    return cudaErrorInvalidValue;
  }
  if (n == 0) return cudaSuccess;
  RankSums<T> sums = {};
  sums.operands = static_cast<int>(from.size());
  sums.results = static_cast<int>(to.size());
  bool packed = std::is_same_v<typename RankSums<T>::Sum, float>;
  for (size_t r = 0; r < from.size(); ++r) {
    sums.from[r] = from[r];
    packed = packed && gpu::AreAligned(from[r]);
  }
  for (size_t r = 0; r < to.size(); ++r) {
    sums.to[r] = to[r];
    packed = packed && gpu::AreAligned(to[r]);
  }
  const int64_t blocks = gpu::CeilDiv(n, kElementwiseThreads * (packed ? kPack : 1));
  const dim3 grid(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  void (*kernel)(RankSums<T>, int64_t) = RankSumsKernel<T, false>;
  if constexpr (std::is_same_v<typename RankSums<T>::Sum, float>) {
    if (packed) kernel = RankSumsKernel<T, true>;
  }
  return gpu::Launch(stream, grid, dim3(kElementwiseThreads), 0, kernel, sums, n);
}

#define ZEROBOX_INSTANCE(T)                                                                   \
  template cudaError_t SumRanks(cudaStream_t, std::span<T* const>, std::span<const T* const>, \
                                int64_t);
ZEROBOX_INSTANCE(float)
ZEROBOX_INSTANCE(BFloat16)
ZEROBOX_INSTANCE(double)
ZEROBOX_INSTANCE(uint32_t)
ZEROBOX_INSTANCE(uint64_t)
#undef ZEROBOX_INSTANCE

}  // namespace zerobox::cuda
