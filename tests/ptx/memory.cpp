// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/memory.h"

#include <algorithm>

namespace zerobox::ptx {

void GlobalMemory::Add(uint64_t begin, size_t bytes) {
  const auto behind =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](uint64_t address, const Range& range) { return address < range.begin; });
  ranges_.insert(behind, {begin, begin + bytes});
}

void GlobalMemory::Remove(const void* array) {
  std::erase_if(ranges_, [&](const Range& range) {
    return range.begin == reinterpret_cast<uint64_t>(array);
  });
}

bool GlobalMemory::Contains(uint64_t address, size_t bytes) const {
  const auto is_in = [&](const Range& range) {
    return address >= range.begin && address < range.end && range.end - address >= bytes;
  };
  if (last_ < ranges_.size() && is_in(ranges_[last_])) return true;
  auto range = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uint64_t a, const Range& r) { return a < r.begin; });
  // Arrays of no bytes may begin where another does.
  while (range != ranges_.begin()) {
    --range;
    if (is_in(*range)) {
      last_ = static_cast<size_t>(range - ranges_.begin());
      return true;
    }
    if (range->begin != range->end) return false;
  }
  return false;
}

}  // namespace zerobox::ptx
