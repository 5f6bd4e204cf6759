// SPDX-License-Identifier: Apache-2.0
//
// A block's shared memory, and the asynchronous copies to it. Internal to the emulator.
#ifndef ZEROBOX_TESTS_EMULATION_SHARED_MEMORY_H_
#define ZEROBOX_TESTS_EMULATION_SHARED_MEMORY_H_

#include <cstddef>
#include <map>
#include <vector>

namespace zerobox::simt {

// CUDA's limit for arrays and, unless a kernel was allowed more, for dynamic shared memory.
constexpr size_t kSharedBytes = 48 * 1024;
// The most that a block may be allowed on every architecture that we build for (8.6, 8.9, 12.0).
constexpr size_t kMostSharedBytes = 99 * 1024;
constexpr size_t kSharedAlignment = 128;

// Arrays on the heap, each as long as it was declared and NaN (all bits set) at first.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { Clear(); }

  // A block begins, which has so much dynamic shared memory; all else is gone.
  void Begin(size_t dynamic_bytes);
  void Clear();

  // The block's array for this declaration.
  void* Array(const void* key, size_t bytes);
  void* dynamic() const { return dynamic_; }
  size_t array_bytes() const { return array_bytes_; }

 private:
  static void* Allocate(size_t bytes);
  static void Free(void* memory, size_t bytes);

  struct Piece {
    void* memory;
    size_t bytes;
  };
  std::map<const void*, Piece> arrays_;
  size_t array_bytes_ = 0;
  void* dynamic_ = nullptr;
  size_t dynamic_bytes_ = 0;
};

// One thread's cp.async copies: those since the last commit, and committed groups in order.
class CopyQueue {
 public:
  void Add(void* to, const void* from, bool copy);
  void Commit();
  // Does the copies of all groups but the youngest `groups_left`.
  void Wait(int groups_left);
  bool empty() const { return open_.empty() && groups_.empty(); }
  void Clear();

 private:
  struct Copy {
    void* to;
    const void* from;  // null: 16 zeros
  };
  std::vector<Copy> open_;
  std::vector<std::vector<Copy>> groups_;
};

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_SHARED_MEMORY_H_
