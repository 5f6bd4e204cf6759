// SPDX-License-Identifier: Apache-2.0
//
// What layernorm.cu and residual_layernorm.cu share: how a row lies in the registers of a warp, and
// the forward pass from there on. layernorm.cu says the formulas.
//
// A warp takes a row. Lane l holds channels 8 (32 p + l) .. + 7 for p = 0 .. kPacks - 1: 16-byte
// accesses, of which a warp makes 512 neighbouring bytes.
#ifndef ZEROBOX_OPS_CUDA_LAYERNORM_CUH_
#define ZEROBOX_OPS_CUDA_LAYERNORM_CUH_

#include <cstdint>
#include <type_traits>

#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda::layernorm {

constexpr float kEpsilon = 1e-5f;
constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarps * gpu::kLanes;
constexpr int kPack = 8;                         // channels that a lane holds side by side
constexpr int kPackedRow = gpu::kLanes * kPack;  // channels that a warp's packs hold
constexpr int kMostPacks = 7;

// The row of this thread's warp; it may be behind the last.
__device__ __forceinline__ int64_t RowOfWarp() {
  return int64_t{blockIdx.x} * kWarps + gpu::WarpInBlock();
}
__device__ __forceinline__ int ChannelOf(int pack) {
  return (pack * gpu::kLanes + gpu::Lane()) * kPack;
}

// y of one row, whose x are in `values`; packs behind the last channel are not read. The variance
// is taken around the mean, not from the sum of squares, which would cancel where the mean is
// large; in registers that costs no second read.
template <typename T, int kPacks>
__device__ __forceinline__ void Normalize(T* out, float* mean, float* rstd,
                                          float (&values)[kPacks][kPack], const T* weight,
                                          const T* bias, int channels) {
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ChannelOf(p) >= channels) continue;
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += values[p][i];
  }
  const float m = gpu::WarpReduce(sum, gpu::Sum()) / static_cast<float>(channels);
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ChannelOf(p) >= channels) continue;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      values[p][i] -= m;
      squares = fmaf(values[p][i], values[p][i], squares);
    }
  }
  const float variance = gpu::WarpReduce(squares, gpu::Sum()) / static_cast<float>(channels);
  const float r = rsqrtf(variance + kEpsilon);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int channel = ChannelOf(p);
    if (channel >= channels) continue;
    float w[kPack], b[kPack];
    gpu::LoadFloats(w, weight + channel);
    gpu::LoadFloats(b, bias + channel);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[p][i] = fmaf(values[p][i] * r, w[i], b[i]);
    gpu::StoreFloats(out + channel, values[p]);
  }
  if (gpu::Lane() == 0) {
    *mean = m;
    *rstd = r;
  }
}

// The same of any row: a lane takes every 32nd channel, and reads it three times.
template <typename T>
__device__ __forceinline__ void NormalizePlainly(T* out, float* mean, float* rstd, const T* x,
                                                 const T* weight, const T* bias, int channels) {
  float sum = 0;
  for (int c = gpu::Lane(); c < channels; c += gpu::kLanes) sum += gpu::ToFloat(x[c]);
  const float m = gpu::WarpReduce(sum, gpu::Sum()) / static_cast<float>(channels);
  float squares = 0;
  for (int c = gpu::Lane(); c < channels; c += gpu::kLanes) {
    const float centered = gpu::ToFloat(x[c]) - m;
    squares = fmaf(centered, centered, squares);
  }
  const float variance = gpu::WarpReduce(squares, gpu::Sum()) / static_cast<float>(channels);
  const float r = rsqrtf(variance + kEpsilon);
  for (int c = gpu::Lane(); c < channels; c += gpu::kLanes) {
    const float n = (gpu::ToFloat(x[c]) - m) * r;
    out[c] = gpu::FromFloat<T>(fmaf(n, gpu::ToFloat(weight[c]), gpu::ToFloat(bias[c])));
  }
  if (gpu::Lane() == 0) {
    *mean = m;
    *rstd = r;
  }
}

// The number of packs of the instance for this many channels; 0: the plain kernels.
inline int PacksFor(int64_t channels) {
  const int64_t packs = gpu::CeilDiv(channels, kPackedRow);
  if (channels % kPack != 0 || packs > kMostPacks) return 0;
  return static_cast<int>(packs == 6 ? 7 : packs);
}

// call(std::integral_constant<int, packs>()).
template <typename Call>
cudaError_t WithPacks(int packs, Call call) {
  switch (packs) {
    case 1:
      return call(std::integral_constant<int, 1>());
    case 2:
      return call(std::integral_constant<int, 2>());
    case 3:
      return call(std::integral_constant<int, 3>());
    case 4:
      return call(std::integral_constant<int, 4>());
    case 5:
      return call(std::integral_constant<int, 5>());
    default:
      return call(std::integral_constant<int, 7>());
  }
}

inline dim3 GridOfRows(int64_t rows) {
  return dim3(static_cast<unsigned>(gpu::CeilDiv(rows, kWarps)));
}

}  // namespace zerobox::cuda::layernorm

#endif  // ZEROBOX_OPS_CUDA_LAYERNORM_CUH_
