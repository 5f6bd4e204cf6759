// SPDX-License-Identifier: Apache-2.0
//
// Files of named tensors in the safetensors format (an 8-byte little-endian header length, a JSON
// header, the tensors' bytes): https://github.com/huggingface/safetensors.
#ifndef ZEROBOX_CHECKPOINTS_SAFETENSORS_H_
#define ZEROBOX_CHECKPOINTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/device/buffer.h"

namespace zerobox {

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t elements() const;  // -1 when a dimension is negative or the product does not fit
};

// Writes tensors one at a time, in the order declared, into a file that takes the name `path` only
// in Finish (checkpoints/new_file.h): a file of that name is always whole. Destroyed before Finish:
// nothing is left. After a failure every call returns it again.
class SafetensorsWriter {
 public:
  // InvalidArgument: a name given twice, text that is not UTF-8, `path` is there and not a regular
  // file. Where the file system can, the room is reserved: a full disk is an error here.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<TensorInfo> tensors,
      const std::map<std::string, std::string>& metadata);
  virtual ~SafetensorsWriter() = default;
  // The whole of the next tensor.
  virtual absl::Status Write(std::span<const std::byte> bytes) = 0;
  // Flushes to disk and gives it its name. FailedPrecondition when tensors are missing.
  virtual absl::Status Finish() = 0;
};

// Maps a file; bad headers are errors that say what is wrong with which tensor, never crashes.
// Takes the dtypes of ops/device/buffer.h and at most 32 dimensions.
class SafetensorsReader {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& path);
  virtual ~SafetensorsReader() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;  // in the order of their bytes
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  // The bytes of a tensor, valid as long as the reader. NotFound, or InvalidArgument when dtype or
  // shape differ.
  virtual absl::StatusOr<std::span<const std::byte>> Tensor(const TensorInfo& wanted) const = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_CHECKPOINTS_SAFETENSORS_H_
