// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_OPS_CUDA_NCCL_LIBRARY_H_
#define ZEROBOX_OPS_CUDA_NCCL_LIBRARY_H_

#include <string>

namespace zerobox::cuda {

// Why none of NCCL's functions can be called: "" when they can. See ops/cuda/nccl_library.cpp.
std::string NcclProblem();

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_NCCL_LIBRARY_H_
