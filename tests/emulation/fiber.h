// SPDX-License-Identifier: Apache-2.0
//
// Fibers: stacks that one OS thread runs in turns, each left and entered again in the middle of its
// functions. A fiber stays on the OS thread that it began on, throws nothing past its entry, and is
// never unwound: what is left forever in the middle leaks what it owns.
#ifndef ZEROBOX_TESTS_EMULATION_FIBER_H_
#define ZEROBOX_TESTS_EMULATION_FIBER_H_

#include <cstddef>

// 20 lines of assembly where we have them; elsewhere ucontext, whose system call a switch makes it
// ten times slower.
#if !defined(__x86_64__) && !defined(ZEROBOX_FIBER_UCONTEXT)
#define ZEROBOX_FIBER_UCONTEXT
#endif
#if defined(ZEROBOX_FIBER_UCONTEXT)
#include <ucontext.h>
#endif

namespace zerobox::simt {

class Fiber {
 public:
  // The OS thread's own stack, as a place to come back to.
  Fiber() = default;
  // A stack of its own, with a page behind it that no access survives.
  explicit Fiber(size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Entered next, it begins with `entry`, which must call Entered() first and must not return.
  // Whatever ran on the stack is forgotten.
  void Prepare(void (*entry)());
  // `thread` is the OS thread's own fiber, about whose stack the address sanitizer learns here.
  void Entered(Fiber& thread);

  // Leaves `from`, which runs now, for `to`. Returns when somebody switches to `from`.
  static void Switch(Fiber& from, Fiber& to);

  bool Contains(const void* address) const {
    const char* p = static_cast<const char*>(address);
    return p >= stack_ && p < stack_ + bytes_;
  }

 private:
  char* stack_ = nullptr;
  size_t bytes_ = 0;
  size_t color_ = 0;
  bool owns_stack_ = false;
  void* sanitizer_stack_ = nullptr;  // the address sanitizer's second stack for this fiber
#if defined(ZEROBOX_FIBER_UCONTEXT)
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
};

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_FIBER_H_
