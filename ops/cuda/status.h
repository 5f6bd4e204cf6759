// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_OPS_CUDA_STATUS_H_
#define ZEROBOX_OPS_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/view.h"

namespace zerobox::cuda {

// OK, or "CALL: what is wrong (cudaErrorName)". The runtime then forgets the error, so that it is
// not taken for that of a later call.
inline absl::Status ToStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  const std::string message =
      absl::StrCat(View(call), ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

// Makes this GPU the calling thread's, if it is not.
inline absl::Status MakeCurrent(int gpu) {
  int current = 0;
  absl::Status status = ToStatus(cudaGetDevice(&current), "cudaGetDevice");
  if (status.ok() && current != gpu) status = ToStatus(cudaSetDevice(gpu), "cudaSetDevice");
  return status;
}

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_STATUS_H_
