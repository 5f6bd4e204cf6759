// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime without a GPU, for tests: linked in place of the toolkit's. It has the functions
// that this project calls and no others, so one that was forgotten is a link error.
//
// Streams are queues. Enqueueing runs nothing: work runs only when every worker thread (one that
// created streams) waits, in cudaEventQuery, cudaStreamQuery or cudaStreamSynchronize. So the
// scheduler always sees whole queues, and the order it picks among the heads of the streams is its
// policy's alone, not the machine's. Policies are adversaries: what a program does not order by
// events, one of them runs in the wrong order.
//
// Besides, every operation has a vector clock, and operations say which memory they touch. Two that
// touch the same bytes, one of them writing, must be ordered by streams, events or the host; if not
// that is reported, whatever order they ran in. (What host functions and kernels touch is not known
// here unless they call Touch.)
//
// Threads that sleep at a WaitPoint of a run (ops/device/abort.h) wait too: Reset makes the machine
// observe every run. One that blocks elsewhere seems to be busy, and the others go on without it
// only after a while.
//
// Fresh memory, device's and pinned, reads as NaN. Only pinned memory may be copied from and to.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_RUNTIME_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ops/device/abort.h"

namespace zerobox::fake_cuda {

// Which stream of a thread and device runs first, where several could: the one created last, the
// one created first, or any. Among those of several threads it does not matter which came first.
enum class Policy : uint8_t { kCommunicationFirst, kComputeFirst, kRandom };
inline constexpr Policy kPolicies[] = {Policy::kCommunicationFirst, Policy::kComputeFirst,
                                       Policy::kRandom};
const char* Name(Policy policy);

struct Options {
  int devices = 1;
  Policy policy = Policy::kRandom;
  uint64_t seed = 1;  // of kRandom
  // Worker threads that will come: nothing runs before so many have created a stream.
  int workers = 1;
  // A thread that neither waits nor calls may be waiting for another in a way that is unknown here
  // (a barrier, a lock). After so long the others go on without it.
  std::chrono::milliseconds patience{100};
  // All may wait for something that never comes: else that is reported when it has lasted for so
  // long (a thread that is none of these workers may end it before), and the waiting calls fail.
  bool may_stall = false;
  std::chrono::milliseconds deadlock_after{1000};
  int64_t device_bytes = int64_t{1} << 30;  // what one device has
  // Streams and the host may wait for events that take times. It costs a GPU something, so those
  // that are edges take none.
  bool timing = false;
  // The streams of a thread's device in reports, in the order of creation.
  std::vector<std::string> stream_names = {"compute", "communication", "to_host", "from_host"};
};

// Begins anew: all streams, events and memory are gone, and all that was reported, counted or is
// to fail. No thread may be in a call, and no worker of before may call again.
void Reset(const Options& options);

// What was done wrong, since the last call.
std::vector<std::string> TakeReports();
void Report(std::string what);

struct Access {
  const void* data;
  size_t bytes;
  bool write;
};
// Work that a fake of another library, or a test, puts into a stream; `accesses` must be memory of
// the stream's device, or pinned.
cudaError_t Enqueue(cudaStream_t stream, std::string name, std::vector<Access> accesses,
                    std::function<void()> work);
// From work that runs: it touches this too.
void Touch(const Access& access);
// From a host thread: it touches this now.
void HostAccess(const Access& access);
// How reports call memory, given its address ("": by its offset in the allocation alone).
void NameMemory(std::function<std::string(const void*)> name);

// The nth call of this function from now on (1: the next) returns `error` and does nothing else; of
// those by threads whose device this is (-1: of all). Functions of other fakes count too: see
// Injected.
void FailCall(const std::string& function, int nth, cudaError_t error = cudaErrorUnknown,
              int device = -1);
// The nth operation that runs from now on breaks its device, as a kernel that touches foreign
// memory does: nothing runs there any more, and all calls return `error`.
void FailWork(int nth, cudaError_t error = cudaErrorIllegalAddress);
// Nothing runs from now on until it is called with false.
void Hold(bool hold);
// For fakes of other libraries: counts a call, and returns what it is to fail with, or 0.
cudaError_t Injected(const char* function);

// While one lives the calling thread, which waits for something that is unknown here, is idle: the
// others go on.
class Idle {
 public:
  Idle();
  ~Idle();
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

 private:
  Abort abort_;
  WaitPoint point_{abort_};
};

// Calls since Reset, by function; of those by threads whose device this is (-1: of all).
std::map<std::string, int> Calls(int device = -1);
int64_t OperationsRun();
// Allocations that live, and their bytes.
struct Live {
  int device_allocations = 0, pinned_allocations = 0, streams = 0, events = 0;
  int64_t device_bytes = 0, pinned_bytes = 0;
};
Live LiveNow();

}  // namespace zerobox::fake_cuda

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_RUNTIME_H_
