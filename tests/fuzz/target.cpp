// SPDX-License-Identifier: Apache-2.0
//
// The functions that libFuzzer calls, and those that targets do.
#include "tests/fuzz/target.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace zerobox::fuzz {
namespace {

// Each seed as a file of the folder, and the words as libFuzzer's dictionary, FOLDER.dict.
void WriteSeeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : Seeds()) {
    std::ofstream(absl::StrCat(folder, "/seed-", ++number), std::ios::binary) << seed;
  }
  std::ofstream words(folder + ".dict");
  for (const std::string& word : Words()) {
    words << '"';
    for (const char c : word) {
      const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
      words << (plain ? std::string(1, c) : absl::StrCat("\\x", absl::BytesToHexString({&c, 1})));
    }
    words << "\"\n";
  }
}

}  // namespace

void Expect(bool so, std::string_view what) {
  if (so) return;
  std::fprintf(stderr, "fuzz: not so: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void ExpectRefused(const absl::Status& status) {
  Expect(!status.ok() && !status.message().empty(), "an error has a message");
}

MemoryFile::MemoryFile(std::string_view contents) : fd_(memfd_create("input", MFD_CLOEXEC)) {
  Expect(fd_ >= 0 &&
             write(fd_, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()),
         "a file in memory can be written");
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

}  // namespace zerobox::fuzz

// PROGRAM --seeds FOLDER writes the seeds and ends.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::string_view((*argv)[1]) == "--seeds") {
    zerobox::fuzz::WriteSeeds((*argv)[2]);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zerobox::fuzz::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
