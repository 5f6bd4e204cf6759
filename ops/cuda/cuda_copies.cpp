// SPDX-License-Identifier: Apache-2.0
//
// Copies of a CudaDevice, within its memory and to and from the machine's.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "ops/cuda/cuda_device.h"
#include "ops/cuda/status.h"
#include "ops/device/recorder.h"

namespace zerobox::cuda {

bool CudaDevice::IsPinned(const void* data) const {
  const auto* byte = static_cast<const std::byte*>(data);
  return byte >= pinned_memory_ && byte < pinned_memory_ + pinned_bytes_;
}

void CudaDevice::Copy(StreamId stream, Buffer to, Buffer from) {
  assert(to.dtype == from.dtype && to.elements == from.elements);
  Enqueue(stream, "copy", [&](cudaStream_t handle) {
    if (to.empty()) return absl::OkStatus();
    return ToStatus(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()),
                                    cudaMemcpyDeviceToDevice, handle),
                    "cudaMemcpyAsync");
  });
}

void CudaDevice::Zero(StreamId stream, Buffer buffer) {
  if (IsPinned(buffer.data)) {
    return EnqueueOnHost(stream, "zero", [buffer] {
      std::memset(buffer.data, 0, static_cast<size_t>(buffer.bytes()));
      return absl::OkStatus();
    });
  }
  Enqueue(stream, "zero", [&](cudaStream_t handle) {
    if (buffer.empty()) return absl::OkStatus();
    return ToStatus(cudaMemsetAsync(buffer.data, 0, static_cast<size_t>(buffer.bytes()), handle),
                    "cudaMemsetAsync");
  });
}

void CudaDevice::CopyToHost(StreamId stream, void* to, Buffer from) {
  if (options_.recorder != nullptr) options_.recorder->OnCopy(rank(), stream, to, from);
  Enqueue(stream, "copy_to_host", [&](cudaStream_t handle) {
    if (from.empty()) return absl::OkStatus();
    copied_.to_host += from.bytes();
    if (!IsPinned(to)) {
      return StagedToHost(stream, static_cast<std::byte*>(to), from.data, from.bytes());
    }
    return ToStatus(cudaMemcpyAsync(to, from.data, static_cast<size_t>(from.bytes()),
                                    cudaMemcpyDeviceToHost, handle),
                    "cudaMemcpyAsync");
  });
}

void CudaDevice::CopyFromHost(StreamId stream, Buffer to, const void* from) {
  if (options_.recorder != nullptr) options_.recorder->OnCopy(rank(), stream, from, to);
  Enqueue(stream, "copy_from_host", [&](cudaStream_t handle) {
    if (to.empty()) return absl::OkStatus();
    copied_.from_host += to.bytes();
    if (!IsPinned(from)) {
      return StagedFromHost(stream, to.data, static_cast<const std::byte*>(from), to.bytes());
    }
    return ToStatus(cudaMemcpyAsync(to.data, from, static_cast<size_t>(to.bytes()),
                                    cudaMemcpyHostToDevice, handle),
                    "cudaMemcpyAsync");
  });
}

// The runtime itself would block, or read the memory at a time of its own, where it is not pinned.
// The stream's order alone keeps a piece in the staging memory until it has been passed on.
absl::Status CudaDevice::StagedToHost(StreamId stream, std::byte* to, const std::byte* from,
                                      int64_t bytes) {
  std::byte* staging = Of(stream).staging;
  for (int64_t begin = 0; begin < bytes; begin += kStagingBytes) {
    const auto piece = static_cast<size_t>(std::min(kStagingBytes, bytes - begin));
    absl::Status status = ToStatus(
        cudaMemcpyAsync(staging, from + begin, piece, cudaMemcpyDeviceToHost, Of(stream).handle),
        "cudaMemcpyAsync");
    if (!status.ok()) return status;
    status = LaunchOnHost(stream, "copy_to_host", -1, [to, begin, staging, piece] {
      std::memcpy(to + begin, staging, piece);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::StagedFromHost(StreamId stream, std::byte* to, const std::byte* from,
                                        int64_t bytes) {
  std::byte* staging = Of(stream).staging;
  for (int64_t begin = 0; begin < bytes; begin += kStagingBytes) {
    const auto piece = static_cast<size_t>(std::min(kStagingBytes, bytes - begin));
    absl::Status status = LaunchOnHost(stream, "copy_from_host", -1, [from, begin, staging, piece] {
      std::memcpy(staging, from + begin, piece);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    status = ToStatus(
        cudaMemcpyAsync(to + begin, staging, piece, cudaMemcpyHostToDevice, Of(stream).handle),
        "cudaMemcpyAsync");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace zerobox::cuda
