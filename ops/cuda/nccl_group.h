// SPDX-License-Identifier: Apache-2.0
//
// Collectives by NCCL, within this process: each rank has a communicator of its own, made and used
// by its worker's thread alone, on the communication stream of its GPU.
#ifndef ZEROBOX_OPS_CUDA_NCCL_GROUP_H_
#define ZEROBOX_OPS_CUDA_NCCL_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ops/cuda/cuda.h"

namespace zerobox::cuda {

// Of CudaDevices, each of another GPU. See MakeCudaGroup.
absl::StatusOr<std::unique_ptr<Group>> MakeNcclGroup(const CudaGroupOptions& options, Abort& abort);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_NCCL_GROUP_H_
