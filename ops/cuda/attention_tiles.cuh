// SPDX-License-Identifier: Apache-2.0
//
// Tiles in shared memory and fragments in registers, for attention_bf16.cu: copies into tiles, the
// two kinds of products on tensor cores, and how rows of sums leave. A block has kWarps warps. Rows
// of tiles are kPitch<D> elements long for D channels: 16 bytes more than D, an odd number of
// 16-byte units, so that the 8 rows that LdMatrix reads at a time lie in different banks. Of a tile
// of sums, lane l holds rows g and g + 8 and columns 2q and 2q + 1, as gpu::Mma has them.
#ifndef ZEROBOX_OPS_CUDA_ATTENTION_TILES_CUH_
#define ZEROBOX_OPS_CUDA_ATTENTION_TILES_CUH_

#include <cstdint>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/gpu.cuh"

namespace zerobox::cuda::attention {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * gpu::kLanes;

template <int D>
constexpr int kPitch = D + 8;  // elements from a row of shared memory to the next
template <int D>
constexpr size_t TileBytes(int rows) {
  return static_cast<size_t>(rows) * kPitch<D> * sizeof(BFloat16);
}

// Starts copying rows first .. first + kRows - 1 of a matrix into shared memory, with zeros behind
// the last position and the last channel. What is not copied is not read, so its address may be
// behind the matrix. Where rows are not aligned the copy is done at once; that is not meant to be
// fast, but to take few registers from the rest.
template <int D, int kRows>
__device__ __forceinline__ void FetchTile(BFloat16* tile, const BFloat16* from, int64_t stride,
                                          int first, const Heads& heads) {
  constexpr int kPacks = D / 8, kRowsAtOnce = kThreads / kPacks;
  static_assert(kThreads % kPacks == 0 && kRows % kRowsAtOnce == 0);
  const int thread = static_cast<int>(threadIdx.x);
  if (heads.aligned) {
    const int row = thread / kPacks, channel = thread % kPacks * 8;
    const bool is_channel = channel < heads.d;
    const BFloat16* const begin = from + (first + row) * stride + channel;
#pragma unroll
    for (int n = 0; n < kRows; n += kRowsAtOnce) {
      gpu::CpAsync16(tile + (n + row) * kPitch<D> + channel, begin + n * stride,
                     is_channel && first + n + row < heads.positions);
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < kRows * D; i += kThreads) {
      const int row = i / D, channel = i % D;
      const bool copy = first + row < heads.positions && channel < heads.d;
      tile[row * kPitch<D> + channel] = copy ? from[(first + row) * stride + channel] : BFloat16{0};
    }
  }
}

// The operand `a` of products whose rows are those of a tile: kSlabs times 16 rows from `row` on.
template <int D, int kSlabs, bool kKeep>
struct RowFragments {
  const BFloat16* tile;
  int row;
  uint32_t kept[kKeep ? kSlabs : 1][kKeep ? D / 16 : 1][4];

  __device__ RowFragments(const BFloat16* tile, int row) : tile(tile), row(row) {}
  // When the tile is there.
  __device__ __forceinline__ void Keep() {
    if constexpr (kKeep) {
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
#pragma unroll
        for (int k = 0; k < D / 16; ++k) Load(kept[i][k], i, k);
      }
    }
  }
  // Of slab i and channels 16 k .. 16 k + 15.
  __device__ __forceinline__ void Get(uint32_t (&a)[4], int i, int k) const {
    if constexpr (kKeep) {
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = kept[i][k][e];
    } else {
      Load(a, i, k);
    }
  }
  __device__ __forceinline__ void Load(uint32_t (&a)[4], int i, int k) const {
    const int lane = gpu::Lane();
    gpu::LdMatrix<false>(a, tile + (row + 16 * i + lane % 16) * kPitch<D> + 16 * k + lane / 16 * 8);
  }
};

// Two neighbouring tiles of sums, whose operands b lie in one LdMatrix.
__device__ __forceinline__ void MmaPair(float (&sums0)[4], float (&sums1)[4],
                                        const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
  gpu::Mma(sums0, a, b0);
  gpu::Mma(sums1, a, b1);
}

// sums = A B^T over D channels: A the warp's rows, B a tile of 8 kTiles rows.
template <int D, int kSlabs, int kTiles, bool kKeep>
__device__ __forceinline__ void Scores(float (&sums)[kSlabs][kTiles][4],
                                       const RowFragments<D, kSlabs, kKeep>& rows,
                                       const BFloat16* tile) {
  const int lane = gpu::Lane();
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][n][e] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[kSlabs][4];
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) rows.Get(a[i], i, k);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      gpu::LdMatrix<false>(
          b, tile + (8 * n + lane / 16 * 8 + lane % 8) * kPitch<D> + 16 * k + lane / 8 % 2 * 8);
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) MmaPair(sums[i][n], sums[i][n + 1], a[i], b);
    }
  }
}

// sums += A B: A is `weights`, rounded to bf16; B a tile of 8 kTiles rows and D channels.
template <int D, int kSlabs, int kTiles>
__device__ __forceinline__ void AddWeighted(float (&sums)[kSlabs][D / 8][4],
                                            const float (&weights)[kSlabs][kTiles][4],
                                            const BFloat16* tile) {
  const int lane = gpu::Lane();
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    uint32_t a[kSlabs][4];
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) {
      const auto &left = weights[i][2 * k], &right = weights[i][2 * k + 1];
      a[i][0] = gpu::PackBFloat16(left[0], left[1]);
      a[i][1] = gpu::PackBFloat16(left[2], left[3]);
      a[i][2] = gpu::PackBFloat16(right[0], right[1]);
      a[i][3] = gpu::PackBFloat16(right[2], right[3]);
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      gpu::LdMatrix<true>(
          b, tile + (16 * k + lane / 8 % 2 * 8 + lane % 8) * kPitch<D> + 8 * n + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) MmaPair(sums[i][n], sums[i][n + 1], a[i], b);
    }
  }
}

// Writes 16 rows of sums, times `factors` (of rows g and g + 8), through the 16 rows of shared
// memory at `rows`, which no other warp uses: so that rows are written 16 bytes at a time.
template <int D>
__device__ __forceinline__ void StoreRows(BFloat16* to, int64_t stride, int first, BFloat16* rows,
                                          const float (&sums)[D / 8][4], const float (&factors)[2],
                                          const Heads& heads) {
  const int lane = gpu::Lane(), g = lane / 4, q = lane % 4;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint32_t*>(rows + (g + 8 * half) * kPitch<D> + 8 * n + 2 * q) =
          gpu::PackBFloat16(sums[n][2 * half] * factors[half],
                            sums[n][2 * half + 1] * factors[half]);
    }
  }
  __syncwarp();
  if (heads.aligned) {
    constexpr int kPacks = D / 8;
#pragma unroll
    for (int i = lane; i < 16 * kPacks; i += gpu::kLanes) {
      const int row = i / kPacks, channel = i % kPacks * 8;
      if (first + row < heads.positions && channel < heads.d) {
        gpu::Store<8>(to + (first + row) * stride + channel,
                      gpu::Load<8>(rows + row * kPitch<D> + channel));
      }
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < 16 * D; i += gpu::kLanes) {
      const int row = i / D, channel = i % D;
      if (first + row < heads.positions && channel < heads.d) {
        to[(first + row) * stride + channel] = rows[row * kPitch<D> + channel];
      }
    }
  }
}

// Dropout's factors of two neighbouring keys: usually of one block of random words.
__device__ __forceinline__ float2 PairFactors(const DropoutDraw& dropout, int64_t sample,
                                              uint64_t element) {
  const uint4 words = dropout.Words(sample, element / 4);
  switch (element % 4) {
    case 0:
      return make_float2(dropout.Factor(words.x), dropout.Factor(words.y));
    case 1:
      return make_float2(dropout.Factor(words.y), dropout.Factor(words.z));
    case 2:
      return make_float2(dropout.Factor(words.z), dropout.Factor(words.w));
    default:
      return make_float2(dropout.Factor(words.w),
                         dropout.Factor(dropout.Words(sample, element / 4 + 1).x));
  }
}

}  // namespace zerobox::cuda::attention

#endif  // ZEROBOX_OPS_CUDA_ATTENTION_TILES_CUH_
