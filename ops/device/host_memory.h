// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: one reservation of ordinary memory of this machine, present from the start, so that
// no page fault happens while training.
#ifndef ZEROBOX_OPS_DEVICE_HOST_MEMORY_H_
#define ZEROBOX_OPS_DEVICE_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace zerobox {

class HostMemory {
 public:
  // ResourceExhausted, with wanted and available bytes, when the machine does not have it.
  static absl::StatusOr<HostMemory> Reserve(int64_t bytes);
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&&) = delete;
  ~HostMemory();

  std::byte* data() const { return data_; }  // page aligned, zeros; null when nothing is reserved

 private:
  HostMemory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  int64_t bytes_;
};

// What the machine can give without swapping: MemAvailable of /proc/meminfo; -1 when unknown.
int64_t AvailableMemory();

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_HOST_MEMORY_H_
