// SPDX-License-Identifier: Apache-2.0
//
// The checker of accesses: finds, in memory that it watches (shared memory, device and pinned
// buffers), two accesses of which one writes and that nothing orders; and reads of what nobody
// wrote. It looks at what synchronisation promises, not at what happened in one order of threads,
// so it finds races that change no result.
//
// Two accesses of one grid are ordered if they are by the same thread; by threads of the same block
// with a __syncthreads between; or by lanes of the same warp with a __syncwarp between (a shuffle
// orders no memory). Accesses of two stream operations are ordered if streams and events say so,
// for which a runtime is asked (AccessChecker::SetStreamOrder); without one they all are.
//
// How it sees accesses: with -fsanitize=thread the compiler puts a call (__tsan_read4 and so on)
// before each. The kernels alone are compiled so, and the functions called are those in
// tests/emulation/race_calls.cpp, in place of the thread sanitizer's own.
#ifndef ZEROBOX_TESTS_EMULATION_RACE_H_
#define ZEROBOX_TESTS_EMULATION_RACE_H_

#include <cstddef>

#include "tests/emulation/access_checker.h"

namespace zerobox::simt {

// An access by the CUDA thread that runs, from instrumented code; nothing outside kernels.
void OnAccess(const void* memory, size_t bytes, AccessKind kind, const void* code);

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_RACE_H_
