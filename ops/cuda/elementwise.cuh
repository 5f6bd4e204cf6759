// SPDX-License-Identifier: Apache-2.0
//
// The frame of kernels in which each element of the result needs a few elements of the operands.
// Such a kernel is bound by memory: what counts is that every access is 16 bytes wide, that a
// warp's accesses are neighbours, and that enough of them are on their way; arithmetic is free up
// to some 30 instructions an element. To expect: 90% of a copy's bandwidth.
//
// A kernel is a Body, a struct of its arguments with
//   template <int kCount> __device__ void Run(int64_t row, int64_t column) const;
// which does kCount elements from there on, kCount being kPack (16-byte accesses, by Read and
// Write) or 1. Two mappings of threads:
//   LaunchElements  columns are many (all elements, or those of a sample). A block takes 2048
//                   neighbouring columns of row blockIdx.y, each thread 8 of them.
//   LaunchRows      rows are many (B*T) and columns some hundreds (C). A warp takes 256
//                   neighbouring columns of a row, so that no thread divides by C.
// Operands whose rows do not all begin on 16 bytes are done element by element, lanes side by side;
// the end of a row that is no multiple of 8 by its last thread.
#ifndef ZEROBOX_OPS_CUDA_ELEMENTWISE_CUH_
#define ZEROBOX_OPS_CUDA_ELEMENTWISE_CUH_

#include <cstdint>

#include "ops/cuda/gpu.cuh"

namespace zerobox::cuda {

constexpr int kPack = 8;
constexpr int kElementwiseWarps = 8;
constexpr int kElementwiseThreads = kElementwiseWarps * gpu::kLanes;

template <int kCount, typename T>
__device__ __forceinline__ void Read(float (&values)[kCount], const T* from) {
  if constexpr (kCount == 1) {
    values[0] = gpu::ToFloat(*from);
  } else {
    gpu::LoadFloats(values, from);
  }
}
template <int kCount, typename T>
__device__ __forceinline__ void Write(T* to, const float (&values)[kCount]) {
  if constexpr (kCount == 1) {
    *to = gpu::FromFloat<T>(values[0]);
  } else {
    gpu::StoreFloats(to, values);
  }
}

// The elements of `kWidth` threads, of which this is number `thread`, from `first` on.
template <bool kPacked, int kWidth, class Body>
__device__ __forceinline__ void RunColumns(const Body& body, int64_t row, int64_t first,
                                           int64_t columns, int thread) {
  if constexpr (kPacked) {
    int64_t column = first + thread * kPack;
    if (column + kPack <= columns) {
      body.template Run<kPack>(row, column);
    } else {
      for (; column < columns; ++column) body.template Run<1>(row, column);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const int64_t column = first + i * kWidth + thread;
      if (column < columns) body.template Run<1>(row, column);
    }
  }
}

template <bool kPacked, class Body>
__global__ void __launch_bounds__(kElementwiseThreads)
    ElementsKernel(int64_t rows, int64_t columns, Body body) {
  const int64_t first = int64_t{blockIdx.x} * (kElementwiseThreads * kPack);
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    RunColumns<kPacked, kElementwiseThreads>(body, row, first, columns,
                                             static_cast<int>(threadIdx.x));
  }
}

template <bool kPacked, class Body>
__global__ void __launch_bounds__(kElementwiseThreads)
    RowsKernel(int64_t rows, int64_t columns, Body body) {
  const int64_t first = int64_t{blockIdx.x} * (gpu::kLanes * kPack);
  for (int64_t row = int64_t{blockIdx.y} * kElementwiseWarps + gpu::WarpInBlock(); row < rows;
       row += int64_t{gridDim.y} * kElementwiseWarps) {
    RunColumns<kPacked, gpu::kLanes>(body, row, first, columns, gpu::Lane());
  }
}

constexpr int64_t kMostGridRows = 65535;

// `aligned`: all operands begin on 16 bytes.
template <class Body>
cudaError_t LaunchElements(cudaStream_t stream, int64_t rows, int64_t columns, bool aligned,
                           const Body& body) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(gpu::CeilDiv(columns, kElementwiseThreads * kPack)),
                  static_cast<unsigned>(rows < kMostGridRows ? rows : kMostGridRows));
  const bool packed = aligned && (rows == 1 || columns % kPack == 0);
  return gpu::Launch(stream, grid, dim3(kElementwiseThreads), 0,
                     packed ? ElementsKernel<true, Body> : ElementsKernel<false, Body>, rows,
                     columns, body);
}

template <class Body>
cudaError_t LaunchRows(cudaStream_t stream, int64_t rows, int64_t columns, bool aligned,
                       const Body& body) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const int64_t groups = gpu::CeilDiv(rows, kElementwiseWarps);
  const dim3 grid(static_cast<unsigned>(gpu::CeilDiv(columns, gpu::kLanes * kPack)),
                  static_cast<unsigned>(groups < kMostGridRows ? groups : kMostGridRows));
  return gpu::Launch(
      stream, grid, dim3(kElementwiseThreads), 0,
      aligned && columns % kPack == 0 ? RowsKernel<true, Body> : RowsKernel<false, Body>, rows,
      columns, body);
}

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_ELEMENTWISE_CUH_
