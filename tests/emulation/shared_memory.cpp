// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/shared_memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/emulation/access_checker.h"
#include "tests/emulation/multiprocessor.h"
#include "tests/emulation/primitives.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace zerobox::simt {
namespace {

size_t RoundUp(size_t bytes) {
  return (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
}

void TellChecker(const void* memory, size_t bytes, AccessKind kind) {
  if (AccessChecker* checker = access_checker()) {
    checker->Access(Multiprocessor::OfThisThread().Now(), memory, bytes, kind,
                    __builtin_return_address(0));
  }
}

constexpr size_t kCopyBytes = 16;

}  // namespace

void* SharedMemory::Allocate(size_t bytes) {
  char* memory = static_cast<char*>(std::aligned_alloc(kSharedAlignment, RoundUp(bytes)));
  std::memset(memory, 0xff, bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory + bytes, RoundUp(bytes) - bytes);
#endif
  if (AccessChecker* checker = access_checker()) {
    checker->Watch(memory, bytes, MemoryKind::kShared);
  }
  return memory;
}

void SharedMemory::Free(void* memory, [[maybe_unused]] size_t bytes) {
  if (AccessChecker* checker = access_checker()) checker->Forget(memory);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, RoundUp(bytes));
#endif
  std::free(memory);
}

void SharedMemory::Begin(size_t dynamic_bytes) {
  Clear();
  if (dynamic_bytes == 0) return;
  dynamic_ = Allocate(dynamic_bytes);
  dynamic_bytes_ = dynamic_bytes;
}

void SharedMemory::Clear() {
  for (const auto& [key, piece] : arrays_) Free(piece.memory, piece.bytes);
  arrays_.clear();
  array_bytes_ = 0;
  if (dynamic_ != nullptr) Free(dynamic_, dynamic_bytes_);
  dynamic_ = nullptr;
  dynamic_bytes_ = 0;
}

void* SharedMemory::Array(const void* key, size_t bytes) {
  const auto [found, is_new] = arrays_.try_emplace(key);
  if (is_new) {
    found->second = {Allocate(bytes), bytes};
    array_bytes_ += RoundUp(bytes);
  }
  return found->second.memory;
}

// From here on the target may be written any time.
void CopyQueue::Add(void* to, const void* from, bool copy) {
  TellChecker(to, kCopyBytes, AccessKind::kWrite);
  if (copy) TellChecker(from, kCopyBytes, AccessKind::kRead);
  std::memset(to, 0xff, kCopyBytes);
  open_.push_back({to, copy ? from : nullptr});
}

void CopyQueue::Commit() {
  groups_.push_back(std::move(open_));
  open_.clear();
}

void CopyQueue::Wait(int groups_left) {
  while (static_cast<int>(groups_.size()) > groups_left) {
    for (const Copy& copy : groups_.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, kCopyBytes);
      } else {
        std::memcpy(copy.to, copy.from, kCopyBytes);
      }
      TellChecker(copy.to, kCopyBytes, AccessKind::kWrite);
    }
    groups_.erase(groups_.begin());
  }
}

void CopyQueue::Clear() {
  open_.clear();
  groups_.clear();
}

// What device code calls.

void* SharedArray(const void* key, size_t bytes) {
  Multiprocessor& multiprocessor = Multiprocessor::OfThisThread();
  SharedMemory& memory = multiprocessor.shared_memory();
  void* array = memory.Array(key, bytes);
  if (memory.array_bytes() > kSharedBytes) {
    multiprocessor.Stop([&] {
      return absl::StrCat("shared arrays of ", memory.array_bytes(), " bytes; a block may have ",
                          kSharedBytes);
    });
  }
  return array;
}

void* DynamicShared() { return Multiprocessor::OfThisThread().shared_memory().dynamic(); }

void CpAsync16(void* to, const void* from, bool copy, Site site) {
  CheckAligned(to, kCopyBytes, site);
  if (copy) CheckAligned(from, kCopyBytes, site);
  Multiprocessor::OfThisThread().copies().Add(to, from, copy);
}

void CpAsyncCommit() { Multiprocessor::OfThisThread().copies().Commit(); }

void CpAsyncWait(int groups_left) { Multiprocessor::OfThisThread().copies().Wait(groups_left); }

void CheckAligned(const void* address, size_t bytes, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  Multiprocessor::OfThisThread().Stop([&] {
    return absl::StrCat("misaligned: an access of ", bytes, " bytes at an address that is no ",
                        "multiple of it, at ", site.file, ":", site.line);
  });
}

void OnAtomic(const void* address, size_t bytes) {
  TellChecker(address, bytes, AccessKind::kAtomic);
}

}  // namespace zerobox::simt
