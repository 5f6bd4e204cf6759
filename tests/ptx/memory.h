// SPDX-License-Identifier: Apache-2.0
//
// PTX's memory spaces (PTX ISA, "State Spaces"). An address of global memory, or of a module's
// variables, is the host's own; the others begin at 0 in each block, thread or frame. A generic
// address, which may be of any of these, has shared and local memory in windows of its own.
#ifndef ZEROBOX_TESTS_PTX_MEMORY_H_
#define ZEROBOX_TESTS_PTX_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zerobox::ptx {

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter };

constexpr uint64_t kSharedWindow = uint64_t{1} << 60, kLocalWindow = uint64_t{1} << 61;

// The arrays of global memory, which alone may be accessed there.
class GlobalMemory {
 public:
  void Add(const void* array, size_t bytes) { Add(reinterpret_cast<uint64_t>(array), bytes); }
  void Remove(const void* array);
  // Whether all of these bytes are in one array. The last array found is tried first.
  bool Contains(uint64_t address, size_t bytes) const;

 private:
  struct Range {
    uint64_t begin, end;
  };
  void Add(uint64_t begin, size_t bytes);

  std::vector<Range> ranges_;  // in order
  mutable size_t last_ = 0;
};

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_MEMORY_H_
