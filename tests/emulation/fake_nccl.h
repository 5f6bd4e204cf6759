// SPDX-License-Identifier: Apache-2.0
//
// An NCCL without GPUs, for tests: linked in place of the real one, on top of the fake runtime. It
// has the functions that this project calls and no others.
//
// A collective is an operation in the stream of each rank, and runs when all have come to it. Sums
// are taken in rank order and rounded to the type of the call each time a rank's part is added, as
// in a ring. It is an adversary where NCCL promises nothing:
//   - Communicators must be non-blocking. After a call one is in progress for a few polls of
//     ncclCommGetAsyncError, a seeded number, and the work is in the stream only then: an event
//     that is recorded earlier does not stand behind it.
//   - A kind of call whose size is of a class (up to 16 KiB, 512 KiB, larger) that was not there
//     before must be connected: it is in progress until all ranks have made it.
//   - A communicator is finalized when all of its clique are.
//   - Ranks that make different calls (function, elements, type, root) have real NCCL hang or end
//     with wrong data. Here that is reported, and the call never ends.
// And where its user does what he may not: that is reported too. A communicator is used on the
// thread that made it, not while it is in progress, and not after it was destroyed or aborted,
// which it is once, before the thread ends; it is destroyed after it was finalized. Functions that
// fail because a test wants it (fake_cuda::FailCall) return ncclInternalError; of ncclCommDestroy
// and ncclCommAbort the communicator is gone then too.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_NCCL_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_NCCL_H_

#include <nccl.h>

#include <cstdint>

namespace zerobox::fake_nccl {

// Of how many polls a call stays in progress. 1 from fake_cuda::Reset on, which also forgets all
// that was there.
void SetSeed(uint64_t seed);
// From now on the communicators of this device are in this state, as when the network or another
// rank's process has failed.
void FailAsynchronously(int device, ncclResult_t error);

struct Counts {
  int living = 0, destroyed = 0, aborted = 0;  // communicators
  int collectives = 0;                         // that have run
  int in_progress = 0;                         // polls that were answered so
  int connected = 0;                           // calls that had to be, of all ranks together
};
Counts CountsNow();

}  // namespace zerobox::fake_nccl

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_NCCL_H_
