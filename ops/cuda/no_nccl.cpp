// SPDX-License-Identifier: Apache-2.0
//
// NCCL in a build that found no nccl.h: none.
#include "ops/cuda/nccl_group.h"

namespace zerobox {

absl::Status CheckNccl() {
  return absl::UnimplementedError(
      "this build has no NCCL, by which several GPUs send each other what they have: its header, "
      "nccl.h, was not where the CUDA toolkit is, nor in NCCL_HOME. Install NCCL (libnccl-dev) and "
      "build again");
}

absl::StatusOr<std::unique_ptr<Group>> cuda::MakeNcclGroup(const CudaGroupOptions&, Abort&) {
  return CheckNccl();
}

}  // namespace zerobox
