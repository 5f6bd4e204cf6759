// SPDX-License-Identifier: Apache-2.0
//
// Small kernels that show one primitive of ops/cuda/gpu.cuh each, launched at once.
#ifndef ZEROBOX_TESTS_EMULATION_GPU_KERNELS_H_
#define ZEROBOX_TESTS_EMULATION_GPU_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/bfloat16.h"

namespace zerobox::gpu_kernels {

// sums[row] and maxima[row] of x (rows, columns), a block of 96 threads each row.
cudaError_t ReduceRows(float* sums, float* maxima, const float* x, int rows, int columns);

// out (32 l + m) is what lane l gets from WarpReduce over groups of 4 (m = 0), ShuffleXor 5 (1),
// ShuffleFrom 7 (2), of the lane number; and ballot, any, all of "the lane is odd" (3, 4, 5).
cudaError_t Shuffles(int* out);

// to[i] = from[i] (n, a multiple of 8) through shared memory with cp.async, tiles of 256 in two
// stages; zeros from `valid` (a multiple of 8) on.
cudaError_t CopyAsync(BFloat16* to, const BFloat16* from, int n, int valid);

// d (16, 8) = a (16, 16) b (16, 8) + c, one warp.
enum class Fragments {
  kByHand,       // from the layouts that gpu.cuh states
  kLdMatrix,     // b is given as rows along n: b_rows (8, 16)
  kLdMatrixBy4,  // the same, b with the first half of an x4
  kTransposed,   // b is given as rows along k: b_rows (16, 8)
  kTransposedBy4,
};
cudaError_t MatrixProduct(float* d, const BFloat16* a, const BFloat16* b_rows, const float* c,
                          Fragments how);

// out[i] = x[i], each rounded to T by PackFloats and stored; n a multiple of 8.
cudaError_t RoundTrip(BFloat16* out, const float* x, int n);
cudaError_t RoundTrip(float* out, const float* x, int n);

// out[i] = 2^x[i] and 1 / x[i].
cudaError_t Approximate(float* powers, float* reciprocals, const float* x, int n);

}  // namespace zerobox::gpu_kernels

#endif  // ZEROBOX_TESTS_EMULATION_GPU_KERNELS_H_
