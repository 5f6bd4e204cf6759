// SPDX-License-Identifier: Apache-2.0
#include "ops/device/memory.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/device/recorder.h"
#include "ops/view.h"

namespace zerobox {
namespace {

// The addresses of a pool that only counts: far apart, nowhere near zero, never followed.
constexpr int64_t kCountedRegionBytes = int64_t{1} << 60;

}  // namespace

int64_t RoundUpRegions(RegionBytes& regions) {
  int64_t total = 0;
  for (int64_t& bytes : regions) total += bytes = AllocatedBytes(bytes);
  return total;
}

std::string_view Name(Category category) {
  switch (category) {
    case Category::kParameters:
      return "parameters";
    case Category::kGradients:
      return "gradients";
    case Category::kOptimizerStates:
      return "optimizer_states";
    case Category::kActivations:
      return "activations";
    case Category::kActivationCheckpoints:
      return "activation_checkpoints";
    case Category::kCommunicationBuffers:
      return "communication_buffers";
    case Category::kWorkspace:
      return "workspace";
  }
  return "";
}

std::string_view Name(Region region) {
  switch (region) {
    case Region::kPersistent:
      return "persistent";
    case Region::kCheckpoints:
      return "checkpoints";
    case Region::kActivations:
      return "activations";
    case Region::kTransient:
      return "transient";
  }
  return "";
}

void Ledger::Add(Category category, int64_t bytes) {
  const auto c = static_cast<size_t>(category);
  live[c] += bytes;
  live_bytes += bytes;
  assert(live[c] >= 0);
  peak[c] = std::max(peak[c], live[c]);
  if (live_bytes > peak_bytes) {
    peak_bytes = live_bytes;
    at_peak = live;
  }
}

MemoryPool::MemoryPool() {
  for (size_t r = 0; r < kRegions; ++r) {
    begin_[r] = static_cast<uintptr_t>(kCountedRegionBytes) * (r + 1);
    capacity_[r] = kCountedRegionBytes;
  }
}

MemoryPool::MemoryPool(std::byte* base, const RegionBytes& regions) : capacity_(regions) {
  auto address = reinterpret_cast<uintptr_t>(base);
  assert(address % kAllocationAlignment == 0);
  for (size_t r = 0; r < kRegions; ++r) {
    assert(regions[r] >= 0 && regions[r] % kAllocationAlignment == 0);
    begin_[r] = address;
    address += static_cast<uintptr_t>(regions[r]);
  }
}

std::pair<MemoryPool::Blocks::const_iterator, MemoryPool::Blocks::const_iterator>
MemoryPool::BlocksOf(Region region) const {
  const uintptr_t begin = Begin(region);
  const uintptr_t end = begin + static_cast<uintptr_t>(capacity_[static_cast<size_t>(region)]);
  return {blocks_.lower_bound(begin), blocks_.lower_bound(end)};
}

uintptr_t MemoryPool::FindAddress(Region region, int64_t bytes) const {
  const auto [first, last] = BlocksOf(region);
  uintptr_t address = Begin(region);
  if (region != Region::kTransient) {
    if (first == last) return address;
    const auto newest = std::prev(last);
    return newest->first + static_cast<uintptr_t>(newest->second.bytes);
  }
  for (auto it = first; it != last; ++it) {
    if (it->first - address >= static_cast<uintptr_t>(bytes)) break;
    address = it->first + static_cast<uintptr_t>(it->second.bytes);
  }
  return address;
}

int64_t MemoryPool::LargestHole(Region region) const {
  const auto [first, last] = BlocksOf(region);
  uintptr_t address = Begin(region);
  uintptr_t largest = 0;
  for (auto it = first; it != last; ++it) {
    // In a stack only the end counts.
    if (region == Region::kTransient) largest = std::max(largest, it->first - address);
    address = it->first + static_cast<uintptr_t>(it->second.bytes);
  }
  const uintptr_t end =
      Begin(region) + static_cast<uintptr_t>(capacity_[static_cast<size_t>(region)]);
  return static_cast<int64_t>(std::max(largest, end - address));
}

absl::StatusOr<Buffer> MemoryPool::Allocate(Region region, Category category, DType dtype,
                                            int64_t elements, std::string_view label) {
  assert(elements >= 0);
  if (elements == 0) return Buffer{nullptr, 0, dtype};
  const auto r = static_cast<size_t>(region);
  const int64_t most = std::numeric_limits<int64_t>::max() - kAllocationAlignment;
  const bool countable = elements <= most / SizeOf(dtype);
  const int64_t bytes = countable ? AllocatedBytes(elements * SizeOf(dtype)) : most;
  const uintptr_t address = FindAddress(region, bytes);
  const auto offset = static_cast<int64_t>(address - Begin(region));
  if (!countable || bytes > capacity_[r] - offset) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for \"", View(label), "\" (", View(Name(category)), "): wanted ", elements, " ",
        View(Name(dtype)), " elements, ", bytes, " bytes, in the ", View(Name(region)),
        " region; found ", LargestHole(region), " bytes free in one piece of ", capacity_[r],
        ". Reserve more memory for it, or use less"));
  }
  blocks_.emplace(address, Block{region, category, bytes});
  high_water_[r] = std::max(high_water_[r], offset + bytes);
  ledger_.Add(category, bytes);
  const Buffer buffer{reinterpret_cast<std::byte*>(address), elements, dtype};
  if (poison_) {
    std::memset(buffer.data, 0xFF, static_cast<size_t>(bytes));
    poisoned_bytes_ += bytes;
  }
  if (recorder_ != nullptr) recorder_->OnAllocate(rank_, region, category, label, buffer);
  return buffer;
}

void MemoryPool::Free(const Buffer& buffer) {
  if (buffer.data == nullptr) return;
  const auto it = blocks_.find(reinterpret_cast<uintptr_t>(buffer.data));
  assert(it != blocks_.end() && "freed what is not allocated");
  if (it == blocks_.end()) return;
  const Block block = it->second;
  assert(block.bytes == AllocatedBytes(buffer.bytes()) && "freed a part of an allocation");
  assert((block.region == Region::kPersistent || block.region == Region::kTransient ||
          std::next(it) == BlocksOf(block.region).second) &&
         "freed what is not the newest of a stack");
  blocks_.erase(it);
  ledger_.Add(block.category, -block.bytes);
  if (recorder_ != nullptr) recorder_->OnFree(rank_, buffer);
}

}  // namespace zerobox
