// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: a JSON object that maps a tensor's name to its dtype, shape and
// place, [begin, end) in bytes after the header; "__metadata__" maps strings to strings.
#ifndef ZEROBOX_CHECKPOINTS_SAFETENSORS_HEADER_H_
#define ZEROBOX_CHECKPOINTS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/safetensors.h"

namespace zerobox {

// Before the header: its length, little-endian.
inline constexpr int64_t kSafetensorsLengthBytes = 8;
// The reference implementation's limit, so that a broken length does not ask for gigabytes.
inline constexpr int64_t kSafetensorsMaxHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::vector<int64_t> begins;      // of each tensor, after the header
  std::map<std::string, std::string> metadata;
  int64_t data_bytes = 0;  // of all tensors
};

// The bytes of a tensor, -1 when a dimension is negative or the number does not fit.
int64_t BytesOf(const TensorInfo& tensor);

// The JSON text, padded with spaces so that the tensors begin at a multiple of 8 bytes; the tensors
// follow each other in the order given. InvalidArgument: a name given twice, a text that is not
// UTF-8, a shape whose bytes do not fit.
absl::StatusOr<std::string> FormatSafetensorsHeader(
    const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata);

// InvalidArgument unless the text is such a header and its tensors follow each other without a gap.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text);

// A name or text of a file, fit for a message: quoted, escaped, shortened.
std::string Quoted(const std::string& text);

}  // namespace zerobox

#endif  // ZEROBOX_CHECKPOINTS_SAFETENSORS_HEADER_H_
