// SPDX-License-Identifier: Apache-2.0
//
// Initial values, and what moves numbers without changing them much: fill, add, convert.
//
// Shapes: n elements. Mapping: elementwise.cuh; fp64 buffers, which hold a few sums, an element a
// thread; normal numbers a pair a thread, as Box and Muller's formula gives two. What bounds it:
// memory, and writes alone for Fill; FillNormal, once a run, is bound by fp64 logarithms and
// cosines. To expect of the others: 90% of a copy's bandwidth.
#include <numbers>
#include <type_traits>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/random.cuh"

namespace zerobox::cuda {
namespace {

template <typename T>
struct SetTo {
  T* out;
  float value;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t, int64_t i) const {
    if constexpr (std::is_same_v<T, double>) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) out[i + k] = value;
    } else {
      float values[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = value;
      Write(out + i, values);
    }
  }
};

template <typename To, typename From, bool kAdd>
struct Move {
  To* to;
  const From* from;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t, int64_t i) const {
    float values[kCount];
    Read(values, from + i);
    if constexpr (kAdd) {
      float sums[kCount];
      Read(sums, to + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = sums[k] + values[k];
    }
    Write(to + i, values);
  }
};

// See UniformAt in ops/philox.h.
__device__ __forceinline__ uint64_t Bits53(uint32_t low, uint32_t high) {
  return (uint64_t{high} << 32 | low) >> 11;
}

// Numbers 2 (pair + k) and 2 (pair + k) + 1 of the sequence, where they are of [first, first + n).
template <typename T>
__global__ void __launch_bounds__(kElementwiseThreads)
    NormalKernel(T* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first, float stddev) {
  const int64_t pair =
      first / 2 + int64_t{blockIdx.x} * kElementwiseThreads + static_cast<int64_t>(threadIdx.x);
  const int64_t i = 2 * pair - first;
  if (i >= n) return;
  constexpr uint32_t kUse = uint32_t{static_cast<uint8_t>(RandomUse::kNormal)} << 24;
  const uint64_t position = static_cast<uint64_t>(pair);
  const uint4 words = PhiloxOnDevice(
      make_uint4(static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                 static_cast<uint32_t>(stream),
                 (static_cast<uint32_t>(stream >> 32) & 0x00FFFFFFu) | kUse),
      seed);
  const double above_zero = static_cast<double>(Bits53(words.x, words.y) + 1) * 0x1p-53;
  const double radius = sqrt(-2 * log(above_zero));
  const double angle =
      2 * std::numbers::pi * (static_cast<double>(Bits53(words.z, words.w)) * 0x1p-53);
  if (i >= 0) out[i] = gpu::FromFloat<T>(static_cast<float>(stddev * (radius * cos(angle))));
  if (i + 1 < n) {
    out[i + 1] = gpu::FromFloat<T>(static_cast<float>(stddev * (radius * sin(angle))));
  }
}

}  // namespace

template <typename T>
cudaError_t Fill(cudaStream_t stream, T* out, int64_t n, float value) {
  return LaunchElements(stream, 1, n, gpu::AreAligned(out), SetTo<T>{out, value});
}

template <typename T>
cudaError_t FillNormal(cudaStream_t stream, T* out, int64_t n, uint64_t seed,
                       uint64_t random_stream, int64_t first, float stddev) {
  if (n == 0) return cudaSuccess;
  const int64_t pairs = (first + n - 1) / 2 - first / 2 + 1;
  return gpu::Launch(stream, dim3(static_cast<unsigned>(gpu::CeilDiv(pairs, kElementwiseThreads))),
                     dim3(kElementwiseThreads), 0, NormalKernel<T>, out, n, seed, random_stream,
                     first, stddev);
}

template <typename To, typename From>
cudaError_t Add(cudaStream_t stream, To* to, const From* from, int64_t n) {
  return LaunchElements(stream, 1, n, gpu::AreAligned(to, from), Move<To, From, true>{to, from});
}

template <typename To, typename From>
cudaError_t Convert(cudaStream_t stream, To* to, const From* from, int64_t n) {
  return LaunchElements(stream, 1, n, gpu::AreAligned(to, from), Move<To, From, false>{to, from});
}

template cudaError_t Fill(cudaStream_t, float*, int64_t, float);
template cudaError_t Fill(cudaStream_t, BFloat16*, int64_t, float);
template cudaError_t Fill(cudaStream_t, double*, int64_t, float);
template cudaError_t FillNormal(cudaStream_t, float*, int64_t, uint64_t, uint64_t, int64_t, float);
template cudaError_t FillNormal(cudaStream_t, BFloat16*, int64_t, uint64_t, uint64_t, int64_t,
                                float);
template cudaError_t Add(cudaStream_t, float*, const float*, int64_t);
template cudaError_t Add(cudaStream_t, BFloat16*, const BFloat16*, int64_t);
template cudaError_t Add(cudaStream_t, float*, const BFloat16*, int64_t);
template cudaError_t Convert(cudaStream_t, float*, const BFloat16*, int64_t);
template cudaError_t Convert(cudaStream_t, BFloat16*, const float*, int64_t);

}  // namespace zerobox::cuda
