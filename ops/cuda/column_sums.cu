// SPDX-License-Identifier: Apache-2.0
//
// The gradient of a bias: sums over the rows of dy (rows, columns), added to the gradient.
//
// Two stages, since one block for all rows of a column would leave the GPU idle, and atomic
// additions would come in any order. Stage one: a block takes a slab of columns (256 where a lane
// has 8 of them, else 32) and, with its 8 warps, every (8 gridDim.y)-th group of 8 rows; lanes sum
// in registers, then the warps' sums are added in order through shared memory: one partial sum a
// column and block. Stage two adds these in order. As many blocks as fill the GPU twice: more would
// only make more partial sums.
//
// What bounds it: memory, 2 bytes an element in bf16. To expect: 85% of a copy's bandwidth; the
// second stage is a few microseconds.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * gpu::kLanes;

// kCount columns a lane. partial_sums (gridDim.y, columns).
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    PartialSumsKernel(float* __restrict__ partial_sums, const T* __restrict__ x, int64_t rows,
                      int64_t columns) {
  // One more than a lane's columns: with 8, a store of the warp would meet four banks alone.
  SHARED_ARRAY(float, sums, [kWarps][gpu::kLanes][kCount + 1]);
  const int warp = gpu::WarpInBlock(), lane = gpu::Lane();
  const int64_t first = int64_t{blockIdx.x} * (gpu::kLanes * kCount);
  const int64_t column = first + lane * kCount;
  float totals[kCount] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = int64_t{blockIdx.y} * kWarps + warp; row < rows;
         row += int64_t{gridDim.y} * kWarps) {
      float values[kCount];
      Read(values, x + row * columns + column);
#pragma unroll
      for (int k = 0; k < kCount; ++k) totals[k] += values[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) sums[warp][lane][k] = totals[k];
  __syncthreads();
  const int slot = static_cast<int>(threadIdx.x);
  if (slot >= gpu::kLanes * kCount || first + slot >= columns) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += sums[i][slot / kCount][slot % kCount];
  partial_sums[blockIdx.y * columns + first + slot] = sum;
}

// A block takes 32 columns; its warp w adds partial sums w, w + 8, ..., then the first warp the
// warps'.
template <typename G>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(G* __restrict__ gradient, const float* __restrict__ partial_sums, int count,
                 int64_t columns) {
  SHARED_ARRAY(float, sums, [kWarps][gpu::kLanes]);
  const int warp = gpu::WarpInBlock(), lane = gpu::Lane();
  const int64_t column = int64_t{blockIdx.x} * gpu::kLanes + lane;
  float sum = 0;
  if (column < columns) {
    for (int i = warp; i < count; i += kWarps) sum += partial_sums[i * columns + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  gradient[column] = gpu::FromFloat<G>(gpu::ToFloat(gradient[column]) + sum);
}

// Of stage one over the rows, whatever the alignment.
int64_t RowBlocks(int64_t rows, int64_t columns, int multiprocessors) {
  const int64_t slabs = gpu::CeilDiv(columns, gpu::kLanes * kPack);
  const int64_t filling = gpu::CeilDiv(2 * int64_t{multiprocessors}, slabs);
  const int64_t needed = gpu::CeilDiv(rows, kWarps);
  return needed < filling ? needed : filling;
}

}  // namespace

int64_t AddColumnSumsWorkspace(int64_t rows, int64_t columns, int multiprocessors) {
  return columns == 0 ? 0 : RowBlocks(rows, columns, multiprocessors) * columns;
}

template <typename T, typename G>
cudaError_t AddColumnSums(cudaStream_t stream, G* sums, const T* x, int64_t rows, int64_t columns,
                          float* workspace, int multiprocessors) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const int64_t blocks = RowBlocks(rows, columns, multiprocessors);
  const bool packed = columns % kPack == 0 && gpu::AreAligned(x);
  const int64_t slab = gpu::kLanes * (packed ? kPack : 1);
  const cudaError_t error = gpu::Launch(
      stream,
      dim3(static_cast<unsigned>(gpu::CeilDiv(columns, slab)), static_cast<unsigned>(blocks)),
      dim3(kThreads), 0, packed ? PartialSumsKernel<T, kPack> : PartialSumsKernel<T, 1>, workspace,
      x, rows, columns);
  if (error != cudaSuccess) return error;
  return gpu::Launch(stream, dim3(static_cast<unsigned>(gpu::CeilDiv(columns, gpu::kLanes))),
                     dim3(kThreads), 0, FinishKernel<G>, sums, workspace, static_cast<int>(blocks),
                     columns);
}

template cudaError_t AddColumnSums(cudaStream_t, float*, const float*, int64_t, int64_t, float*,
                                   int);
template cudaError_t AddColumnSums(cudaStream_t, BFloat16*, const BFloat16*, int64_t, int64_t,
                                   float*, int);
template cudaError_t AddColumnSums(cudaStream_t, float*, const BFloat16*, int64_t, int64_t, float*,
                                   int);

}  // namespace zerobox::cuda
