// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/lexer.h"

#include <cctype>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace zerobox::ptx {
namespace {

bool BeginsWord(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}
bool IsOfWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '.';
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (SkipSpace()) {
      const char c = text_[at_];
      if (BeginsWord(c)) {
        Add(Token::Kind::kWord, EndOfWord());
      } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        AddNumber();
      } else if (c == '"') {
        const size_t end = text_.find('"', at_ + 1);
        if (end == text_.npos)
          return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": a string without end"));
        Add(Token::Kind::kString, end + 1);
      } else {
        Add(Token::Kind::kPunctuation, at_ + 1);
      }
    }
    tokens_.push_back({.line = line_});
    return std::move(tokens_);
  }

 private:
  // Behind spaces and comments; whether anything is left.
  bool SkipSpace() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') {
        ++line_;
        ++at_;
      } else if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return true;
      }
    }
    return false;
  }

  size_t EndOfWord() const {
    size_t end = at_ + 1;
    while (end < text_.size()) {
      if (IsOfWord(text_[end])) {
        ++end;
      } else if (text_.substr(end, 2) == "::") {  // shared::cta
        end += 2;
      } else {
        break;
      }
    }
    return end;
  }

  void AddNumber() {
    size_t end = at_;
    while (end < text_.size() && (IsOfWord(text_[end]))) ++end;
    std::string digits(text_.substr(at_, end - at_));
    const bool is_float = digits.size() > 2 && digits[0] == '0' &&
                          std::string_view("fFdD").find(digits[1]) != std::string_view::npos;
    const uint64_t number = is_float ? std::strtoull(digits.c_str() + 2, nullptr, 16)
                                     : std::strtoull(digits.c_str(), nullptr, 0);
    Add(Token::Kind::kNumber, end);
    tokens_.back().number = number;
  }

  void Add(Token::Kind kind, size_t end) {
    tokens_.push_back({.kind = kind, .text = text_.substr(at_, end - at_), .line = line_});
    at_ = end;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text) { return Lexer(text).Run(); }

}  // namespace zerobox::ptx
