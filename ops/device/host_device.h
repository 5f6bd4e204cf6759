// SPDX-License-Identifier: Apache-2.0
//
// HostDevice: a device made of threads and ordinary memory of this machine, with a capacity of its
// own. Its compute stream runs inline in the worker's thread (enqueueing an op there is running
// it); the other streams are threads, so prefetch, overlap and the event protocol are real.
#ifndef ZEROBOX_OPS_DEVICE_HOST_DEVICE_H_
#define ZEROBOX_OPS_DEVICE_HOST_DEVICE_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ops/device/abort.h"
#include "ops/device/device.h"
#include "ops/device/recorder.h"

namespace zerobox {

struct HostDeviceOptions {
  int rank = 0;                // names the device in messages and in the recorder
  RegionBytes regions{};       // what to reserve, from the plan
  RegionBytes host_regions{};  // the same of the host side
  int threads = 1;             // of its compute stream, the worker's included
  int host_threads = 1;        // of the kernels on the host side
  bool poison = false;         // see MemoryPool::PoisonFreshMemory
  Recorder* recorder = nullptr;
  // For tests. The compute stream is a thread too, as on a GPU, so every event is needed.
  bool threaded_compute = false;
  // Wait and HostWait ignore this edge: "EVENT -> STREAM", or "EVENT -> host".
  std::string drop_wait = {};
};

class HostDevice final : public Device {
 public:
  // ResourceExhausted when the machine does not give the memory. `abort` outlives the device.
  static absl::StatusOr<std::unique_ptr<HostDevice>> Make(HostDeviceOptions options, Abort& abort);
  void StopStreams() override;  // an abort skips all work that has not begun
  ~HostDevice() override;       // waits for its streams, as StopStreams does

  std::unique_ptr<Event> MakeEvent(std::string_view name) override;
  void Record(Event& event, StreamId stream) override;
  void Wait(StreamId stream, const Event& event) override;
  absl::Status HostWait(const Event& event) override;
  void Copy(StreamId stream, Buffer to, Buffer from) override;
  void Zero(StreamId stream, Buffer buffer) override;
  void CopyToHost(StreamId stream, void* to, Buffer from) override;
  void CopyFromHost(StreamId stream, Buffer to, const void* from) override;
  CopiedBytes copied() const override;
  void Announce(Activity activity, int unit) override;
  std::unique_ptr<TimeMarks> MakeTimeMarks() override;
  Ops& ops() override;
  MemoryPool& memory() override;
  Ops& host_ops() override;
  MemoryPool& host_memory() override;
  void Fail(absl::Status error) override;  // fails the run too
  absl::Status status() const override;

  // Runs `work` in its turn on `stream`, unless the device or the run has failed by then. A
  // non-OK status, or an exception of std::, fails both. `name` is a literal (it is kept by
  // reference).
  void Enqueue(StreamId stream, std::string_view name, std::function<absl::Status()> work);
  // Splits [0, tasks) over the threads of `stream` and returns when all are done: a fixed
  // assignment, by `tasks` and the number of threads alone. For kernels.
  // Called by work on that stream, kCompute or kToHost, one call at a time. An exception of std::
  // in a task fails the device.
  void ParallelFor(StreamId stream, int64_t tasks, const std::function<void(int64_t)>& task);
  int threads(StreamId stream = StreamId::kCompute) const;

  Waiting CurrentWait(StreamId stream) const override;
  void SetWaitingFor(StreamId stream, std::string_view what) override;
  int64_t communication_waits() const override;
  double SecondsExposed(int64_t end) override;

  Abort& abort() { return abort_; }
  int rank() const { return options_.rank; }

 private:
  HostDevice(const HostDeviceOptions& options, Abort& abort);
  struct State;
  struct Mark;  // one Record
  class HostEvent;
  class HostTimeMarks;
  void RunOp(StreamId stream, std::string_view name, int64_t id,
             const std::function<absl::Status()>& work);
  bool Inline(StreamId stream) const;  // runs in the worker's thread
  // Puts `item` into the stream's queue, or runs it where that is inline.
  void Push(StreamId stream, std::function<void()> item);
  // The edge from `mark` to a stream or the host is drop_wait's.
  bool Dropped(std::string_view event, std::string_view waiter) const;
  // Blocks the thread of `waiter` until `mark` is done or the run is aborted. Returns for how long,
  // in seconds: 0 if it was done already.
  double WaitForMark(StreamId waiter, const std::string& name, Mark& mark);
  // The same where the stream runs; keeps the time of compute's waits for communication.
  void WaitInStream(StreamId stream, const std::string& name, Mark& mark);
  void SetWaiting(StreamId stream, std::string_view what, bool own_event);
  HostDeviceOptions options_;
  Abort& abort_;
  std::unique_ptr<State> state_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_HOST_DEVICE_H_
