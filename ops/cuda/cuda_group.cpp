// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "ops/cuda/cuda.h"
#include "ops/cuda/nccl_group.h"
#include "ops/cuda/status.h"
#include "ops/cuda/virtual_group.h"

namespace zerobox {

absl::StatusOr<std::unique_ptr<Group>> MakeCudaGroup(const CudaGroupOptions& options,
                                                     Abort& abort) {
  if (options.size > 1 && !options.on_one_gpu) return cuda::MakeNcclGroup(options, abort);
  return cuda::MakeVirtualGroup(options.size, options.hook, abort);
}

// Atomic operations of one GPU on another's memory are there over NVLink, and not over PCIe.
absl::StatusOr<GpuLinks> FindGpuLinks(int gpus) {
  GpuLinks links;
  for (int a = 0; a < gpus; ++a) {
    for (int b = a + 1; b < gpus; ++b) {
      int peer = 0;
      int atomics = 0;
      absl::Status status =
          cuda::ToStatus(cudaDeviceGetP2PAttribute(&peer, cudaDevP2PAttrAccessSupported, a, b),
                         "cudaDeviceGetP2PAttribute");
      if (status.ok()) {
        status = cuda::ToStatus(
            cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, a, b),
            "cudaDeviceGetP2PAttribute");
      }
      if (!status.ok()) return status;
      ++links.pairs;
      links.peers += peer != 0 ? 1 : 0;
      links.nvlinks += peer != 0 && atomics != 0 ? 1 : 0;
    }
  }
  return links;
}

}  // namespace zerobox
