// SPDX-License-Identifier: Apache-2.0
#include "trainer/table_rows.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ops/view.h"

namespace zerobox {

std::string Plural(int64_t count, const std::string& one, const std::string& many) {
  return absl::StrCat(WithCommas(count), " ", count == 1 ? one : many);
}

std::string TableTitle(const std::string& text, const Style& style) {
  return absl::StrCat("\n", style.Bold(text), "\n");
}

std::string GroupName(const RankGroup& group, size_t all) {
  if (group.ranks.size() == all && all == 1) return "the device";
  if (group.ranks.size() == all) return absl::StrCat("each of ", all, " devices");
  if (group.ranks.size() == 1) return absl::StrCat("device ", group.ranks.front());
  return absl::StrCat("each of the devices ", absl::StrJoin(group.ranks, ", "));
}

std::string Spaced(std::string_view name) { return absl::StrReplaceAll(View(name), {{"_", " "}}); }

std::string Agreement(bool known, bool equal, const Style& style) {
  if (!known) return " ";
  return equal ? style.Green("=") : style.Red("≠");
}

std::string Lines(const std::string& first, const std::string& text, int indent) {
  std::string lines = first;
  int column = Columns(first);
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const int columns = Columns(std::string_view(word.data(), word.size()));
    if (column + 1 + columns > kScreenWidth) {
      absl::StrAppend(&lines, "\n", std::string(static_cast<size_t>(indent) - 1, ' '));
      column = indent - 1;
    }
    absl::StrAppend(&lines, " ", word);
    column += 1 + columns;
  }
  return lines + "\n";
}

double Median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

int64_t StateBytes(const Ledger& ledger) {
  int64_t bytes = 0;
  for (const Category category :
       {Category::kParameters, Category::kGradients, Category::kOptimizerStates}) {
    bytes += ledger.at_peak[static_cast<size_t>(category)];
  }
  return bytes;
}

}  // namespace zerobox
