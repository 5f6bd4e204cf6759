// SPDX-License-Identifier: Apache-2.0
//
// The machine behind the fake CUDA runtime: streams, events, the order in which work runs, and what
// is ordered before what. Internal to tests/emulation/fake_*.cpp.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_MACHINE_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_MACHINE_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/device/abort.h"
#include "tests/emulation/fake_memory.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox::fake_cuda {

// clock[s]: how many operations of stream number s come before.
using Clock = std::vector<uint64_t>;
void Join(Clock& clock, const Clock& other);

// One cudaEventRecord. Shared by the event, whose latest it is, and all who wait for it.
struct EventRecord {
  bool done = false;
  Clock clock;
  std::chrono::steady_clock::time_point when;
};

// Work that streams of several devices do together: it runs when each of them has come to it.
struct Meeting {
  size_t size = 0;                    // so many streams
  std::vector<CUstream_st*> streams;  // that have it in their queues, or had
  std::function<void()> work;
  bool done = false;
  bool never = false;  // it will not run, whoever comes
};

struct Operation {
  enum class Kind : uint8_t { kWork, kRecord, kWait, kMeeting };
  Kind kind = Kind::kWork;
  std::string name;
  const void* kernel = nullptr;  // or of a kernel, which has a name in the program's symbols
  std::vector<Access> accesses;
  std::function<void()> work;           // kWork
  std::shared_ptr<EventRecord> record;  // kRecord, kWait
  std::shared_ptr<Meeting> meeting;     // kMeeting
  Clock host;                           // of the thread that enqueued it
};

// A thread that calls the runtime.
struct HostThread {
  HostThread();
  ~HostThread();
  int device = 0;
  // The system's number: a thread that was created later has a greater one, also if it comes first.
  int64_t id = 0;
  int64_t resets = 0;     // of the machine, that it knows of
  int streams = 0;        // that it created and that live: with some it is a worker
  bool was_here = false;  // it was a worker, and is none any more
  Clock clock;
  cudaError_t last_error = cudaSuccess;
  // What it has asked since it did anything else, or got a yes. It waits while it asks, and between
  // its questions when it has begun to repeat itself, until one of these holds.
  std::map<const void*, std::function<bool()>> asks;
  bool repeats = false;
  const void* asleep_at = nullptr;  // the WaitPoint where it sleeps; guarded by sleep_mutex_
  void Acts();                      // it waits no more
};

}  // namespace zerobox::fake_cuda

// What the runtime's handles point to.
struct CUstream_st {
  int device = 0;
  int64_t thread = 0;  // the id of the one that created it
  size_t number = 0;   // among all
  size_t index = 0;    // among those of its device and thread, in the order of creation
  bool alive = true;
  std::deque<zerobox::fake_cuda::Operation> queue;
  zerobox::fake_cuda::Clock clock;
};
struct CUevent_st {
  int device = 0;
  bool timing = false;
  std::shared_ptr<zerobox::fake_cuda::EventRecord> latest;
};

namespace zerobox::fake_cuda {

// Threads that sleep at a WaitPoint wait too, and those that were woken there do not.
class Machine final : public WaitObserver {
 public:
  static Machine& Get();
  void Reset(const Options& options);

  // Without the lock: a host function may wake threads.
  void OnSleep(const WaitPoint* point) override;
  void OnWake(const WaitPoint* point) override;
  void OnReady(const WaitPoint* point) override;

  // All that follows is used under this lock.
  std::mutex& mutex() { return mutex_; }
  const Options& options() const { return options_; }
  Memory& memory() { return memory_; }
  HostThread& thread();      // the calling one
  static bool& runs_work();  // the calling thread is in an operation's work
  void RemoveWorker(HostThread* thread);
  // For fakes of other libraries: called by Reset.
  void OnReset(std::function<void()> forget) { forget_ = std::move(forget); }

  cudaError_t CreateStream(int device, cudaStream_t* stream);
  void DestroyStream(cudaStream_t stream);
  cudaError_t Push(cudaStream_t stream, Operation operation);
  // The stream passes its part in a meeting by; it does not take place any more.
  static void Leave(cudaStream_t stream, const std::shared_ptr<Meeting>& meeting);
  bool Idle(int device) const;

  // The calling thread asks whether `ready`, which is not so, of `what`. Runs operations as long as
  // all threads wait, or one if those that do not have been busy with something unknown for long.
  // False: nothing will ever become ready, as it seems after a while.
  bool Poll(const void* what, std::function<bool()> ready);

  // An access by the operation that runs now, or by the calling thread when there is none.
  void Touch(const Access& access);

  // Of the calling thread, whose device it is. Returns what was injected.
  cudaError_t CountCall(const char* function, int device);
  void FailCall(const std::string& function, int nth, cudaError_t error, int device);
  void FailWork(int nth, cudaError_t error);
  void Hold(bool hold) { hold_ = hold; }
  cudaError_t broken(int device) const;
  std::map<std::string, int> calls(int device) const;  // -1: of all
  // Something was asked for that is no question.
  void NoteProgress() { progress_ = std::chrono::steady_clock::now(); }
  int64_t operations_run() const { return static_cast<int64_t>(history_.size()) - 1; }
  // Of operations by their number, from 1, in the order in which they ran. Without the lock, from
  // an operation's work.
  bool HappensBefore(uint32_t number, uint32_t other) const;
  std::string Describe(uint32_t number) const;
  int live_streams() const;
  int live_events = 0;

 private:
  // An operation that ran, or runs.
  struct Past {
    std::string name;
    const void* kernel;
    const CUstream_st* stream;
    uint64_t count;  // in its stream
    Clock clock;
  };
  bool AllWait() const;
  bool RunWhileAllWait();
  void AddWorker(HostThread* thread);
  bool RunOne();  // false when no stream can go on
  void Run(CUstream_st& stream, Operation operation);
  void RunWork(CUstream_st& stream, Operation& operation);
  void RunMeeting(const std::shared_ptr<Meeting>& meeting);
  // The next number of the history. True: the operation breaks its device instead.
  bool Begin(const CUstream_st& stream, const Operation& operation, const Clock& clock);
  void TouchAll(const Operation& operation);
  static void Do(const std::function<void()>& work, uint32_t number);
  void Break(int device, cudaError_t error);
  static bool CanRun(const CUstream_st& stream);
  static bool AllHaveCome(const Meeting& meeting);
  CUstream_st* Choose();
  bool HappensBefore(uint32_t number, const Clock& clock) const;
  std::string Describe(const CUstream_st& stream) const;
  std::string DescribeQueues() const;

  std::mutex mutex_;
  mutable std::mutex sleep_mutex_;                  // locked last
  std::map<const WaitPoint*, Clock> point_clocks_;  // what who woke the others knew
  Options options_;
  Memory memory_;
  std::deque<CUstream_st> streams_;
  std::deque<Past> history_;  // by number, from 1
  uint32_t running_ = 0;      // number of the operation that runs now; 0: none
  std::atomic<int64_t> resets_{0};
  std::set<HostThread*> workers_;
  int gone_workers_ = 0;
  uint64_t random_ = 1;
  using Caller = std::pair<int, std::string>;  // a device (-1: any) and a function
  std::map<Caller, int> calls_;
  std::map<Caller, std::map<int, cudaError_t>> failing_calls_;  // by their number
  int64_t failing_work_ = 0;
  cudaError_t work_error_ = cudaSuccess;
  std::map<int, cudaError_t> broken_;  // by device
  std::chrono::steady_clock::time_point last_run_, progress_;
  bool deadlock_reported_ = false;
  bool hold_ = false;
  std::function<void()> forget_;
};

}  // namespace zerobox::fake_cuda

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_MACHINE_H_
