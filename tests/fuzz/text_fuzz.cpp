// SPDX-License-Identifier: Apache-2.0
//
// What is made of a text that came from outside: a size in bytes, the name of a flag, a word of a
// shell, something to show on a terminal.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "ops/view.h"
#include "tests/fuzz/target.h"
#include "trainer/flags.h"
#include "trainer/report.h"
#include "trainer/text.h"

namespace zerobox::fuzz {
namespace {

void CheckSize(std::string_view input) {
  const absl::StatusOr<Bytes> size = ParseBytes(input);
  if (!size.ok()) return ExpectRefused(size.status());
  Expect(size->value >= 0, "a size is not negative");
  const absl::StatusOr<Bytes> again = ParseBytes(AbslUnparseFlag(*size));
  Expect(again.ok() && again->value == size->value, "a size that is written is read again");
}

void CheckNames(std::string_view input) {
  // To look for a name takes its length times that of all flags' names.
  for (const std::string& name : NearestFlags(input.substr(0, 30), kTrainCommand)) {
    Expect((FindFlag(name)->commands & kTrainCommand) != 0,
           "what is near is a flag of the command");
  }
  const std::string_view a = input.substr(0, input.size() / 2), b = input.substr(a.size());
  const int distance = EditDistance(a, b);
  Expect(distance == EditDistance(b, a), "it is as far back");
  Expect((distance == 0) == (a == b), "only what is the same is no distance away");
  Expect(distance <= static_cast<int>(b.size()), "no more than to replace all");
}

// The words of a line as a POSIX shell splits it: blanks, '...', and \ before one character.
std::vector<std::string> ShellWords(std::string_view line) {
  std::vector<std::string> words;
  bool in_word = false, quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (!quoted && c == ' ') {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '\'') {
      quoted = !quoted;
    } else if (!quoted && c == '\\') {
      words.back() += line[++i];
    } else {
      words.back() += c;
    }
  }
  return words;
}

void CheckShell(std::string_view input) {
  std::vector<std::string> words = absl::StrSplit(View(input), '\n');
  const std::string line = CommandText(words);
  words.insert(words.begin(), "zerobox");
  Expect(ShellWords(line) == words, "a shell reads the same arguments");
}

void CheckScreen(std::string_view input) {
  const std::string printable = Printable(input);
  // Another reader's opinion: nlohmann/json throws where a text is not UTF-8.
  try {
    (void)nlohmann::json(printable).dump();
  } catch (const nlohmann::json::exception&) {
    Expect(false, "what is printable is UTF-8");
  }
  for (const unsigned char c : printable) {
    Expect((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t', "and has no control character");
  }
  Expect(Printable(printable) == printable, "and stays as it is");
  for (const int columns : {8, 30, kScreenWidth}) {
    Expect(Columns(Shortened(input, columns)) <= columns, "what is shortened fits");
  }
  Expect(WithoutColor(input).size() <= input.size(), "to take out colours adds nothing");
}

}  // namespace

void Check(std::string_view input) {
  CheckSize(input);
  CheckNames(input);
  CheckShell(input);
  CheckScreen(input);
}

std::vector<std::string> Seeds() {
  return {
      "512MiB",
      "1.5 GB",
      "18446744073709551615",
      "8TiB",
      "0.1",
      "zero_stge",
      "it's $HOME\n\n-",
      "runs/a folder/with-a-long-name/of-many-characters/and-\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
      "\x1b[31mred\x1b[0m\x9b",
      "\xc2\x9b\xc0\x9b\xed\xa0\x80\xf4\x90\x80\x80"};
}

std::vector<std::string> Words() {
  return {"KiB",      "MiB",          "gb",
          "TiB",      "e9",           "\x1b[",
          "\xc2\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80",
          "n_layer",  "memory",       "'",
          "\\"};
}

}  // namespace zerobox::fuzz
