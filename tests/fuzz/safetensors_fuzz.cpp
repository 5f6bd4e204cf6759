// SPDX-License-Identifier: Apache-2.0
//
// A safetensors file, and the text of its header alone, which stays whole more often. What is
// accepted: its tensors are the bytes behind the header, one after the other; and its header is the
// same when it is written and read again.
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/safetensors.h"
#include "checkpoints/safetensors_header.h"
#include "tests/fuzz/target.h"

namespace zerobox::fuzz {
namespace {

bool Same(const TensorInfo& a, const TensorInfo& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
}

void CheckHeader(std::string_view text) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text);
  if (!header.ok()) return ExpectRefused(header.status());
  std::set<std::string> names;
  int64_t end = 0;
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    const TensorInfo& tensor = header->tensors[i];
    Expect(names.insert(tensor.name).second, "no name is there twice");
    Expect(header->begins.at(i) == end, "a tensor begins where the one before ends");
    Expect(BytesOf(tensor) >= 0, "a tensor's bytes can be counted");
    end += BytesOf(tensor);
  }
  Expect(header->data_bytes == end, "the data are the tensors");

  const absl::StatusOr<std::string> written =
      FormatSafetensorsHeader(header->tensors, header->metadata);
  Expect(written.ok(), "what was read can be written");
  const absl::StatusOr<SafetensorsHeader> again = ParseSafetensorsHeader(*written);
  Expect(again.ok() && again->metadata == header->metadata &&
             again->tensors.size() == header->tensors.size(),
         "what was written is read again");
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    Expect(Same(again->tensors[i], header->tensors[i]), "a tensor is the same");
  }
}

void CheckFile(std::string_view contents) {
  const MemoryFile file(contents);
  const absl::StatusOr<std::unique_ptr<SafetensorsReader>> reader =
      SafetensorsReader::Open(file.path());
  if (!reader.ok()) return ExpectRefused(reader.status());
  std::string data;
  for (const TensorInfo& tensor : (*reader)->tensors()) {
    const absl::StatusOr<std::span<const std::byte>> bytes = (*reader)->Tensor(tensor);
    Expect(bytes.ok(), "every tensor can be read");
    data.append(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    TensorInfo other = tensor;
    other.shape.push_back(2);
    ExpectRefused((*reader)->Tensor(other).status());
  }
  uint64_t length = 0;
  std::memcpy(&length, contents.data(), sizeof(length));
  Expect(contents.substr(sizeof(length) + length) == data, "the tensors are what the file holds");
}

}  // namespace

void Check(std::string_view input) {
  CheckHeader(input);
  CheckFile(input);
}

std::vector<std::string> Seeds() {
  const std::vector<TensorInfo> tensors = {{"a", DType::kFloat32, {2, 3}},
                                           {"empty", DType::kInt64, {0, 7}},
                                           {"h.0.b", DType::kBFloat16, {}},
                                           {"\xc3\xa9\n", DType::kFloat64, {1}}};
  std::vector<std::string> seeds = {"{}", R"({"__metadata__":{}})",
                                    std::string("\2\0\0\0\0\0\0\0{}", 10)};
  for (const size_t count : {size_t{1}, tensors.size()}) {
    const std::vector<TensorInfo> some(tensors.begin(), tensors.begin() + count);
    const std::string header =
        FormatSafetensorsHeader(some, {{"format", "pt"}, {"n", "1"}}).value();
    seeds.push_back(header);
    const uint64_t length = header.size();
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    seeds.push_back(file + header + std::string(ParseSafetensorsHeader(header)->data_bytes, 'x'));
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {R"("__metadata__":{)",
          R"("dtype":"F32")",
          R"("dtype":"BF16")",
          R"("shape":[)",
          R"("data_offsets":[)",
          R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]})",
          "9223372036854775807",
          "9223372036854775808",
          "-1",
          "1e3",
          "\\u0000",
          "\\ud800",
          "},",
          "\"\""};
}

}  // namespace zerobox::fuzz
