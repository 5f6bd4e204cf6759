// SPDX-License-Identifier: Apache-2.0
//
// The texts of a report's files.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trainer/embedded.h"
#include "trainer/report.h"

namespace zerobox {
namespace {

constexpr std::string_view kFolder = "trainer/report/";
constexpr std::string_view kDataLine = "{report-data}";

// "page.js" of a line that holds only /*{page.js}*/, else "".
std::string_view PastedName(std::string_view line) {
  if (!line.starts_with("/*{") || !line.ends_with("}*/")) return {};
  return line.substr(3, line.size() - 6);
}

std::string_view Stripped(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
}

bool SafeInAShell(std::string_view text) {
  return !text.empty() && text.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              "-_=,.:/+%@") == std::string_view::npos;
}

}  // namespace

std::string ReportText(const ReportObject& report) {
  return report.dump(-1, ' ', false, ReportObject::error_handler_t::replace) + "\n";
}

std::string ReportPage(const ReportObject& report) {
  const std::string_view page = Embedded(absl::StrCat(std::string(kFolder), "template.html"));
  std::string text;
  for (size_t begin = 0; begin < page.size();) {
    const size_t end = std::min(page.find('\n', begin), page.size());
    const std::string_view line = page.substr(begin, end - begin);
    const std::string_view stripped = Stripped(line);
    if (const std::string_view name = PastedName(stripped); !name.empty()) {
      text += Embedded(std::string(kFolder) + std::string(name));
    } else if (stripped == kDataLine) {
      // A "<" occurs in strings only, and there it must not begin "</script>".
      text += absl::StrReplaceAll(ReportText(report), {{"<", "\\u003c"}});
    } else {
      text += line;
    }
    if (!text.ends_with('\n')) text += '\n';
    begin = end + 1;
  }
  return text;
}

std::string CommandText(std::span<const std::string> arguments) {
  std::string text = "zerobox";
  for (const std::string& argument : arguments) {
    absl::StrAppend(&text, " ",
                    SafeInAShell(argument)
                        ? argument
                        : absl::StrCat("'", absl::StrReplaceAll(argument, {{"'", "'\\''"}}), "'"));
  }
  return text;
}

}  // namespace zerobox
