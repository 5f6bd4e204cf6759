// SPDX-License-Identifier: Apache-2.0
//
// What the compiler calls for each access under -fsanitize=thread, and for copies.
#include <cstring>

#include "tests/emulation/race.h"

namespace {
using zerobox::simt::AccessKind;
using zerobox::simt::OnAccess;
}  // namespace

#define ZEROBOX_ACCESS(name, bytes, kind)                                   \
  void __tsan_##name(void* memory) {                                        \
    OnAccess(memory, bytes, AccessKind::kind, __builtin_return_address(0)); \
  }
#define ZEROBOX_ACCESSES(bytes)                         \
  ZEROBOX_ACCESS(read##bytes, bytes, kRead)             \
  ZEROBOX_ACCESS(write##bytes, bytes, kWrite)           \
  ZEROBOX_ACCESS(unaligned_read##bytes, bytes, kRead)   \
  ZEROBOX_ACCESS(unaligned_write##bytes, bytes, kWrite) \
  ZEROBOX_ACCESS(volatile_read##bytes, bytes, kRead)    \
  ZEROBOX_ACCESS(volatile_write##bytes, bytes, kWrite)

extern "C" {

ZEROBOX_ACCESSES(1)
ZEROBOX_ACCESSES(2)
ZEROBOX_ACCESSES(4)
ZEROBOX_ACCESSES(8)
ZEROBOX_ACCESSES(16)

void __tsan_read_range(void* memory, unsigned long bytes) {
  OnAccess(memory, bytes, AccessKind::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* memory, unsigned long bytes) {
  OnAccess(memory, bytes, AccessKind::kWrite, __builtin_return_address(0));
}

void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  OnAccess(from, bytes, AccessKind::kRead, __builtin_return_address(0));
  OnAccess(to, bytes, AccessKind::kWrite, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  OnAccess(from, bytes, AccessKind::kRead, __builtin_return_address(0));
  OnAccess(to, bytes, AccessKind::kWrite, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  OnAccess(to, bytes, AccessKind::kWrite, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

// Of no interest here.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Host code in a kernel's file: guards of function-local statics, counts of shared pointers.
char __tsan_atomic8_load(const volatile char* p, int) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
int __tsan_atomic32_load(const volatile int* p, int) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
int __tsan_atomic32_fetch_add(volatile int* p, int value, int) {
  return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}

}  // extern "C"
