// SPDX-License-Identifier: Apache-2.0
#include "checkpoints/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace zerobox {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kMaxDimensions = 32;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr std::array<DTypeName, 5> kDTypes = {{{DType::kFloat32, "F32"},
                                               {DType::kBFloat16, "BF16"},
                                               {DType::kFloat64, "F64"},
                                               {DType::kInt32, "I32"},
                                               {DType::kInt64, "I64"}}};

const char* NameInFile(DType dtype) {
  return std::find_if(kDTypes.begin(), kDTypes.end(),
                      [&](const DTypeName& entry) { return entry.dtype == dtype; })
      ->name;
}

// A tensor as the header describes it.
struct Entry {
  TensorInfo tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

// Takes the header's JSON event by event and stops at the first that does not belong there. A tree
// of values would forget names given twice, and would grow with whatever a broken file nests.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    if (level_ == Level::kFile) {
      level_ = Level::kHeader;
      return true;
    }
    if (level_ != Level::kHeader) return Unexpected("an object");
    if (name_ == kMetadata) {
      level_ = Level::kMetadata;
    } else {
      level_ = Level::kTensor;
      fields_.clear();
      offsets_.clear();
      entries_.emplace_back();
      entries_.back().tensor.name = name_;
    }
    return true;
  }

  bool key(std::string& key) override {
    if (level_ == Level::kHeader) {
      name_ = key;
      return names_.insert(key).second || Fail(absl::StrCat(Quoted(key), " is there twice"));
    }
    field_ = key;
    if (level_ == Level::kMetadata) {
      return metadata_.try_emplace(key).second ||
             Fail(absl::StrCat(Quoted(kMetadata), " holds ", Quoted(key), " twice"));
    }
    if ((key == "dtype" || key == "shape" || key == "data_offsets") && fields_.insert(key).second) {
      return true;
    }
    return Fail(absl::StrCat("tensor ", Quoted(name_), " has a field ", Quoted(key),
                             " that is unknown or there twice"));
  }

  bool string(std::string& value) override {
    if (level_ == Level::kMetadata) {
      metadata_[field_] = value;
      return true;
    }
    if (level_ != Level::kTensor || field_ != "dtype") return Unexpected("a text");
    for (const auto& [dtype, name] : kDTypes) {
      if (value != name) continue;
      entries_.back().tensor.dtype = dtype;
      return true;
    }
    return Fail(absl::StrCat("tensor ", Quoted(name_), " has the dtype ", Quoted(value),
                             "; F32, BF16, F64, I32 and I64 are known"));
  }

  bool start_array(size_t) override {
    if (level_ != Level::kTensor || field_ == "dtype") return Unexpected("a list");
    level_ = Level::kList;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::kList) return Unexpected("a number");
    if (value > static_cast<uint64_t>(kMaxInt64)) return Unexpected("a number above 2^63");
    std::vector<int64_t>& list = field_ == "shape" ? entries_.back().tensor.shape : offsets_;
    if (list.size() == kMaxDimensions) return Unexpected("a list that long");
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    level_ = Level::kTensor;
    return true;
  }

  bool end_object() override {
    const bool whole = level_ != Level::kTensor || FinishTensor();
    level_ = level_ == Level::kHeader ? Level::kFile : Level::kHeader;
    return whole;
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const std::string&) override {
    return Unexpected("a number that is not an integer below 2^63");
  }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail(absl::StrCat("it is no JSON from byte ", position, " on"));
  }

 private:
  enum class Level : uint8_t { kFile, kHeader, kMetadata, kTensor, kList };

  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }

  bool Unexpected(const char* found) {
    const bool in_entry = level_ != Level::kFile && level_ != Level::kHeader;
    return Fail(absl::StrCat("found ", found, " at ", Quoted(name_), in_entry ? ", " : "",
                             in_entry ? Quoted(field_) : ""));
  }

  bool FinishTensor() {
    if (fields_.size() != 3 || offsets_.size() != 2) {
      return Fail(absl::StrCat("tensor ", Quoted(name_),
                               " lacks one of dtype, shape and two data_offsets"));
    }
    entries_.back().begin = offsets_[0];
    entries_.back().end = offsets_[1];
    return true;
  }

  Level level_ = Level::kFile;
  std::string name_;   // the last key of the header
  std::string field_;  // the last key within
  std::set<std::string> names_;
  std::set<std::string> fields_;  // of this tensor
  std::vector<int64_t> offsets_;  // of this tensor
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  std::string error_;
};

absl::Status BadHeader(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("bad safetensors header: ", what));
}

// Checks the places of the tensors, sorted by where they begin.
absl::StatusOr<SafetensorsHeader> Place(std::vector<Entry>&& entries) {
  SafetensorsHeader header;
  for (auto& [tensor, begin, end] : entries) {
    const int64_t bytes = BytesOf(tensor);
    if (bytes < 0) {
      return BadHeader(absl::StrCat("tensor ", Quoted(tensor.name), " of shape [",
                                    absl::StrJoin(tensor.shape, ", "), "] is beyond 2^63 bytes"));
    }
    if (end < begin || end - begin != bytes) {
      return BadHeader(absl::StrCat("tensor ", Quoted(tensor.name), " is at [", begin, ", ", end,
                                    ") and its dtype and shape take ", bytes, " bytes"));
    }
    if (begin != header.data_bytes) {
      return BadHeader(absl::StrCat("tensor ", Quoted(tensor.name), " begins at ", begin, ", ",
                                    begin < header.data_bytes
                                        ? "within the one before, which ends at "
                                        : "with a gap to the one before, which ends at ",
                                    header.data_bytes));
    }
    header.begins.push_back(begin);
    header.data_bytes = end;
    header.tensors.push_back(std::move(tensor));
  }
  return header;
}

// A JSON string. Bytes that are not UTF-8 become U+FFFD: the caller compares.
std::string JsonString(const std::string& text) {
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

std::string Quoted(const std::string& text) {
  constexpr size_t kLongest = 100;
  const std::string escaped = absl::CEscape(text.substr(0, kLongest));
  return absl::StrCat("'", escaped, text.size() > kLongest ? "..." : "", "'");
}

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(product, dimension, &product)) return -1;
  }
  return product;
}

int64_t BytesOf(const TensorInfo& tensor) {
  const int64_t elements = tensor.elements();
  return elements < 0 || elements > kMaxInt64 / SizeOf(tensor.dtype)
             ? -1
             : elements * SizeOf(tensor.dtype);
}

absl::StatusOr<std::string> FormatSafetensorsHeader(
    const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    const std::string pairs = absl::StrJoin(metadata, ",", [](std::string* out, const auto& pair) {
      absl::StrAppend(out, JsonString(pair.first), ":", JsonString(pair.second));
    });
    entries.push_back(absl::StrCat(JsonString(kMetadata), ":{", pairs, "}"));
  }
  int64_t begin = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t bytes = BytesOf(tensor);
    if (bytes < 0 || bytes > kMaxInt64 - begin || tensor.name == kMetadata) {
      return BadHeader(absl::StrCat("tensor ", Quoted(tensor.name), " of shape [",
                                    absl::StrJoin(tensor.shape, ", "),
                                    "] has a reserved name or too many bytes"));
    }
    entries.push_back(absl::StrCat(JsonString(tensor.name), R"(:{"dtype":")",
                                   NameInFile(tensor.dtype), R"(","shape":[)",
                                   absl::StrJoin(tensor.shape, ","), R"(],"data_offsets":[)", begin,
                                   ",", begin + bytes, "]}"));
    begin += bytes;
  }
  std::string text = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  // What was written is read back: this finds names given twice and texts that are not UTF-8.
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text);
  if (!header.ok()) return header.status();
  const bool same_names =
      std::equal(tensors.begin(), tensors.end(), header->tensors.begin(), header->tensors.end(),
                 [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (!same_names || metadata != header->metadata) {
    return BadHeader("a name or a text of the metadata is not UTF-8");
  }
  return text;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kSafetensorsMaxHeaderBytes) {
    return BadHeader(absl::StrCat("it takes ", text.size(), " bytes, and at most ",
                                  kSafetensorsMaxHeaderBytes, " are allowed"));
  }
  if (!text.starts_with('{')) return BadHeader("it does not begin with {");
  // The parser would take a zero byte for the end of the text.
  if (text.find('\0') != std::string_view::npos) return BadHeader("it holds a zero byte");
  HeaderHandler handler;
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) return BadHeader(handler.error());
  std::vector<Entry>& entries = handler.entries();
  // By where they begin, and an empty tensor before the one that begins at the same place.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  absl::StatusOr<SafetensorsHeader> header = Place(std::move(entries));
  if (header.ok()) header->metadata = std::move(handler.metadata());
  return header;
}

}  // namespace zerobox
