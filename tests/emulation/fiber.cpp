// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fiber.h"

#include <sys/mman.h>

#include <atomic>
#include <cassert>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(ZEROBOX_FIBER_UCONTEXT)
// void zerobox_switch_stack(void** save /*rdi*/, void* to /*rsi*/): pushes what the System V ABI
// lets a callee not change, notes where, and pops the same from the other stack, whose top is then
// the address to go on at. The control words of the FPU are left alone: kernels do not set them.
extern "C" void zerobox_switch_stack(void** save, void* to);
asm(R"(
.text
.globl zerobox_switch_stack
.type zerobox_switch_stack,@function
zerobox_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size zerobox_switch_stack,.-zerobox_switch_stack
)");
#endif

namespace zerobox::simt {
namespace {
constexpr size_t kPage = 4096;

// Where a stack begins, below its end. Stacks that all began at the same place in a page would
// share a few sets of the cache, and each switch would be a dozen misses.
size_t NextColor() {
  static std::atomic<size_t> stacks = 0;
  return stacks++ % 32 * 128;
}
}  // namespace

Fiber::Fiber(size_t stack_bytes) : bytes_(stack_bytes), color_(NextColor()), owns_stack_(true) {
  void* memory = mmap(nullptr, kPage + bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert(memory != MAP_FAILED);
  mprotect(memory, kPage, PROT_NONE);
  stack_ = static_cast<char*>(memory) + kPage;
}

Fiber::~Fiber() {
  if (!owns_stack_) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, bytes_);
#endif
  munmap(stack_ - kPage, kPage + bytes_);
}

void Fiber::Prepare(void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, bytes_);
#endif
#if defined(ZEROBOX_FIBER_UCONTEXT)
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = bytes_ - color_;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#else
  // From the top: no return address for `entry`, the address that the switch goes on at, and six
  // registers. So the stack is aligned at the entry as after a call.
  void** top = reinterpret_cast<void**>(stack_ + bytes_ - color_);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#endif
}

void Fiber::Entered([[maybe_unused]] Fiber& thread) {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(sanitizer_stack_, &stack, &bytes);
  if (thread.stack_ == nullptr) {
    thread.stack_ = static_cast<char*>(const_cast<void*>(stack));
    thread.bytes_ = bytes;
  }
#endif
}

void Fiber::Switch(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.sanitizer_stack_, to.stack_, to.bytes_);
#endif
#if defined(ZEROBOX_FIBER_UCONTEXT)
  swapcontext(&from.context_, &to.context_);
#else
  zerobox_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.sanitizer_stack_, nullptr, nullptr);
#endif
}

}  // namespace zerobox::simt
