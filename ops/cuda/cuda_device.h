// SPDX-License-Identifier: Apache-2.0
//
// CudaDevice: a GPU. Its four streams are CUDA's, non-blocking; nothing uses the default stream,
// which would wait for all others, and nothing waits for the whole device.
//
// The worker's thread enqueues and goes on. It waits in HostWait, and where it is too many ops
// ahead of the GPU; both ask for an event again and again and so also see the run's abort. What was
// enqueued before a failure still runs, but for host functions that are ops of their own.
#ifndef ZEROBOX_OPS_CUDA_CUDA_DEVICE_H_
#define ZEROBOX_OPS_CUDA_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/wait_times.h"
#include "ops/device/abort.h"
#include "ops/device/device.h"
#include "ops/device/thread_team.h"

namespace zerobox::cuda {

class CudaDevice final : public Device {
 public:
  // See MakeCudaDevice.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Make(const CudaDeviceOptions& options,
                                                          Abort& abort);
  ~CudaDevice() override;  // waits for its streams, as StopStreams does
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::unique_ptr<Event> MakeEvent(std::string_view name) override;
  void Record(Event& event, StreamId stream) override;
  void Wait(StreamId stream, const Event& event) override;
  absl::Status HostWait(const Event& event) override;
  void Copy(StreamId stream, Buffer to, Buffer from) override;
  void Zero(StreamId stream, Buffer buffer) override;
  void CopyToHost(StreamId stream, void* to, Buffer from) override;
  void CopyFromHost(StreamId stream, Buffer to, const void* from) override;
  CopiedBytes copied() const override { return copied_; }
  Ops& ops() override { return *ops_; }
  MemoryPool& memory() override { return *pool_; }
  Ops& host_ops() override { return *host_ops_; }
  MemoryPool& host_memory() override { return *host_pool_; }
  void Announce(Activity activity, int unit) override;
  std::unique_ptr<TimeMarks> MakeTimeMarks() override;
  int steps_ahead() const override { return 1; }
  void StoreTime(StreamId stream, std::chrono::steady_clock::time_point* time) override;
  void Fail(absl::Status error) override;  // fails the run too
  absl::Status status() const override;
  void StopStreams() override;
  Waiting CurrentWait(StreamId stream) const override;
  void SetWaitingFor(StreamId stream, std::string_view what) override;
  int64_t communication_waits() const override { return communication_waits_.waits(); }
  double SecondsExposed(int64_t end) override;

  // Calls `start`, which puts work into the stream and returns what goes wrong with that, unless
  // the device or the run has failed. The one place where the runtime's own error is asked for.
  // `name` is a literal.
  using Start = std::function<absl::Status(cudaStream_t)>;
  void Enqueue(StreamId stream, std::string_view name, const Start& start);
  // Runs `work` in its turn on the stream, on a thread of the driver, unless the device or the run
  // has failed by then. A non-OK status, or an exception of std::, fails both. It may not use CUDA.
  // (Host functions of all streams may share one thread, so long ones delay those of others.)
  void EnqueueOnHost(StreamId stream, std::string_view name, std::function<absl::Status()> work);

  // Called again and again while the worker waits for the GPU, on its thread: whoever put work into
  // a stream that may never end looks after it there.
  void set_while_waiting(std::function<void()> look) { while_waiting_ = std::move(look); }

  int rank() const { return options_.rank; }
  int gpu() const { return options_.gpu; }
  int multiprocessors() const { return multiprocessors_; }
  // For work on the compute stream: nothing in it outlives an op. 256-byte aligned. Workspace:
  // ResourceExhausted when it is smaller than that.
  absl::StatusOr<void*> Workspace(int64_t bytes) const;
  void* workspace() const { return device_memory_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  bool tf32() const { return options_.tf32; }

 private:
  // Of each stream, pinned: through it goes memory that is not.
  static constexpr int64_t kStagingBytes = int64_t{1} << 20;

  class CudaEvent;
  class CudaTimeMarks;
  struct HostFunction {
    CudaDevice* device;
    StreamId stream;
    std::string_view name;
    int64_t id;
    std::function<absl::Status()> work;
    std::atomic<bool> done{false};
  };
  struct Stream {
    cudaStream_t handle = nullptr;
    std::byte* staging = nullptr;
    std::deque<HostFunction> host_functions;  // until it is known that they are done
    int64_t ops = 0;
    std::array<cudaEvent_t, 2> ops_ahead{};  // recorded in turn, every options_.ops_ahead ops
  };

  CudaDevice(const CudaDeviceOptions& options, Abort& abort);
  absl::Status SetUp();
  absl::Status Reserve();
  absl::Status CreateStreams();
  // Until the event has happened, or the run has failed.
  void WaitUntilHappened(cudaEvent_t event, std::string_view name);
  void LimitOpsAhead(StreamId id);  // before one more is put into it
  static void CUDART_CB RunHostFunction(void* host_function);
  Stream& Of(StreamId stream) { return streams_[static_cast<size_t>(stream)]; }
  bool IsPinned(const void* data) const;
  bool Dropped(std::string_view event, std::string_view waiter) const;
  int64_t Announce(StreamId stream, std::string_view name);  // to the recorder; returns the op's id
  // Enqueues the pieces of a copy through the stream's staging memory.
  absl::Status StagedToHost(StreamId stream, std::byte* to, const std::byte* from, int64_t bytes);
  absl::Status StagedFromHost(StreamId stream, std::byte* to, const std::byte* from, int64_t bytes);
  // `id` -1: a piece of an op, or no op, which the recorder does not hear of.
  absl::Status LaunchOnHost(StreamId stream, std::string_view name, int64_t id,
                            std::function<absl::Status()> work);

  const CudaDeviceOptions options_;
  Abort& abort_;
  RegionBytes regions_{}, host_regions_{};
  int multiprocessors_ = 0;
  int64_t workspace_bytes_ = 0;
  std::byte* device_memory_ = nullptr;  // the workspace, then the pool
  std::byte* pinned_memory_ = nullptr;  // staging memory, then the host side's pool
  int64_t pinned_bytes_ = 0;
  std::array<Stream, kStreams> streams_;
  std::atomic<int> host_functions_running_{0};
  std::unique_ptr<MemoryPool> pool_, host_pool_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Ops> ops_, host_ops_;
  std::function<void()> while_waiting_;
  WaitTimes communication_waits_;  // of the compute stream
  int64_t next_op_ = 0;
  CopiedBytes copied_;

  mutable std::mutex mutex_;
  absl::StatusCode code_ = absl::StatusCode::kOk;  // guarded by mutex_
  std::string message_;                            // guarded by mutex_
  std::array<Waiting, kStreams> waiting_;          // guarded by mutex_
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_CUDA_DEVICE_H_
