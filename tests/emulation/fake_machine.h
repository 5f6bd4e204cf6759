// SPDX-License-Identifier: Apache-2.0
//
// The machine behind the fake CUDA runtime: streams, events, the order in which work runs, and what
// is ordered before what. Internal to tests/emulation/fake_*.cpp.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_MACHINE_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_MACHINE_H_

#include <cuda_runtime_api.h>

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

struct Operation {
  enum class Kind : uint8_t { kWork, kRecord, kWait };
  Kind kind = Kind::kWork;
  std::string name;
  const void* kernel = nullptr;  // or of a kernel, which has a name in the program's symbols
  std::vector<Access> accesses;
  std::function<void()> work;           // kWork
  std::shared_ptr<EventRecord> record;  // kRecord, kWait
  Clock host;                           // of the thread that enqueued it
};

// A thread that calls the runtime.
struct HostThread {
  int device = 0;
  bool worker = false;  // it has called cudaSetDevice
  Clock clock;
  cudaError_t last_error = cudaSuccess;
  std::function<bool()> waits_for;  // empty: it runs; else it waits until this holds
  const void* asleep_at = nullptr;  // else the WaitPoint where it sleeps; guarded by sleep_mutex_
  ~HostThread();
};

}  // namespace zerobox::fake_cuda

// What the runtime's handles point to.
struct CUstream_st {
  int device = 0;
  size_t number = 0;  // among all
  size_t index = 0;   // among those of its device, in the order of creation
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
  static HostThread& thread();  // the calling one
  static bool& runs_work();     // the calling thread is in an operation's work
  void AddWorker(HostThread* thread);
  void RemoveWorker(HostThread* thread);

  cudaError_t CreateStream(int device, cudaStream_t* stream);
  cudaError_t Push(cudaStream_t stream, Operation operation);
  bool Idle(int device) const;

  // The calling thread waits until `ready`. Runs operations as long as all threads wait, or one if
  // those that do not have been busy with something unknown for long. False: nothing will ever
  // become ready.
  bool Poll(std::function<bool()> ready);

  // An access by the operation that runs now, or by the calling thread when there is none.
  void Touch(const Access& access);

  cudaError_t CountCall(const char* function);  // returns what was injected
  void FailCall(const std::string& function, int nth, cudaError_t error);
  void FailWork(int nth, cudaError_t error);
  void Hold(bool hold) { hold_ = hold; }
  cudaError_t broken(int device) const;
  const std::map<std::string, int>& calls() const { return calls_; }
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
  bool RunOne();  // false when no stream can go on
  void Run(CUstream_st& stream, Operation operation);
  void RunWork(CUstream_st& stream, Operation& operation);
  void Break(int device, cudaError_t error);
  static bool CanRun(const CUstream_st& stream);
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
  std::set<HostThread*> workers_;
  int gone_workers_ = 0;
  uint64_t random_ = 1;
  std::map<std::string, int> calls_;
  std::map<std::string, std::map<int, cudaError_t>> failing_calls_;  // by their number
  int64_t failing_work_ = 0;
  cudaError_t work_error_ = cudaSuccess;
  std::map<int, cudaError_t> broken_;  // by device
  std::chrono::steady_clock::time_point progress_;
  bool deadlock_reported_ = false;
  bool hold_ = false;
};

}  // namespace zerobox::fake_cuda

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_MACHINE_H_
