// SPDX-License-Identifier: Apache-2.0
//
// Two bytes of watched memory have a cell: who wrote last, and who read since; many readers are
// merged into one that stands for them all.
#include "tests/emulation/race.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/emulation/multiprocessor.h"
#include "tests/emulation/simt.h"
#include "tests/emulation/symbols.h"

namespace zerobox::simt {
namespace {

constexpr size_t kCellBytes = 2;
// In place of a number: more than one.
constexpr uint32_t kMany = 0xffffffff;
// Launches that belong to no stream operation are numbered from here.
constexpr uint32_t kFirstLaunch = 0x80000000;

struct Event {
  uint32_t operation = 0;  // of a stream, or a launch; 0: none
  uint32_t block = 0, block_barrier = 0;
  uint32_t warp = 0, warp_barrier = 0;
  uint32_t thread = 0;
  const void* code = nullptr;
  bool by_kernel = false;
};

Event EventOf(const Instant& who, uint32_t operation, const void* code) {
  return {.operation = operation,
          .block = who.block,
          .block_barrier = who.block_barrier,
          .warp = static_cast<uint32_t>(who.thread / kLanes),
          .warp_barrier = who.warp_barrier,
          .thread = who.thread,
          .code = code,
          .by_kernel = true};
}

// Whether synchronisation inside one grid orders them.
bool IsOrderedInGrid(const Event& earlier, const Event& later) {
  if (earlier.block != later.block) return false;
  if (earlier.block_barrier != later.block_barrier) return true;
  if (earlier.thread == later.thread) return true;
  return earlier.warp == later.warp && earlier.warp_barrier != later.warp_barrier;
}

// `readers`, of the same grid, become what also stands for `reader`. Readers that are ordered
// before the new one need no place: whoever is ordered after it is ordered after them.
void MergeReader(Event& readers, const Event& reader) {
  if (readers.block == reader.block && IsOrderedInGrid(readers, reader)) {
    readers = reader;
    return;
  }
  if (readers.block != reader.block) readers.block = kMany;
  if (readers.warp != reader.warp) readers.warp = kMany;
  readers.thread = kMany;
}

struct Cell {
  Event write, read;
  bool is_written = false;
  bool is_atomic = false;  // the last write was
};
struct Region {
  const char* begin;
  const char* end;
  MemoryKind kind;
  std::vector<Cell> cells;
};

const char* NameOf(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kShared:
      return "shared";
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kPinned:
      return "pinned";
  }
  return "?";
}

thread_local uint32_t current_operation = 0;

class RaceChecker final : public AccessChecker {
 public:
  void Watch(const void* memory, size_t bytes, MemoryKind kind) override {
    const char* begin = static_cast<const char*>(memory);
    auto region = std::make_unique<Region>(
        Region{begin, begin + bytes, kind, std::vector<Cell>((bytes + 1) / kCellBytes)});
    std::scoped_lock lock(mutex_);
    regions_[begin] = std::move(region);
    ++changes_;
  }
  void Forget(const void* memory) override {
    std::scoped_lock lock(mutex_);
    regions_.erase(static_cast<const char*>(memory));
    ++changes_;
  }
  void Access(const Instant& who, const void* memory, size_t bytes, AccessKind kind,
              const void* code) override {
    const uint32_t operation =
        current_operation != 0 ? current_operation : kFirstLaunch + who.launch;
    Check(EventOf(who, operation, code), memory, bytes, kind);
  }
  void HostAccess(const void* memory, size_t bytes, AccessKind kind) override {
    Check({.operation = current_operation}, memory, bytes, kind);
  }
  void SetOperation(uint32_t number) override { current_operation = number; }
  void SetStreamOrder(bool (*happens_before)(uint32_t, uint32_t),
                      std::string (*name)(uint32_t)) override {
    happens_before_ = happens_before;
    operation_name_ = name;
  }

 private:
  Region* Find(const void* memory);
  void Check(const Event& event, const void* memory, size_t bytes, AccessKind kind);
  void CheckCell(const Event& event, Region& region, size_t index, AccessKind kind);
  bool IsOrdered(const Event& earlier, const Event& later) const;
  bool OperationsAreOrdered(uint32_t earlier, uint32_t later) const {
    return earlier == 0 || later == 0 || happens_before_ == nullptr ||
           happens_before_(earlier, later);
  }
  std::string Print(const Event& event) const;

  std::mutex mutex_;
  std::map<const char*, std::unique_ptr<Region>> regions_;  // by begin
  std::atomic<uint64_t> changes_ = 1;                       // of regions_
  bool (*happens_before_)(uint32_t, uint32_t) = nullptr;
  std::string (*operation_name_)(uint32_t) = nullptr;
};

Region* RaceChecker::Find(const void* memory) {
  static thread_local Region* last = nullptr;
  static thread_local uint64_t last_changes = 0;
  const char* p = static_cast<const char*>(memory);
  if (last_changes == changes_ && p >= last->begin && p < last->end) return last;
  std::scoped_lock lock(mutex_);
  auto found = regions_.upper_bound(p);
  if (found == regions_.begin()) return nullptr;
  --found;
  if (p >= found->second->end) return nullptr;
  last = found->second.get();
  last_changes = changes_;
  return last;
}

void RaceChecker::Check(const Event& event, const void* memory, size_t bytes, AccessKind kind) {
  Region* region = bytes == 0 ? nullptr : Find(memory);
  if (region == nullptr) return;
  const size_t offset = static_cast<const char*>(memory) - region->begin;
  const size_t last = (offset + bytes - 1) / kCellBytes;
  for (size_t i = offset / kCellBytes; i <= last && i < region->cells.size(); ++i) {
    CheckCell(event, *region, i, kind);
  }
}

void RaceChecker::CheckCell(const Event& event, Region& region, size_t index, AccessKind kind) {
  Cell& cell = region.cells[index];
  const auto where = [&] {
    return absl::StrCat(" of ", NameOf(region.kind), " memory, byte ", index * kCellBytes, " of ",
                        region.end - region.begin, ": ");
  };
  if (kind == AccessKind::kRead && !cell.is_written) {
    Report(absl::StrCat("uninitialised read", where(), Print(event)));
    cell.is_written = true;
  }
  const bool both_atomic = kind == AccessKind::kAtomic && cell.is_atomic;
  if (!both_atomic && !IsOrdered(cell.write, event)) {
    Report(absl::StrCat("race", where(),
                        kind == AccessKind::kRead ? "read after write; " : "write after write; ",
                        Print(event), ", unordered after ", Print(cell.write)));
    cell.write = {};
  }
  if (kind == AccessKind::kRead) {
    if (cell.read.operation == event.operation && cell.read.by_kernel && event.by_kernel) {
      MergeReader(cell.read, event);
    } else if (OperationsAreOrdered(cell.read.operation, event.operation)) {
      cell.read = event;
    }  // else the earlier reader stays, which a writer must be ordered after
    return;
  }
  if (!IsOrdered(cell.read, event)) {
    Report(absl::StrCat("race", where(), "write after read; ", Print(event), ", unordered after ",
                        Print(cell.read)));
  }
  cell.read = {};
  cell.write = event;
  cell.is_written = true;
  cell.is_atomic = kind == AccessKind::kAtomic;
}

bool RaceChecker::IsOrdered(const Event& earlier, const Event& later) const {
  if (earlier.operation != later.operation) {
    return OperationsAreOrdered(earlier.operation, later.operation);
  }
  if (!earlier.by_kernel || !later.by_kernel) return true;
  return IsOrderedInGrid(earlier, later);
}

std::string RaceChecker::Print(const Event& event) const {
  std::string text;
  if (event.by_kernel) {
    const auto number = [](uint32_t n) { return n == kMany ? "many" : absl::StrCat(n); };
    absl::StrAppend(&text, "thread ", number(event.thread), " of block ", number(event.block));
    if (event.code != nullptr) absl::StrAppend(&text, " at ", SourceLine(event.code));
  } else {
    text = "a copy or the host";
  }
  if (event.operation != 0 && event.operation < kFirstLaunch && operation_name_ != nullptr) {
    absl::StrAppend(&text, " in ", operation_name_(event.operation));
  }
  return text;
}

struct Installer {
  Installer() {
    static RaceChecker checker;
    SetAccessChecker(&checker);
  }
} installer;

}  // namespace

void OnAccess(const void* memory, size_t bytes, AccessKind kind, const void* code) {
  if (current_thread == nullptr) return;
  const Multiprocessor& multiprocessor = Multiprocessor::OfThisThread();
  if (multiprocessor.IsLocal(memory)) return;
  access_checker()->Access(multiprocessor.Now(), memory, bytes, kind, code);
}

}  // namespace zerobox::simt
