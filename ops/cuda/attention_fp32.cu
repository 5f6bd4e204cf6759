// SPDX-License-Identifier: Apache-2.0
//
// Attention in fp32 (attention.cuh says what is computed): without tensor cores, whose fp32
// operands would be cut to 10 bits (TF32). It is what the bf16 kernels are compared with, and for
// runs in fp32.
//
// Mapping: a block of 128 threads has 32 rows, queries or keys, 4 lanes each; lane q of a row holds
// its channels 16 i + 4 q .. + 3, so that rows are read 16 bytes at a time and a dot product ends
// with two shuffles. The other side comes in tiles of 32 rows through shared memory, where the 8
// rows of a warp read the same addresses at a time. What bounds it: fp32 multiply-adds and reads of
// shared memory, about one 16-byte read for 4 multiply-adds. To expect: 4 to 6 TFLOP/s of an A100's
// 19. (Registers would hold larger tiles; this is the plain version.)
//
// Heads of other sizes than 32, 64 and 128 are padded with zeros in registers and shared memory.
#include "ops/cuda/attention.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

constexpr int kRows = 32;
constexpr int kLanesOfRow = 4;
constexpr int kThreads = kRows * kLanesOfRow;

// Elements channel .. channel + 3 of a row of d.
__device__ __forceinline__ float4 LoadChannels(const float* row, int channel, const Heads& heads) {
  if (heads.aligned) {
    if (channel >= heads.d) return make_float4(0, 0, 0, 0);
    return *reinterpret_cast<const float4*>(row + channel);
  }
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = channel + i < heads.d ? row[channel + i] : 0.0f;
  return make_float4(values[0], values[1], values[2], values[3]);
}

// A lane's channels of a row.
template <int D>
struct Row {
  static constexpr int kCount = D / kLanesOfRow;
  float x[kCount];

  __device__ __forceinline__ static int Lane() {
    return static_cast<int>(threadIdx.x) % kLanesOfRow;
  }
  __device__ __forceinline__ static Row Zeros() {
    Row row;
#pragma unroll
    for (int i = 0; i < kCount; ++i) row.x[i] = 0;
    return row;
  }
  __device__ __forceinline__ void Set(int i, float4 values) {
    x[4 * i] = values.x;
    x[4 * i + 1] = values.y;
    x[4 * i + 2] = values.z;
    x[4 * i + 3] = values.w;
  }
  // From global memory.
  __device__ __forceinline__ static Row Load(const float* row, const Heads& heads) {
    Row result;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      result.Set(i, LoadChannels(row, 16 * i + 4 * Lane(), heads));
    }
    return result;
  }
  // From a tile.
  __device__ __forceinline__ static Row Load(const float (&row)[D]) {
    Row result;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      result.Set(i, *reinterpret_cast<const float4*>(&row[16 * i + 4 * Lane()]));
    }
    return result;
  }
  __device__ __forceinline__ void Store(float* row, float factor, const Heads& heads) const {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const int channel = 16 * i + 4 * Lane();
      if (heads.aligned) {
        if (channel >= heads.d) continue;
        *reinterpret_cast<float4*>(row + channel) = make_float4(
            x[4 * i] * factor, x[4 * i + 1] * factor, x[4 * i + 2] * factor, x[4 * i + 3] * factor);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (channel + k < heads.d) row[channel + k] = x[4 * i + k] * factor;
        }
      }
    }
  }
  __device__ __forceinline__ void AddProduct(float factor, const Row& other) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = fmaf(factor, other.x[i], x[i]);
  }
};

// Over the whole rows, in each of their lanes.
template <int D>
__device__ __forceinline__ float Dot(const Row<D>& a, const Row<D>& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Row<D>::kCount; ++i) sum = fmaf(a.x[i], b.x[i], sum);
  return gpu::WarpReduce<kLanesOfRow>(sum, gpu::Sum());
}

// Rows first .. first + 31 of a matrix; zeros behind the last position.
template <int D>
__device__ __forceinline__ void LoadTile(float (&tile)[kRows][D], const float* from, int64_t stride,
                                         int first, const Heads& heads) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * D / 4; i += kThreads) {
    const int row = i / (D / 4), channel = i % (D / 4) * 4;
    *reinterpret_cast<float4*>(&tile[row][channel]) =
        first + row < heads.positions ? LoadChannels(from + (first + row) * stride, channel, heads)
                                      : make_float4(0, 0, 0, 0);
  }
}

// Dropout's factors of 4 elements for the 4 lanes of a row: each lane draws one.
struct FourFactors {
  float mine;
  __device__ __forceinline__ float operator[](int i) const {
    return gpu::ShuffleFrom(mine, gpu::Lane() / kLanesOfRow * kLanesOfRow + i);
  }
};

template <int D, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    ForwardKernel(float* __restrict__ out, float* __restrict__ logsumexp,
                  const float* __restrict__ qkv, const __grid_constant__ Heads heads) {
  SHARED_ARRAY(float, key_tile, [kRows][D]);
  SHARED_ARRAY(float, value_tile, [kRows][D]);
  const int lane = Row<D>::Lane();
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int query = first + static_cast<int>(threadIdx.x) / kLanesOfRow;
  const bool exists = query < heads.positions;
  const int64_t stride = heads.qkv_stride;
  const float* const queries = qkv + heads.InQkv();
  const float* const keys = queries + heads.out_stride;
  const float* const values = keys + heads.out_stride;
  const int64_t sample = kDropout ? heads.dropout.samples[blockIdx.z] : 0;
  const float to_log2 = heads.scale * gpu::kLog2E;

  const auto q = exists ? Row<D>::Load(queries + query * stride, heads) : Row<D>::Zeros();
  auto sums = Row<D>::Zeros();
  float maximum = -INFINITY, total = 0;
  for (int key0 = 0; key0 < min(first + kRows, heads.positions); key0 += kRows) {
    __syncthreads();  // everyone is done with the tile before
    LoadTile(key_tile, keys, stride, key0, heads);
    LoadTile(value_tile, values, stride, key0, heads);
    __syncthreads();
    constexpr int kKeys = 8;  // at a time: one rescaling for all
#pragma unroll 1
    for (int j = 0; j < kRows; j += kKeys) {
      float scores[kKeys], most = maximum;
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        const float score = Dot(q, Row<D>::Load(key_tile[j + k]));
        scores[k] = key0 + j + k <= query ? score : -INFINITY;
        most = fmaxf(most, scores[k]);
      }
      // The first key is seen by every query, so `most` is finite from the start.
      const float rescale = gpu::Exp2Approx((maximum - most) * to_log2);
      maximum = most;
      total *= rescale;
#pragma unroll
      for (int i = 0; i < Row<D>::kCount; ++i) sums.x[i] *= rescale;
#pragma unroll
      for (int half = 0; half < kKeys; half += 4) {
        FourFactors factors = {1};
        if constexpr (kDropout) {
          const int key = key0 + j + half + lane;
          factors.mine = heads.dropout.FactorAt(sample, heads.Element(query, key));
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float p = gpu::Exp2Approx((scores[half + k] - maximum) * to_log2);
          total += p;
          if constexpr (kDropout) p *= factors[k];
          sums.AddProduct(p, Row<D>::Load(value_tile[j + half + k]));
        }
      }
    }
  }
  if (!exists) return;
  sums.Store(out + heads.InOut() + query * heads.out_stride, 1 / total, heads);
  if (lane == 0) {
    logsumexp[heads.InStatistics() + query] = maximum * heads.scale + logf(total);
  }
}

// Also writes D, as `dots`, for the other kernel.
template <int D, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    QueryGradientKernel(float* __restrict__ dqkv, float* __restrict__ dots,
                        const float* __restrict__ dout, const float* __restrict__ qkv,
                        const float* __restrict__ out, const float* __restrict__ logsumexp,
                        const __grid_constant__ Heads heads) {
  SHARED_ARRAY(float, key_tile, [kRows][D]);
  SHARED_ARRAY(float, value_tile, [kRows][D]);
  const int lane = Row<D>::Lane();
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int query = first + static_cast<int>(threadIdx.x) / kLanesOfRow;
  const bool exists = query < heads.positions;
  const int64_t stride = heads.qkv_stride;
  const float* const queries = qkv + heads.InQkv();
  const float* const keys = queries + heads.out_stride;
  const float* const values = keys + heads.out_stride;
  const int64_t sample = kDropout ? heads.dropout.samples[blockIdx.z] : 0;
  const float to_log2 = heads.scale * gpu::kLog2E;

  auto q = Row<D>::Zeros(), dy = q, y = q, dq = q;
  float log2_sum = INFINITY;  // so that P is 0
  if (exists) {
    const int64_t in_out = heads.InOut() + query * heads.out_stride;
    q = Row<D>::Load(queries + query * stride, heads);
    dy = Row<D>::Load(dout + in_out, heads);
    y = Row<D>::Load(out + in_out, heads);
    log2_sum = logsumexp[heads.InStatistics() + query] * gpu::kLog2E;
  }
  const float dot = Dot(dy, y);
  if (exists && lane == 0) dots[heads.InStatistics() + query] = dot;
  for (int key0 = 0; key0 < min(first + kRows, heads.positions); key0 += kRows) {
    __syncthreads();
    LoadTile(key_tile, keys, stride, key0, heads);
    LoadTile(value_tile, values, stride, key0, heads);
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < kRows; j += 4) {
      FourFactors factors = {1};
      if constexpr (kDropout) {
        factors.mine = heads.dropout.FactorAt(sample, heads.Element(query, key0 + j + lane));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto key = Row<D>::Load(key_tile[j + k]);
        const float score = Dot(q, key);
        float dp = Dot(dy, Row<D>::Load(value_tile[j + k]));
        if constexpr (kDropout) dp *= factors[k];
        const float p =
            key0 + j + k <= query ? gpu::Exp2Approx(fmaf(score, to_log2, -log2_sum)) : 0.0f;
        dq.AddProduct(p * (dp - dot), key);
      }
    }
  }
  if (exists) dq.Store(dqkv + heads.InQkv() + query * stride, heads.scale, heads);
}

// The rows are keys, and the tiles queries.
template <int D, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    KeyGradientKernel(float* __restrict__ dqkv, const float* __restrict__ dout,
                      const float* __restrict__ qkv, const float* __restrict__ logsumexp,
                      const float* __restrict__ dots, const __grid_constant__ Heads heads) {
  SHARED_ARRAY(float, query_tile, [kRows][D]);
  SHARED_ARRAY(float, dout_tile, [kRows][D]);
  SHARED_ARRAY(float, statistics, [2][kRows]);  // log2 of the sum, and D
  const int lane = Row<D>::Lane();
  const int first = static_cast<int>(blockIdx.x) * kRows;
  const int key = first + static_cast<int>(threadIdx.x) / kLanesOfRow;
  const bool exists = key < heads.positions;
  const int64_t stride = heads.qkv_stride;
  const float* const queries = qkv + heads.InQkv();
  const float* const key_row = queries + heads.out_stride + key * stride;
  const int64_t sample = kDropout ? heads.dropout.samples[blockIdx.z] : 0;
  const float to_log2 = heads.scale * gpu::kLog2E;

  auto k = Row<D>::Zeros(), v = k, dk = k, dv = k;
  if (exists) {
    k = Row<D>::Load(key_row, heads);
    v = Row<D>::Load(key_row + heads.out_stride, heads);
  }
  for (int query0 = first; query0 < heads.positions; query0 += kRows) {
    __syncthreads();
    LoadTile(query_tile, queries, stride, query0, heads);
    LoadTile(dout_tile, dout + heads.InOut(), heads.out_stride, query0, heads);
    if (threadIdx.x < kRows) {
      const int query = query0 + static_cast<int>(threadIdx.x);
      const bool there = query < heads.positions;
      const int64_t i = heads.InStatistics() + query;
      statistics[0][threadIdx.x] = there ? logsumexp[i] * gpu::kLog2E : INFINITY;
      statistics[1][threadIdx.x] = there ? dots[i] : 0.0f;
    }
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < kRows; j += 4) {
      FourFactors factors = {1};
      if constexpr (kDropout) {
        factors.mine = heads.dropout.FactorAt(sample, heads.Element(query0 + j + lane, key));
      }
      [[maybe_unused]] constexpr int kAtOnce = D < 128 ? 4 : 1;  // that the registers hold
#pragma unroll kAtOnce
      for (int i = 0; i < 4; ++i) {
        const auto q = Row<D>::Load(query_tile[j + i]);
        const auto dy = Row<D>::Load(dout_tile[j + i]);
        const float score = Dot(k, q);
        float dp = Dot(v, dy);
        const float p = query0 + j + i >= key
                            ? gpu::Exp2Approx(fmaf(score, to_log2, -statistics[0][j + i]))
                            : 0.0f;
        float dropped = p;
        if constexpr (kDropout) {
          const float factor = factors[i];
          dp *= factor;
          dropped *= factor;
        }
        dv.AddProduct(dropped, dy);
        dk.AddProduct(p * (dp - statistics[1][j + i]), q);
      }
    }
  }
  if (!exists) return;
  float* const dkey_row = dqkv + heads.InQkv() + heads.out_stride + key * stride;
  dk.Store(dkey_row, heads.scale, heads);
  dv.Store(dkey_row + heads.out_stride, 1, heads);
}

}  // namespace

template <>
cudaError_t AttentionForward(cudaStream_t stream, float* out, float* logsumexp, const float* qkv,
                             SequenceShape shape, int64_t heads_count, const DropoutMask& dropout) {
  if (shape.elements() == 0) return cudaSuccess;
  const Heads heads = MakeHeads<float>(shape, heads_count, gpu::AreAligned(out, qkv), dropout);
  return WithHeadSize(heads.d, dropout.p > 0, [&]<int D, bool kDropout>() {
    return gpu::Launch(stream, AttentionGrid(shape, heads_count, kRows), dim3(kThreads), 0,
                       ForwardKernel<D, kDropout>, out, logsumexp, qkv, heads);
  });
}

template <>
cudaError_t AttentionBackward(cudaStream_t stream, float* dqkv, const float* dout, const float* qkv,
                              const float* out, const float* logsumexp, SequenceShape shape,
                              int64_t heads_count, const DropoutMask& dropout, float* workspace) {
  if (shape.elements() == 0) return cudaSuccess;
  const Heads heads =
      MakeHeads<float>(shape, heads_count, gpu::AreAligned(dqkv, dout, qkv, out), dropout);
  const dim3 grid = AttentionGrid(shape, heads_count, kRows);
  return WithHeadSize(heads.d, dropout.p > 0, [&]<int D, bool kDropout>() {
    const cudaError_t error =
        gpu::Launch(stream, grid, dim3(kThreads), 0, QueryGradientKernel<D, kDropout>, dqkv,
                    workspace, dout, qkv, out, logsumexp, heads);
    if (error != cudaSuccess) return error;
    return gpu::Launch(stream, grid, dim3(kThreads), 0, KeyGradientKernel<D, kDropout>, dqkv, dout,
                       qkv, logsumexp, workspace, heads);
  });
}

int64_t AttentionBackwardWorkspace(SequenceShape shape, int64_t heads) {
  return shape.rows() * heads;
}

}  // namespace zerobox::cuda
