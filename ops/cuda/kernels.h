// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels' launchers, one idea a file (.cu): functions over device memory that enqueue on
// `stream` what the Ops of the same names promise (ops/ops.h says shapes, formulas and what is of
// which type). T is float or BFloat16; G, of parameters' gradients, is float, or BFloat16 where T
// is. These are the instances that there are. A launcher returns CUDA's error of its launches;
// sizes of 0 launch nothing.
//
// Results are the same bits every time, and for every order of blocks and threads. Where a sum over
// rows is split over the GPU, how it is split, and so its last bits, depends on the shape and on
// `multiprocessors`, of the GPU. A `workspace` belongs to the caller, who may use it again for what
// comes later on the stream; nothing of it needs to be set or is left.
#ifndef ZEROBOX_OPS_CUDA_KERNELS_H_
#define ZEROBOX_OPS_CUDA_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/bfloat16.h"

namespace zerobox::cuda {

// layernorm.cu
template <typename T>
cudaError_t LayerNormForward(cudaStream_t stream, T* out, float* mean, float* rstd, const T* x,
                             const T* weight, const T* bias, int64_t rows, int64_t channels);
template <typename T, typename G>
cudaError_t LayerNormBackward(cudaStream_t stream, T* dx, G* dweight, G* dbias, const T* dout,
                              const T* x, const float* mean, const float* rstd, const T* weight,
                              int64_t rows, int64_t channels, float* workspace,
                              int multiprocessors);
// In floats.
int64_t LayerNormBackwardWorkspace(int64_t rows, int64_t channels, int multiprocessors);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_KERNELS_H_
