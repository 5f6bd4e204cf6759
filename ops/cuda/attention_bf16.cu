// SPDX-License-Identifier: Apache-2.0
//
// Attention in bf16 on tensor cores, by mma.sync (attention.cuh says what is computed). Rounding:
// scores, P, dP and all sums are fp32; P, R P and dS are rounded to bf16 as operands of the second
// product, and O, dQ, dK, dV when they are written. The scale is applied in fp32, never to bf16 Q.
//
// Mapping: a block of 4 warps has a tile of rows, of which a warp has kSlabs times 16, the height
// of an mma. With two slabs a fragment of the other side, once loaded from shared memory, serves
// two products: 16 rows a warp would need all of the 128 bytes that shared memory gives a clock,
// and make it the limit. The other side comes in tiles through two stages of shared memory:
//     wait for tile i; barrier; start copying tile i + 1 into the other stage; compute with tile i.
// One barrier a tile is enough: behind it nobody reads tile i - 1 any more, whose stage the copy
// fills. A product's sums are, packed to bf16, the first operand of the next product: P never
// leaves the registers. The third kernel works on transposed tiles, S^T = K Q^T, for that reason.
//
// What bounds it: tensor cores and, nearly as much, the special-function unit with one 2^x a score
// (16 a clock; 50% of the time of the products on an A100, 80% to 100% on an H100), hidden where
// other warps compute meanwhile. To expect: 110 TFLOP/s forward and 100 backward of an A100's 312,
// 180 and 170 of an H100's 989, whose tensor cores mma.sync uses to 60%.
//
// Tiles are as large as 255 registers a thread and two blocks a multiprocessor allow without
// spilling; with dropout, whose generator needs registers too, smaller. Heads of other sizes than
// 32, 64 and 128 are padded with zeros in shared memory.
#include <type_traits>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/attention_tiles.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

using namespace attention;  // NOLINT(google-build-using-namespace): of our own header

// The block's rows, those of a tile of the other side, and whether a warp keeps the fragments of
// its rows in registers or loads them for each tile.
template <int kRows_, int kColumns_, bool kKeep_>
struct TileSizes {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kKeep = kKeep_;
  static constexpr int kSlabs = kRows / (16 * kWarps);
  static_assert(kSlabs * 16 * kWarps == kRows && kColumns % 16 == 0);
};
template <int D, bool kDropout>
struct TilesFor;
template <bool kDropout>
struct TilesFor<32, kDropout> {
  using Forward = TileSizes<kDropout ? 64 : 128, 64, true>;
  using QueryGradient = TileSizes<64, 64, true>;
  using KeyGradient = TileSizes<64, 64, true>;
};
template <bool kDropout>
struct TilesFor<64, kDropout> {
  using Forward = TileSizes<kDropout ? 64 : 128, 64, true>;
  using QueryGradient = TileSizes<kDropout ? 64 : 128, 32, true>;
  using KeyGradient = TileSizes<kDropout ? 64 : 128, 32, false>;
};
template <bool kDropout>
struct TilesFor<128, kDropout> {
  using Forward = TileSizes<kDropout ? 64 : 128, 32, false>;
  using QueryGradient = TileSizes<64, 32, false>;
  using KeyGradient = TileSizes<64, kDropout ? 16 : 32, false>;
};

//---- Forward ------------------------------------------------------------------------------------

template <int D, class Sizes>
constexpr size_t ForwardBytes() {
  return TileBytes<D>(Sizes::kRows + 4 * Sizes::kColumns);
}

// Makes the scores of keys that are later than the query -inf. `query` is that of row g, less the
// key of column 2q.
template <int kSlabs, int kTiles>
__device__ __forceinline__ void HideLaterKeys(float (&scores)[kSlabs][kTiles][4], int query) {
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (8 * n + e % 2 > query + 16 * i + e / 2 * 8) scores[i][n][e] = -INFINITY;
      }
    }
  }
}

template <int D, bool kDropout, class Sizes>
__global__ void __launch_bounds__(kThreads, 2)
    ForwardKernel(BFloat16* __restrict__ out, float* __restrict__ logsumexp,
                  const BFloat16* __restrict__ qkv, const __grid_constant__ Heads heads) {
  constexpr int kSlabs = Sizes::kSlabs, kKeys = Sizes::kColumns, kTiles = kKeys / 8;
  DYNAMIC_SHARED(BFloat16, query_tile);
  BFloat16* const stages = query_tile + Sizes::kRows * kPitch<D>;  // [2][keys, values]
  const int lane = gpu::Lane(), g = lane / 4, q = lane % 4;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Sizes::kRows;
  const int warp_row = gpu::WarpInBlock() * 16 * kSlabs;
  const int64_t stride = heads.qkv_stride;
  const BFloat16* const queries = qkv + heads.InQkv();
  const BFloat16* const keys = queries + heads.out_stride;
  const int64_t sample = kDropout ? heads.dropout.samples[blockIdx.z] : 0;
  const float to_log2 = heads.scale * gpu::kLog2E;
  const auto stage = [&](int tile) { return stages + tile % 2 * 2 * kKeys * kPitch<D>; };
  const auto fetch = [&](int tile) {
    FetchTile<D, kKeys>(stage(tile), keys, stride, tile * kKeys, heads);
    FetchTile<D, kKeys>(stage(tile) + kKeys * kPitch<D>, keys + heads.out_stride, stride,
                        tile * kKeys, heads);
    gpu::CpAsyncCommit();
  };

  FetchTile<D, Sizes::kRows>(query_tile, queries, stride, first, heads);
  fetch(0);
  RowFragments<D, kSlabs, Sizes::kKeep> query_rows(query_tile, warp_row);
  float sums[kSlabs][D / 8][4] = {};
  // Of rows g and g + 8 of each slab: the largest score, and this lane's part of the total.
  float maxima[kSlabs][2], totals[kSlabs][2];
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
    maxima[i][0] = maxima[i][1] = -INFINITY;
    totals[i][0] = totals[i][1] = 0;
  }
  const int tiles =
      static_cast<int>(gpu::CeilDiv(min(first + Sizes::kRows, heads.positions), kKeys));
  if constexpr (Sizes::kKeep) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    query_rows.Keep();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    if (tile + 1 < tiles) fetch(tile + 1);
    const int key0 = tile * kKeys;
    if (key0 > first + warp_row + 16 * kSlabs - 1) continue;  // all keys are too late for this warp
    float p[kSlabs][kTiles][4];
    Scores<D, kSlabs, kTiles>(p, query_rows, stage(tile));
    if (key0 + kKeys - 1 > first + warp_row) {
      HideLaterKeys<kSlabs, kTiles>(p, first + warp_row + g - key0 - 2 * q);
    }
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) {
      const int query = first + warp_row + 16 * i + g;  // and that + 8
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = maxima[i][half];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          most = fmaxf(most, fmaxf(p[i][n][2 * half], p[i][n][2 * half + 1]));
        }
        // Tile 0 has the first key, which every query sees: so it is finite.
        most = gpu::WarpReduce<4>(most, gpu::Max());
        const float rescale = gpu::Exp2Approx((maxima[i][half] - most) * to_log2);
        const float most_log2 = most * to_log2;
        maxima[i][half] = most;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          float2 factors = {1, 1};
          if constexpr (kDropout) {
            factors = PairFactors(heads.dropout, sample,
                                  heads.Element(query + 8 * half, key0 + 8 * n + 2 * q));
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = p[i][n][2 * half + e];
            score = gpu::Exp2Approx(fmaf(score, to_log2, -most_log2));
            total += score;
            if constexpr (kDropout) score *= e == 0 ? factors.x : factors.y;
          }
        }
        totals[i][half] = fmaf(totals[i][half], rescale, total);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          sums[i][n][2 * half] *= rescale;
          sums[i][n][2 * half + 1] *= rescale;
        }
      }
    }
    AddWeighted<D, kSlabs, kTiles>(sums, p, stage(tile) + kKeys * kPitch<D>);
  }
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
    const int row = warp_row + 16 * i;
    float inverses[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = gpu::WarpReduce<4>(totals[i][half], gpu::Sum());
      inverses[half] = 1 / total;
      const int query = first + row + 8 * half + g;
      if (q == 0 && query < heads.positions) {
        logsumexp[heads.InStatistics() + query] = maxima[i][half] * heads.scale + logf(total);
      }
    }
    __syncwarp();  // the warp's rows of queries have been read
    StoreRows<D>(out + heads.InOut(), heads.out_stride, first + row, query_tile + row * kPitch<D>,
                 sums[i], inverses, heads);
  }
}

//---- dQ, and D as `dots` ------------------------------------------------------------------------

template <int D, class Sizes>
constexpr size_t QueryGradientBytes() {
  return TileBytes<D>(2 * Sizes::kRows + 4 * Sizes::kColumns);
}

// The dot product of a row of dout and of out, by the 4 lanes that share it in a tile of sums.
template <int D>
__device__ __forceinline__ float RowDot(const BFloat16* dout, const BFloat16* out, bool exists,
                                        const Heads& heads) {
  const int q = gpu::Lane() % 4;
  float sum = 0;
  if (exists && heads.aligned) {
#pragma unroll
    for (int channel = 8 * q; channel < D; channel += 32) {
      if (channel >= heads.d) break;
      float dy[8], y[8];
      gpu::LoadFloats(dy, dout + channel);
      gpu::LoadFloats(y, out + channel);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(dy[i], y[i], sum);
    }
  } else if (exists) {
    for (int channel = q; channel < heads.d; channel += 4) {
      sum = fmaf(gpu::ToFloat(dout[channel]), gpu::ToFloat(out[channel]), sum);
    }
  }
  return gpu::WarpReduce<4>(sum, gpu::Sum());
}

template <int D, bool kDropout, class Sizes>
__global__ void __launch_bounds__(kThreads, 2)
    QueryGradientKernel(BFloat16* __restrict__ dqkv, float* __restrict__ dots,
                        const BFloat16* __restrict__ dout, const BFloat16* __restrict__ qkv,
                        const BFloat16* __restrict__ out, const float* __restrict__ logsumexp,
                        const __grid_constant__ Heads heads) {
  constexpr int kSlabs = Sizes::kSlabs, kKeys = Sizes::kColumns, kTiles = kKeys / 8;
  DYNAMIC_SHARED(BFloat16, query_tile);
  BFloat16* const dout_tile = query_tile + Sizes::kRows * kPitch<D>;
  BFloat16* const stages = dout_tile + Sizes::kRows * kPitch<D>;  // [2][keys, values]
  const int lane = gpu::Lane(), g = lane / 4, q = lane % 4;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Sizes::kRows;
  const int warp_row = gpu::WarpInBlock() * 16 * kSlabs;
  const int64_t stride = heads.qkv_stride;
  const BFloat16* const queries = qkv + heads.InQkv();
  const BFloat16* const keys = queries + heads.out_stride;
  const int64_t sample = kDropout ? heads.dropout.samples[blockIdx.z] : 0;
  const float to_log2 = heads.scale * gpu::kLog2E;
  const auto stage = [&](int tile) { return stages + tile % 2 * 2 * kKeys * kPitch<D>; };
  const auto fetch = [&](int tile) {
    FetchTile<D, kKeys>(stage(tile), keys, stride, tile * kKeys, heads);
    FetchTile<D, kKeys>(stage(tile) + kKeys * kPitch<D>, keys + heads.out_stride, stride,
                        tile * kKeys, heads);
    gpu::CpAsyncCommit();
  };

  FetchTile<D, Sizes::kRows>(query_tile, queries, stride, first, heads);
  FetchTile<D, Sizes::kRows>(dout_tile, dout + heads.InOut(), heads.out_stride, first, heads);
  fetch(0);
  RowFragments<D, kSlabs, Sizes::kKeep> query_rows(query_tile, warp_row);
  RowFragments<D, kSlabs, Sizes::kKeep> dout_rows(dout_tile, warp_row);
  float log2_sums[kSlabs][2], row_dots[kSlabs][2];
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + warp_row + 16 * i + 8 * half + g;
      const bool exists = query < heads.positions;
      const int64_t in_out = heads.InOut() + query * heads.out_stride;
      const int64_t in_statistics = heads.InStatistics() + query;
      row_dots[i][half] = RowDot<D>(dout + in_out, out + in_out, exists, heads);
      log2_sums[i][half] = exists ? logsumexp[in_statistics] * gpu::kLog2E : INFINITY;  // P = 0
      if (q == 0 && exists) dots[in_statistics] = row_dots[i][half];
    }
  }
  float sums[kSlabs][D / 8][4] = {};
  const int tiles =
      static_cast<int>(gpu::CeilDiv(min(first + Sizes::kRows, heads.positions), kKeys));
  if constexpr (Sizes::kKeep) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    query_rows.Keep();
    dout_rows.Keep();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    if (tile + 1 < tiles) fetch(tile + 1);
    const int key0 = tile * kKeys;
    if (key0 > first + warp_row + 16 * kSlabs - 1) continue;
    float ds[kSlabs][kTiles][4], dp[kSlabs][kTiles][4];
    Scores<D, kSlabs, kTiles>(ds, query_rows, stage(tile));
    Scores<D, kSlabs, kTiles>(dp, dout_rows, stage(tile) + kKeys * kPitch<D>);
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) {
      const int query = first + warp_row + 16 * i + g;
      const bool diagonal = key0 + kKeys - 1 > first + warp_row + 16 * i;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = key0 + 8 * n + 2 * q;
          float2 factors = {1, 1};
          if constexpr (kDropout) {
            factors = PairFactors(heads.dropout, sample, heads.Element(query + 8 * half, key));
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = ds[i][n][2 * half + e];
            float dpi = dp[i][n][2 * half + e];
            if constexpr (kDropout) dpi *= e == 0 ? factors.x : factors.y;
            float p = gpu::Exp2Approx(fmaf(score, to_log2, -log2_sums[i][half]));
            if (diagonal && 8 * n + e - 8 * half > query - key0 - 2 * q) p = 0;
            score = p * (dpi - row_dots[i][half]);
          }
        }
      }
    }
    AddWeighted<D, kSlabs, kTiles>(sums, ds, stage(tile));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
    const int row = warp_row + 16 * i;
    StoreRows<D>(dqkv + heads.InQkv(), stride, first + row, query_tile + row * kPitch<D>, sums[i],
                 {heads.scale, heads.scale}, heads);
  }
}

//---- dK and dV ----------------------------------------------------------------------------------

template <int D, class Sizes>
constexpr size_t KeyGradientBytes() {
  return TileBytes<D>(2 * Sizes::kRows + 4 * Sizes::kColumns) + 4 * Sizes::kColumns * sizeof(float);
}

template <int D, bool kDropout, class Sizes>
__global__ void __launch_bounds__(kThreads, 2)
    KeyGradientKernel(BFloat16* __restrict__ dqkv, const BFloat16* __restrict__ dout,
                      const BFloat16* __restrict__ qkv, const float* __restrict__ logsumexp,
                      const float* __restrict__ dots, const __grid_constant__ Heads heads) {
  constexpr int kSlabs = Sizes::kSlabs, kQueries = Sizes::kColumns, kTiles = kQueries / 8;
  static_assert(2 * kQueries <= kThreads);
  DYNAMIC_SHARED(BFloat16, key_tile);
  BFloat16* const value_tile = key_tile + Sizes::kRows * kPitch<D>;
  BFloat16* const stages = value_tile + Sizes::kRows * kPitch<D>;  // [2][queries, dout]
  // [2][log2 of the sum, D][kQueries]
  float* const statistics = reinterpret_cast<float*>(stages + 4 * kQueries * kPitch<D>);
  const int lane = gpu::Lane(), g = lane / 4, q = lane % 4;
  const int first = static_cast<int>(blockIdx.x) * Sizes::kRows;
  const int warp_row = gpu::WarpInBlock() * 16 * kSlabs;
  const int64_t stride = heads.qkv_stride;
  const BFloat16* const queries = qkv + heads.InQkv();
  const BFloat16* const keys = queries + heads.out_stride;
  const int64_t sample = kDropout ? heads.dropout.samples[blockIdx.z] : 0;
  const float to_log2 = heads.scale * gpu::kLog2E;
  const auto stage = [&](int tile) { return stages + tile % 2 * 2 * kQueries * kPitch<D>; };
  const auto fetch = [&](int tile) {
    FetchTile<D, kQueries>(stage(tile), queries, stride, tile * kQueries, heads);
    FetchTile<D, kQueries>(stage(tile) + kQueries * kPitch<D>, dout + heads.InOut(),
                           heads.out_stride, tile * kQueries, heads);
    gpu::CpAsyncCommit();
  };
  // The numbers of a tile's queries, which need not be aligned: a thread loads one when the tile's
  // copy starts, and stores it behind the computation, so that nobody waits for the load.
  const auto load_statistic = [&](int tile) {
    const int i = static_cast<int>(threadIdx.x), query = tile * kQueries + i % kQueries;
    if (i >= 2 * kQueries) return 0.0f;
    const float* const from = i < kQueries ? logsumexp : dots;
    if (query < heads.positions) {
      return from[heads.InStatistics() + query] * (i < kQueries ? gpu::kLog2E : 1.0f);
    }
    return i < kQueries ? INFINITY : 0.0f;
  };
  const auto store_statistic = [&](int tile, float value) {
    if (threadIdx.x < 2 * kQueries) statistics[tile % 2 * 2 * kQueries + threadIdx.x] = value;
  };

  FetchTile<D, Sizes::kRows>(key_tile, keys, stride, first, heads);
  FetchTile<D, Sizes::kRows>(value_tile, keys + heads.out_stride, stride, first, heads);
  RowFragments<D, kSlabs, Sizes::kKeep> key_rows(key_tile, warp_row);
  RowFragments<D, kSlabs, Sizes::kKeep> value_rows(value_tile, warp_row);
  float dk[kSlabs][D / 8][4] = {}, dv[kSlabs][D / 8][4] = {};
  const int begin = first / kQueries;  // no earlier query sees these keys
  const int end = static_cast<int>(gpu::CeilDiv(heads.positions, kQueries));
  fetch(begin);
  store_statistic(begin, load_statistic(begin));
  if constexpr (Sizes::kKeep) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    key_rows.Keep();
    value_rows.Keep();
  }
  for (int tile = begin; tile < end; ++tile) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    float statistic = 0;
    if (tile + 1 < end) {
      fetch(tile + 1);
      statistic = load_statistic(tile + 1);
    }
    const int query0 = tile * kQueries;
    if (query0 + kQueries - 1 >= first + warp_row) {  // else all are too early for this warp's keys
      const BFloat16* const query_tile = stage(tile);
      const BFloat16* const dout_tile = query_tile + kQueries * kPitch<D>;
      const float* const log2_sums = statistics + tile % 2 * 2 * kQueries;
      float p[kSlabs][kTiles][4], ds[kSlabs][kTiles][4];
      Scores<D, kSlabs, kTiles>(p, key_rows, query_tile);
      Scores<D, kSlabs, kTiles>(ds, value_rows, dout_tile);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 sums = *reinterpret_cast<const float2*>(log2_sums + 8 * n + 2 * q);
        const float2 row_dots =
            *reinterpret_cast<const float2*>(log2_sums + kQueries + 8 * n + 2 * q);
#pragma unroll
        for (int i = 0; i < kSlabs; ++i) {
          const int key0 = first + warp_row + 16 * i + g;  // and that + 8
          const bool diagonal = query0 < first + warp_row + 16 * i + 15;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = first + warp_row + 16 * i + g + e / 2 * 8;
            const int query = query0 + 8 * n + 2 * q + e % 2;
            float pi = gpu::Exp2Approx(fmaf(p[i][n][e], to_log2, -(e % 2 == 0 ? sums.x : sums.y)));
            if (diagonal && 8 * n + e % 2 - e / 2 * 8 < key0 - query0 - 2 * q) pi = 0;
            float dpi = ds[i][n][e], dropped = pi;
            if constexpr (kDropout) {
              const float factor = heads.dropout.FactorAt(sample, heads.Element(query, key));
              dpi *= factor;
              dropped *= factor;
            }
            p[i][n][e] = dropped;
            ds[i][n][e] = pi * (dpi - (e % 2 == 0 ? row_dots.x : row_dots.y));
          }
        }
      }
      AddWeighted<D, kSlabs, kTiles>(dv, p, dout_tile);
      AddWeighted<D, kSlabs, kTiles>(dk, ds, query_tile);
    }
    if (tile + 1 < end) store_statistic(tile + 1, statistic);
  }
  __syncwarp();
  BFloat16* const dkeys = dqkv + heads.InQkv() + heads.out_stride;
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
    const int row = warp_row + 16 * i;
    StoreRows<D>(dkeys, stride, first + row, key_tile + row * kPitch<D>, dk[i],
                 {heads.scale, heads.scale}, heads);
    StoreRows<D>(dkeys + heads.out_stride, stride, first + row, value_tile + row * kPitch<D>, dv[i],
                 {1, 1}, heads);
  }
}

// Above 48 KiB a kernel must be allowed its shared memory, on each device: cheap, so before every
// launch.
template <typename Kernel, typename... Arguments>
cudaError_t LaunchTiles(cudaStream_t stream, dim3 grid, size_t shared_bytes, Kernel kernel,
                        Arguments... arguments) {
  const cudaError_t error = gpu::AllowDynamicShared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  return gpu::Launch(stream, grid, dim3(kThreads), shared_bytes, kernel, arguments...);
}

}  // namespace

template <>
cudaError_t AttentionForward(cudaStream_t stream, BFloat16* out, float* logsumexp,
                             const BFloat16* qkv, SequenceShape shape, int64_t heads_count,
                             const DropoutMask& dropout) {
  if (shape.elements() == 0) return cudaSuccess;
  const Heads heads = MakeHeads<BFloat16>(shape, heads_count, gpu::AreAligned(out, qkv), dropout);
  return WithHeadSize(heads.d, dropout.p > 0, [&]<int D, bool kDropout>() {
    using Sizes = typename TilesFor<D, kDropout>::Forward;
    return LaunchTiles(stream, AttentionGrid(shape, heads_count, Sizes::kRows),
                       ForwardBytes<D, Sizes>(), ForwardKernel<D, kDropout, Sizes>, out, logsumexp,
                       qkv, heads);
  });
}

template <>
cudaError_t AttentionBackward(cudaStream_t stream, BFloat16* dqkv, const BFloat16* dout,
                              const BFloat16* qkv, const BFloat16* out, const float* logsumexp,
                              SequenceShape shape, int64_t heads_count, const DropoutMask& dropout,
                              float* workspace) {
  if (shape.elements() == 0) return cudaSuccess;
  const Heads heads =
      MakeHeads<BFloat16>(shape, heads_count, gpu::AreAligned(dqkv, dout, qkv, out), dropout);
  return WithHeadSize(heads.d, dropout.p > 0, [&]<int D, bool kDropout>() {
    using QuerySizes = typename TilesFor<D, kDropout>::QueryGradient;
    using KeySizes = typename TilesFor<D, kDropout>::KeyGradient;
    const cudaError_t error = LaunchTiles(
        stream, AttentionGrid(shape, heads_count, QuerySizes::kRows),
        QueryGradientBytes<D, QuerySizes>(), QueryGradientKernel<D, kDropout, QuerySizes>, dqkv,
        workspace, dout, qkv, out, logsumexp, heads);
    if (error != cudaSuccess) return error;
    return LaunchTiles(stream, AttentionGrid(shape, heads_count, KeySizes::kRows),
                       KeyGradientBytes<D, KeySizes>(), KeyGradientKernel<D, kDropout, KeySizes>,
                       dqkv, dout, qkv, logsumexp, workspace, heads);
  });
}

}  // namespace zerobox::cuda
