// SPDX-License-Identifier: Apache-2.0
//
// The memory of the fake CUDA runtime, and who touched it. Internal to tests/emulation/fake_*.cpp;
// used under the machine's lock.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_MEMORY_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/emulation/fake_runtime.h"

namespace zerobox::fake_cuda {

class Memory {
 public:
  Memory();
  ~Memory() { Clear(); }
  void Clear();

  // Fills with NaN. Bytes behind the end are closed to the address sanitizer.
  void* Allocate(size_t bytes, int device, bool pinned);
  struct Allocation {
    size_t bytes;
    int device;
    bool pinned;
  };
  // Null unless [data, data + bytes) lies in a live allocation.
  const Allocation* Find(const void* data, size_t bytes) const;
  // False when no allocation begins there.
  bool Free(void* data);
  int64_t LiveBytes(int device) const;  // device memory only
  Live live() const;

  // An operation before that touched some of the same bytes, where one of both wrote, and that is
  // not ordered before.
  struct Conflict {
    uint32_t number;
    bool wrote;
  };
  using Ordered = std::function<bool(uint32_t before)>;
  // Notes that operation `number` touches memory.
  std::vector<Conflict> Touch(const Access& access, uint32_t number, const Ordered& ordered);
  // The same for an access that is not noted.
  std::vector<Conflict> Look(const Access& access, const Ordered& ordered) const;

  // "pinned memory +128 (gradient)"
  std::string Describe(const void* data) const;
  void set_name(std::function<std::string(const void*)> name) { name_ = std::move(name); }

 private:
  struct Entry {
    const char *begin, *end;
    bool write;
    uint32_t number;
  };
  struct Block {
    Allocation allocation;
    std::vector<Entry> touched;
  };
  using Blocks = std::map<const char*, Block>;
  Blocks::const_iterator Of(const void* data) const;
  static void Release(const char* data, const Allocation& allocation);

  Blocks blocks_;
  std::function<std::string(const void*)> name_;
};

}  // namespace zerobox::fake_cuda

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_MEMORY_H_
