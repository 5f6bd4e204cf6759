// SPDX-License-Identifier: Apache-2.0
//
// Kernels with one fault each, and the same kernels without it. That the faults are found proves
// that the builds can see them, so that finding none in a real kernel means something.
#ifndef ZEROBOX_TESTS_EMULATION_SEEDED_BUGS_H_
#define ZEROBOX_TESTS_EMULATION_SEEDED_BUGS_H_

#include <cuda_runtime.h>

namespace zerobox::seeded_bugs {

enum class Bug {
  // Memory that nothing orders.
  kMissingBarrier,         // between writing shared memory and reading what others wrote
  kMissingBarrierInPlace,  // between reading an element and its owner's overwriting it
  kEarlyPrefetch,          // into that of two buffers which slower threads still read
  kMissingWait,            // for cp.async
  kWaitBehindBarrier,      // so that it is for a thread's own copies alone
  kMissingWarpBarrier,     // with a shuffle in its place, which orders no memory
  kRaceBetweenBlocks,      // of equal values
  // Reads of what nobody wrote.
  kUninitialisedShared,
  kUninitialisedDevice,
  // Accesses beside memory.
  kOutOfBounds,
  kOutOfBoundsShared,
  kOutOfBoundsDynamic,  // of dynamic shared memory
  kOutOfBoundsRow,      // of a row, in the middle of an array
  kMisaligned,          // gpu::Load
  kMisalignedCast,      // a float2 through a cast
  // Threads that do not meet.
  kDivergentBarrier,      // one barrier for each half of the block
  kSkippedBarrier,        // some threads return before it
  kMissingLane,           // some lanes return before a warp collective
  kLaneOutsideMask,       // is read by a shuffle
  kDivergentCollectives,  // one shuffle for each half of the warp
  kBarrierOrCollective,   // half of a warp waits at one, half in the other
  // Launches.
  kTooManyThreads,
  kTooMuchShared,
};

// The kernel for this bug, with it or without. It writes out[0 .. kOut), of `in` (kIn), which is
// all 1, and may use scratch (kOut), which nobody wrote; without the bug, each element of out
// becomes 1.
constexpr int kOut = 64, kIn = 3 * 256;
cudaError_t Run(Bug bug, bool with_bug, float* out, const float* in, float* scratch);

}  // namespace zerobox::seeded_bugs

#endif  // ZEROBOX_TESTS_EMULATION_SEEDED_BUGS_H_
