// SPDX-License-Identifier: Apache-2.0
//
// Sums that decide something, in fp64: the loss, and the squares of a gradient for its norm.
//
// Shapes: n elements, in parts of 2^15 that are counted from the first. Mapping: a block of 256
// threads a part, whose thread t adds packs t, t + 256, ... of 8 elements, in order; then a tree
// over the block; one partial sum a part. A second kernel of one block adds the partial sums: its
// thread t parts t, t + 1024, ..., then a tree. Which thread adds what depends on the element's
// number alone and not on its address, so equal contents give equal bits wherever they stand, on
// every GPU. (They are not the bits of the host, whose lanes are those of its vectors.)
//
// What bounds it: memory, 2 bytes an element in bf16, on a GPU for data centers. To expect: 90% of
// a copy's bandwidth there. One for desktops has 1/64 of the fp64 units, and is bound by them.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

constexpr int64_t kPart = 1 << 15;
constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;

template <typename T, bool kSquares, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    PartSumsKernel(double* __restrict__ part_sums, const T* __restrict__ x, int64_t n) {
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  const int64_t end = n - begin < kPart ? n : begin + kPart;
  double sum = 0;
  const auto add = [&](float value) {
    const double wide = value;
    sum = kSquares ? fma(wide, wide, sum) : sum + wide;
  };
#pragma unroll 4
  for (int64_t i = begin + static_cast<int>(threadIdx.x) * kPack; i < end; i += kThreads * kPack) {
    if (kPacked && i + kPack <= end) {
      float values[kPack];
      Read(values, x + i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) add(values[k]);
    } else {
      for (int k = 0; k < kPack && i + k < end; ++k) add(gpu::ToFloat(x[i + k]));
    }
  }
  sum = gpu::BlockReduce<kThreads>(sum, gpu::Sum(), 0.0);
  if (threadIdx.x == 0) part_sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFinishThreads)
    AddPartsKernel(double* __restrict__ sum, const double* __restrict__ part_sums, int64_t parts) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < parts; i += kFinishThreads) total += part_sums[i];
  total = gpu::BlockReduce<kFinishThreads>(total, gpu::Sum(), 0.0);
  if (threadIdx.x == 0) *sum += total;
}

template <bool kSquares, typename T>
cudaError_t Accumulate(cudaStream_t stream, double* sum, const T* x, int64_t n, double* workspace) {
  if (n == 0) return cudaSuccess;
  const int64_t parts = gpu::CeilDiv(n, kPart);
  const cudaError_t error = gpu::Launch(
      stream, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0,
      gpu::AreAligned(x) ? PartSumsKernel<T, kSquares, true> : PartSumsKernel<T, kSquares, false>,
      workspace, x, n);
  if (error != cudaSuccess) return error;
  return gpu::Launch(stream, dim3(1), dim3(kFinishThreads), 0, AddPartsKernel, sum, workspace,
                     parts);
}

}  // namespace

int64_t AccumulateWorkspace(int64_t n) { return gpu::CeilDiv(n, kPart); }

cudaError_t AccumulateSum(cudaStream_t stream, double* sum, const float* x, int64_t n,
                          double* workspace) {
  return Accumulate<false>(stream, sum, x, n, workspace);
}

template <typename G>
cudaError_t AccumulateSquares(cudaStream_t stream, double* sum, const G* x, int64_t n,
                              double* workspace) {
  return Accumulate<true>(stream, sum, x, n, workspace);
}

template cudaError_t AccumulateSquares(cudaStream_t, double*, const float*, int64_t, double*);
template cudaError_t AccumulateSquares(cudaStream_t, double*, const BFloat16*, int64_t, double*);

}  // namespace zerobox::cuda
