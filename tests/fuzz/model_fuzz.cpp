// SPDX-License-Identifier: Apache-2.0
//
// The model of a run folder as `zerobox sample` reads it. An input is the header of the file, to
// which the right length and as many bytes as it asks for are added, and behind a zero byte a
// pattern for these bytes. The model writes what it was asked for, or is refused with a message;
// and neither takes more memory than the file's size gives reason for.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "checkpoints/safetensors.h"
#include "checkpoints/safetensors_header.h"
#include "tests/fuzz/target.h"
#include "tests/process.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/train.h"

namespace zerobox::fuzz {
namespace {

// Above it a file has no data, and so is refused.
constexpr int64_t kMostData = 1 << 16;

std::string FileOf(std::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(0, end);
  const std::string_view pattern = input.substr(std::min(end + 1, input.size()));
  const uint64_t length = text.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += text;
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text);
  if (!header.ok() || header->data_bytes > kMostData) return file;
  for (int64_t i = 0; i < header->data_bytes; ++i) {
    file += pattern.empty() ? '\0' : pattern[i % pattern.size()];
  }
  return file;
}

// A run folder whose model is a link to the file.
const std::string& RunFolder(const std::string& file) {
  static TemporaryFolder folder;
  const std::string link = ModelPath(folder.path());
  std::filesystem::remove(link);
  std::filesystem::create_symlink(file, link);
  return folder.path();
}

std::string HeaderOf(const ModelConfig& config, DType dtype) {
  const TemporaryFolder folder;
  auto writer = CreateModelFile(folder.path(), config, dtype).value();
  for (const ParameterSpec& spec : GptParameters(config)) {
    const std::vector<std::byte> zeros(spec.elements() * SizeOf(dtype));
    Expect(writer->Write(zeros).ok(), "a model can be written");
  }
  Expect(writer->Finish().ok(), "a model can be written");
  const std::string file = ReadFile(ModelPath(folder.path()));
  return file.substr(kSafetensorsLengthBytes, file.find("}  ") + 1 - kSafetensorsLengthBytes);
}

}  // namespace

void Check(std::string_view input) {
  const MemoryFile file(FileOf(input));
  const SampleSettings settings = {.run = RunFolder(file.path()), .bytes = 3};
  std::string text;
  const absl::Status status = Sample(settings, [&text](std::string_view piece) {
    text += piece;
    return true;
  });
  if (!status.ok()) return ExpectRefused(status);
  Expect(text.size() >= 3, "three tokens are written, as bytes or numbers");
}

std::vector<std::string> Seeds() {
  const ModelConfig small = {.n_layer = 1, .n_head = 1, .n_embd = 1, .seq_len = 2, .vocab_size = 3};
  const ModelConfig wider = {
      .n_layer = 2, .n_head = 2, .n_embd = 4, .seq_len = 8, .vocab_size = 300};
  const std::string header = HeaderOf(small, DType::kFloat32);
  const std::string absurd =
      absl::StrReplaceAll(header, {{R"("n_layer":"1")", R"("n_layer":"1048576")"},
                                   {R"("n_embd":"1")", R"("n_embd":"1048576")"}});
  return {header, header + std::string("\0\x3c\0\0\0\x3f", 6),
          HeaderOf(wider, DType::kBFloat16) + std::string("\0\x80\x3f\x12\x3e", 5),
          header + std::string("\0\xff\xff\xff\x7f", 5), absurd};
}

std::vector<std::string> Words() {
  return {R"("n_layer":")",
          R"("n_head":")",
          R"("n_embd":")",
          R"("seq_len":")",
          R"("vocab_size":")",
          "1048576",
          "1000000",
          "99999",
          "BF16",
          "F64",
          "-1",
          "0"};
}

}  // namespace zerobox::fuzz
