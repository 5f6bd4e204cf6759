// SPDX-License-Identifier: Apache-2.0
//
// The CUDA device of a build without CUDA: none. It lies in the library, and a program with CUDA
// links ops/cuda/cuda_device.cpp before it.
#include "absl/status/status.h"
#include "ops/cuda/cuda.h"

namespace zerobox {
namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError(
      "this build has no CUDA devices (make CUDA=1 builds with them, and needs the CUDA toolkit)");
}

}  // namespace

bool BuiltWithCuda() { return false; }
absl::StatusOr<int> CountGpus() { return NotBuilt(); }
absl::StatusOr<int64_t> FreeGpuMemory(int) { return NotBuilt(); }
int64_t GpuWorkspaceBytes(const CudaOpsSizes&) { return kGpuWorkspaceBytes; }
absl::StatusOr<GpuLinks> FindGpuLinks(int) { return NotBuilt(); }
absl::Status CheckNccl() { return NotBuilt(); }
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions&, Abort&) {
  return NotBuilt();
}
absl::StatusOr<std::unique_ptr<Group>> MakeCudaGroup(const CudaGroupOptions&, Abort&) {
  return NotBuilt();
}

}  // namespace zerobox
