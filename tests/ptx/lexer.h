// SPDX-License-Identifier: Apache-2.0
//
// The words of PTX (PTX ISA, "Syntax"), the assembly language that nvcc makes of a kernel.
#ifndef ZEROBOX_TESTS_PTX_LEXER_H_
#define ZEROBOX_TESTS_PTX_LEXER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace zerobox::ptx {

struct Token {
  enum class Kind : uint8_t { kWord, kNumber, kString, kPunctuation, kEnd };
  Kind kind = Kind::kEnd;
  std::string_view text;  // of the whole text; dots belong to words: ".reg", "add.s32", "%tid.x"
  uint64_t number = 0;    // the bits, of 0f3F800000 those of the float; of "9.0" nothing
  int line = 0;

  bool Is(std::string_view word) const { return kind != Kind::kString && text == word; }
};

// The last token is kEnd. Tokens point into `text`.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text);

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_LEXER_H_
