// SPDX-License-Identifier: Apache-2.0
#include "ops/device/device.h"

namespace zerobox {

std::string_view Name(StreamId stream) {
  switch (stream) {
    case StreamId::kCompute:
      return "compute";
    case StreamId::kCommunication:
      return "communication";
    case StreamId::kToHost:
      return "to_host";
    case StreamId::kFromHost:
      return "from_host";
  }
  return "";
}

Buffer Device::Allocate(Region region, Category category, DType dtype, int64_t elements,
                        std::string_view label) {
  absl::StatusOr<Buffer> buffer = memory().Allocate(region, category, dtype, elements, label);
  if (buffer.ok()) return *buffer;
  Fail(buffer.status());
  return {nullptr, elements, dtype};
}

Buffer Device::AllocateOnHost(Category category, DType dtype, int64_t elements,
                              std::string_view label) {
  absl::StatusOr<Buffer> buffer =
      host_memory().Allocate(Region::kPersistent, category, dtype, elements, label);
  if (buffer.ok()) return *buffer;
  Fail(buffer.status());
  return {nullptr, elements, dtype};
}

}  // namespace zerobox
