// SPDX-License-Identifier: Apache-2.0
//
// Parts that several tables share.
#ifndef ZEROBOX_TRAINER_TABLE_ROWS_H_
#define ZEROBOX_TRAINER_TABLE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/device/memory.h"
#include "trainer/text.h"

namespace zerobox {

// "1 device", "1,234 devices".
std::string Plural(int64_t count, const std::string& one, const std::string& many);
std::string TableTitle(const std::string& text, const Style& style);
// Underscores as spaces.
std::string Spaced(std::string_view name);
// "=" where measured is what was predicted, else a loud one.
std::string Agreement(bool known, bool equal, const Style& style);
// `first`, then the words of `text`, broken before column kScreenWidth; further lines begin at
// column `indent`.
std::string Lines(const std::string& first, const std::string& text, int indent);

// Of at least one.
double Median(std::vector<double> numbers);

// Ranks that show the same numbers, largest group first.
struct RankGroup {
  std::vector<size_t> ranks;
};
template <typename Same>
std::vector<RankGroup> GroupRanks(size_t ranks, const Same& same) {
  std::vector<RankGroup> groups;
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const RankGroup& candidate) {
      return same(candidate.ranks.front(), rank);
    });
    if (group == groups.end()) group = groups.insert(groups.end(), RankGroup{});
    group->ranks.push_back(rank);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const RankGroup& a, const RankGroup& b) {
    return a.ranks.size() > b.ranks.size();
  });
  return groups;
}

// "each of 4 devices", "device 2".
std::string GroupName(const RankGroup& group, size_t all);

// Parameters, gradients and optimizer states at the peak.
int64_t StateBytes(const Ledger& ledger);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TABLE_ROWS_H_
