// SPDX-License-Identifier: Apache-2.0
//
// What a fuzz target is: `make fuzz` gives its Check inputs that libFuzzer makes up, from the seeds
// and the words, and looks for one that crashes, hangs, takes much memory or fails an Expect.
#ifndef ZEROBOX_TESTS_FUZZ_TARGET_H_
#define ZEROBOX_TESTS_FUZZ_TARGET_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace zerobox::fuzz {

//---- What each target defines

// Any bytes. The same input must always do the same.
void Check(std::string_view input);
// Good inputs to begin with, and bad ones of interest.
std::vector<std::string> Seeds();
// Pieces of text that inputs are made of.
std::vector<std::string> Words();

//---- What it is given

// Ends the program with this message, unless it is so.
void Expect(bool so, std::string_view what);
// An error that says something.
void ExpectRefused(const absl::Status& status);

// A regular file that lies in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view contents);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const;

 private:
  int fd_;
};

}  // namespace zerobox::fuzz

#endif  // ZEROBOX_TESTS_FUZZ_TARGET_H_
