// SPDX-License-Identifier: Apache-2.0
//
// What the attention kernels of both precisions share. Causal attention of one head over d = C/H
// channels (arXiv:1706.03762, section 3.2.1):
//   S = Q K^T / sqrt(d),  P = softmax of S over the keys that are not later than the query,
//   O = R P V,  R the dropout mask (1 / (1 - p) or 0, per element),  L = log sum_j e^S_j per query.
// Backward, from what is kept (Q, K, V, O, L) (arXiv:2205.14135, section 3.1 and appendix B):
//   P = e^(S - L),  dP = R dO V^T,  D = sum over channels of dO O  (= sum over keys of P dP),
//   dS = P (dP - D),  dQ = dS K / sqrt(d),  dK = dS^T Q / sqrt(d),  dV = (R P)^T dO.
// No T x T matrix is ever in memory: a block keeps a tile of rows and walks over tiles of the other
// side. The softmax is the one that is rescaled when a larger score comes (arXiv:2307.08691,
// section 3.1).
//
// Backward is two kernels, and each computes S and dP: the first walks over keys and writes dQ, and
// D on the way; the second walks over queries and writes dK and dV. One kernel would have to add up
// dQ over its blocks, by atomics in any order, or by blocks that wait for each other. That costs 7
// matrix products instead of 5, about 4% of a training step, and buys results that are the same
// bits every time, and no memory but D.
//
// Grid: (tiles of rows, H, B). Causality makes tiles unequal, so the one with the most work comes
// first. Heads of a sequence are neighbours in the grid's order only through the tiles, so that the
// keys and values of the heads in flight stay in the L2 cache.
#ifndef ZEROBOX_OPS_CUDA_ATTENTION_CUH_
#define ZEROBOX_OPS_CUDA_ATTENTION_CUH_

#include <cmath>
#include <cstdint>

#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/random.cuh"

namespace zerobox::cuda {

// The shape, as kernels take it; and where the block's head, blockIdx.y of sequence blockIdx.z, is.
struct Heads {
  int positions;                   // T
  int count;                       // H
  int d;                           // channels of a head
  float scale;                     // 1 / sqrt(d)
  bool aligned;                    // all rows of a head begin on 16 bytes
  int64_t out_stride, qkv_stride;  // from a position to the next: C and 3C
  DropoutDraw dropout;

  // Of the head's position 0: in qkv its query (keys and values are out_stride and twice that
  // further), in out, and in what has one number a query.
  __device__ __forceinline__ int64_t InQkv() const {
    return blockIdx.z * positions * qkv_stride + int64_t{blockIdx.y} * d;
  }
  __device__ __forceinline__ int64_t InOut() const {
    return blockIdx.z * positions * out_stride + int64_t{blockIdx.y} * d;
  }
  __device__ __forceinline__ int64_t InStatistics() const {
    return (int64_t{blockIdx.z} * count + blockIdx.y) * positions;
  }
  // Of the dropout mask, in the sample.
  __device__ __forceinline__ uint64_t Element(int query, int key) const {
    return (static_cast<uint64_t>(blockIdx.y) * positions + query) * positions + key;
  }
};

// `aligned`: the buffers begin on 16 bytes, of which a T has sizeof(T).
template <typename T>
Heads MakeHeads(SequenceShape shape, int64_t heads, bool aligned, const DropoutMask& dropout) {
  const int d = static_cast<int>(shape.channels / heads);
  return {.positions = static_cast<int>(shape.positions),
          .count = static_cast<int>(heads),
          .d = d,
          .scale = 1 / std::sqrt(static_cast<float>(d)),
          .aligned = aligned && d * sizeof(T) % 16 == 0,
          .out_stride = shape.channels,
          .qkv_stride = 3 * shape.channels,
          .dropout = dropout.p > 0 ? DropoutDraw(dropout) : DropoutDraw()};
}

inline dim3 AttentionGrid(SequenceShape shape, int64_t heads, int rows_in_tile) {
  return dim3(static_cast<unsigned>(gpu::CeilDiv(shape.positions, rows_in_tile)),
              static_cast<unsigned>(heads), static_cast<unsigned>(shape.batch));
}

// call.operator()<D, kDropout>() with D the smallest size of head that there are kernels for and
// that is not less than d; others fail.
template <typename Call>
cudaError_t WithHeadSize(int d, bool dropout, const Call& call) {
  if (d <= 32) {
    return dropout ? call.template operator()<32, true>() : call.template operator()<32, false>();
  }
  if (d <= 64) {
    return dropout ? call.template operator()<64, true>() : call.template operator()<64, false>();
  }
  if (d <= 128) {
    return dropout ? call.template operator()<128, true>() : call.template operator()<128, false>();
  }
  return cudaErrorInvalidValue;
}

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_ATTENTION_CUH_
