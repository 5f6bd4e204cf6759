// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_memory.h"

#include <malloc.h>

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "tests/emulation/access_checker.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace zerobox::fake_cuda {
namespace {

constexpr size_t kAlignment = 256;  // as cudaMalloc's

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// Runs come by the hundred: what they take is kept for the next, whose pages the system need not
// clear.
Memory::Memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

void Memory::Clear() {
  for (const auto& [data, block] : blocks_) Release(data, block.allocation);
  blocks_.clear();
  name_ = nullptr;
}

void* Memory::Allocate(size_t bytes, int device, bool pinned) {
  char* data = static_cast<char*>(std::aligned_alloc(kAlignment, RoundUp(bytes)));
  std::memset(data, 0xff, bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(data + bytes, RoundUp(bytes) - bytes);
#endif
  if (auto* checker = simt::access_checker()) {
    checker->Watch(data, bytes, pinned ? simt::MemoryKind::kPinned : simt::MemoryKind::kDevice);
    // The host writes pinned memory as it likes, unseen.
    if (pinned) checker->HostAccess(data, bytes, simt::AccessKind::kWrite);
  }
  blocks_[data] = {{bytes, device, pinned}, {}};
  return data;
}

void Memory::Release(const char* data, [[maybe_unused]] const Allocation& allocation) {
  if (auto* checker = simt::access_checker()) checker->Forget(data);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, RoundUp(allocation.bytes));
#endif
  std::free(const_cast<char*>(data));
}

bool Memory::Free(void* data) {
  const auto block = blocks_.find(static_cast<const char*>(data));
  if (block == blocks_.end()) return false;
  Release(block->first, block->second.allocation);
  blocks_.erase(block);
  return true;
}

Memory::Blocks::const_iterator Memory::Of(const void* data) const {
  auto block = blocks_.upper_bound(static_cast<const char*>(data));
  if (block == blocks_.begin()) return blocks_.end();
  --block;
  const char* end = block->first + block->second.allocation.bytes;
  return static_cast<const char*>(data) < end ? block : blocks_.end();
}

const Memory::Allocation* Memory::Find(const void* data, size_t bytes) const {
  const auto block = Of(data);
  if (block == blocks_.end()) return nullptr;
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - block->first);
  const Allocation& allocation = block->second.allocation;
  return bytes <= allocation.bytes - offset ? &allocation : nullptr;
}

int64_t Memory::LiveBytes(int device) const {
  int64_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    const Allocation& allocation = block.allocation;
    if (!allocation.pinned && allocation.device == device) {
      bytes += static_cast<int64_t>(allocation.bytes);
    }
  }
  return bytes;
}

Live Memory::live() const {
  Live live;
  for (const auto& [data, block] : blocks_) {
    const bool pinned = block.allocation.pinned;
    ++(pinned ? live.pinned_allocations : live.device_allocations);
    (pinned ? live.pinned_bytes : live.device_bytes) +=
        static_cast<int64_t>(block.allocation.bytes);
  }
  return live;
}

std::vector<Memory::Conflict> Memory::Look(const Access& access, const Ordered& ordered) const {
  std::vector<Conflict> conflicts;
  const auto block = Of(access.data);
  if (block == blocks_.end()) return conflicts;
  const char* begin = static_cast<const char*>(access.data);
  const char* end = begin + access.bytes;
  for (const Entry& entry : block->second.touched) {
    if (entry.begin >= end || begin >= entry.end || !(entry.write || access.write)) continue;
    if (!ordered(entry.number)) conflicts.push_back({entry.number, entry.write});
  }
  return conflicts;
}

std::vector<Memory::Conflict> Memory::Touch(const Access& access, uint32_t number,
                                            const Ordered& ordered) {
  const auto found = Of(access.data);
  if (access.bytes == 0 || found == blocks_.end()) return {};
  std::vector<Conflict> conflicts = Look(access, ordered);
  std::vector<Entry>& touched = blocks_.find(found->first)->second.touched;
  const char* begin = static_cast<const char*>(access.data);
  const char* end = begin + access.bytes;
  // What is ordered after this access is ordered after those that this one replaces.
  std::erase_if(touched, [&](const Entry& entry) {
    if (entry.begin < begin || end < entry.end) return false;
    return access.write || (!entry.write && ordered(entry.number));
  });
  touched.push_back({begin, end, access.write, number});
  return conflicts;
}

std::string Memory::Describe(const void* data) const {
  const auto block = Of(data);
  if (block == blocks_.end()) return "memory that is not allocated";
  const Allocation& allocation = block->second.allocation;
  std::string text =
      allocation.pinned ? "pinned memory" : "memory of device " + std::to_string(allocation.device);
  text += " +" + std::to_string(static_cast<const char*>(data) - block->first);
  const std::string name = name_ ? name_(data) : "";
  return name.empty() ? text : text + " (" + name + ")";
}

}  // namespace zerobox::fake_cuda
