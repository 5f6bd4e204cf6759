// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_ops.h"

#include "ops/cuda/cuda_device.h"
#include "ops/plan_ops.h"

namespace zerobox::cuda {
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(CudaDevice&) { return MakePlanOps(); }
}  // namespace zerobox::cuda
