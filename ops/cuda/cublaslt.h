// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_OPS_CUDA_CUBLASLT_H_
#define ZEROBOX_OPS_CUDA_CUBLASLT_H_

#include <string>

namespace zerobox::cuda {

// Why none of cuBLASLt's functions can be called: "" when they can. See ops/cuda/cublaslt.cpp.
std::string CublasLtProblem();

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_CUBLASLT_H_
