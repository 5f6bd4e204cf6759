// SPDX-License-Identifier: Apache-2.0
//
// The Ops of a GPU: cuBLASLt's matmuls, and the kernels of ops/cuda/kernels.h.
#ifndef ZEROBOX_OPS_CUDA_CUDA_OPS_H_
#define ZEROBOX_OPS_CUDA_CUDA_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ops/cuda/cuda.h"
#include "ops/ops.h"

namespace zerobox::cuda {

class CudaDevice;

// Kernels that run on the compute stream of `device`, which outlives them.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(CudaDevice& device);

// The largest workspace of an op on a micro-batch of these sizes, and so on a smaller one, on the
// current device. (Those of the others do not grow with it: a megabyte will do.)
int64_t OpsWorkspaceBytes(const CudaOpsSizes& sizes, int multiprocessors);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_CUDA_OPS_H_
