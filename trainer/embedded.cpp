// SPDX-License-Identifier: Apache-2.0
#include "trainer/embedded.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

// From the assembler file that the Makefile writes.
extern "C" {
struct ZeroboxEmbedded {
  const char* path;
  size_t path_size;
  const char* bytes;
  size_t size;
};
extern const ZeroboxEmbedded kZeroboxEmbeddedFiles[];
extern const size_t kZeroboxEmbeddedCount;
}

namespace zerobox {

std::span<const EmbeddedFile> EmbeddedFiles() {
  static auto* files = [] {
    auto* listed = new std::vector<EmbeddedFile>;
    for (size_t i = 0; i < kZeroboxEmbeddedCount; ++i) {
      const ZeroboxEmbedded& file = kZeroboxEmbeddedFiles[i];
      listed->push_back({{file.path, file.path_size}, {file.bytes, file.size}});
    }
    return listed;
  }();
  return *files;
}

std::string_view Embedded(std::string_view path) {
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.path == path) return file.bytes;
  }
  std::fprintf(stderr, "zerobox: %.*s is not in this program: embedded_files lacks it\n",
               static_cast<int>(path.size()), path.data());
  std::abort();
}

}  // namespace zerobox
