// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_device.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/cuda/affinity.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/pause.h"
#include "ops/cuda/status.h"
#include "ops/device/guarded.h"
#include "ops/host/host_ops.h"
#include "ops/host/threads.h"
#include "ops/view.h"

namespace zerobox::cuda {
namespace {

constexpr StreamId kAllStreams[] = {StreamId::kCompute, StreamId::kCommunication, StreamId::kToHost,
                                    StreamId::kFromHost};

absl::Status Annotate(const absl::Status& status, std::string_view where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), ", ", View(where)));
}

// Giving things back: nothing is left to do where it fails.
void Ignore(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
}

class TeamThreads final : public host::Threads {
 public:
  TeamThreads(ThreadTeam& team, CudaDevice& device) : team_(team), device_(device) {}
  int count() const override { return team_.threads(); }
  void For(int64_t tasks, const std::function<void(int64_t)>& task) override {
    team_.Run(tasks, [&](int64_t i) {
      absl::Status status = Guarded([&] {
        task(i);
        return absl::OkStatus();
      });
      if (!status.ok()) device_.Fail(std::move(status));
    });
  }

 private:
  ThreadTeam& team_;
  CudaDevice& device_;
};

}  // namespace

class CudaDevice::CudaEvent final : public Event {
 public:
  CudaEvent(std::string_view name, cudaEvent_t handle) : Event(name), handle(handle) {}
  // Work that waits for the event still waits for its latest record.
  ~CudaEvent() override {
    if (handle != nullptr) Ignore(cudaEventDestroy(handle));
  }
  const cudaEvent_t handle;  // null: the device has failed
  bool recorded = false;
  StreamId stream = StreamId::kCompute;  // of the latest record
};

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Make(const CudaDeviceOptions& options,
                                                             Abort& abort) {
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice(options, abort));
  absl::Status status = device->SetUp();
  if (!status.ok()) return Annotate(status, absl::StrCat("on GPU ", options.gpu));
  return device;
}

CudaDevice::CudaDevice(const CudaDeviceOptions& options, Abort& abort)
    : options_(options), abort_(abort) {}

absl::Status CudaDevice::SetUp() {
  // Creates the GPU's context, and loads the kernels (see CountGpus).
  absl::Status status = ToStatus(cudaSetDevice(options_.gpu), "cudaSetDevice");
  if (!status.ok()) return status;
  char pci_device[32] = "";
  status = ToStatus(cudaDeviceGetPCIBusId(pci_device, sizeof pci_device, options_.gpu),
                    "cudaDeviceGetPCIBusId");
  if (!status.ok()) return status;
  StayNear(pci_device);  // before memory is touched and threads begin
  status = ToStatus(
      cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, options_.gpu),
      "cudaDeviceGetAttribute");
  if (status.ok()) status = Reserve();
  if (status.ok()) status = CreateStreams();
  if (!status.ok()) return status;
  const bool offload = std::any_of(host_regions_.begin(), host_regions_.end(),
                                   [](int64_t bytes) { return bytes > 0; });
  try {
    // Without offload nothing runs there.
    team_ = std::make_unique<ThreadTeam>(offload ? options_.threads : 1);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the machine does not give a device one more thread: ", error.what()));
  }
  host_ops_ = MakeHostOps(
      [this](std::string_view name, std::function<absl::Status()> work) {
        EnqueueOnHost(StreamId::kToHost, name, std::move(work));
      },
      std::make_unique<TeamThreads>(*team_, *this));
  absl::StatusOr<std::unique_ptr<Ops>> ops = MakeCudaOps(*this);
  if (!ops.ok()) return ops.status();
  ops_ = *std::move(ops);
  return absl::OkStatus();
}

absl::Status CudaDevice::Reserve() {
  regions_ = options_.regions;
  host_regions_ = options_.host_regions;
  RegionBytes workspace = {
      std::max(options_.workspace_bytes, OpsWorkspaceBytes(options_.sizes, multiprocessors_))};
  workspace_bytes_ = RoundUpRegions(workspace);
  const int64_t bytes = workspace_bytes_ + RoundUpRegions(regions_);
  void* memory = nullptr;
  absl::Status status = ToStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  if (!status.ok()) {
    size_t free = 0;
    size_t total = 0;
    Ignore(cudaMemGetInfo(&free, &total));
    return Annotate(status, absl::StrCat("wanted ", bytes, " bytes, free are ", free, " of ", total,
                                         ". Use a smaller model or micro-batch, a higher ZeRO "
                                         "stage, or offload"));
  }
  device_memory_ = static_cast<std::byte*>(memory);
  const int64_t staging = kStagingBytes * kStreams;
  pinned_bytes_ = staging + RoundUpRegions(host_regions_);
  status =
      ToStatus(cudaHostAlloc(&memory, static_cast<size_t>(pinned_bytes_), cudaHostAllocDefault),
               "cudaHostAlloc");
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("wanted ", pinned_bytes_,
                                         " bytes of the machine's memory. Offload less"));
  }
  pinned_memory_ = static_cast<std::byte*>(memory);
  for (int i = 0; i < kStreams; ++i) {
    streams_[static_cast<size_t>(i)].staging = pinned_memory_ + i * kStagingBytes;
  }
  pool_ = std::make_unique<MemoryPool>(device_memory_ + workspace_bytes_, regions_);
  host_pool_ = std::make_unique<MemoryPool>(pinned_memory_ + staging, host_regions_);
  pool_->set_recorder(options_.recorder, options_.rank);
  return absl::OkStatus();
}

absl::Status CudaDevice::CreateStreams() {
  int least = 0;
  int greatest = 0;
  absl::Status status = ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                 "cudaDeviceGetStreamPriorityRange");
  for (const StreamId id : kAllStreams) {
    if (!status.ok()) return status;
    // Collectives have few blocks; these begin as soon as any of compute's end.
    const int priority = id == StreamId::kCommunication ? greatest : least;
    status = ToStatus(cudaStreamCreateWithPriority(&Of(id).handle, cudaStreamNonBlocking, priority),
                      "cudaStreamCreateWithPriority");
  }
  return status;
}

// On any thread.
CudaDevice::~CudaDevice() {
  (void)MakeCurrent(options_.gpu);
  StopStreams();
  for (Stream& stream : streams_) {
    if (stream.handle != nullptr) Ignore(cudaStreamDestroy(stream.handle));
    for (const cudaEvent_t event : stream.ops_ahead) {
      if (event != nullptr) Ignore(cudaEventDestroy(event));
    }
  }
  if (device_memory_ != nullptr) Ignore(cudaFree(device_memory_));
  if (pinned_memory_ != nullptr) Ignore(cudaFreeHost(pinned_memory_));
}

void CudaDevice::StopStreams() {
  for (Stream& stream : streams_) {
    if (stream.handle == nullptr) continue;
    Pause pause;
    cudaError_t state = cudaStreamQuery(stream.handle);
    for (; state == cudaErrorNotReady; state = cudaStreamQuery(stream.handle)) {
      Ignore(state);
      pause();
    }
    Ignore(state);
    // An error of the GPU itself returns at once from this too: then nothing runs there any more.
    if (state != cudaSuccess) Ignore(cudaStreamSynchronize(stream.handle));
  }
  // But for a host function that had begun: it goes on, and uses memory of the device.
  for (Pause pause; host_functions_running_.load(std::memory_order_acquire) > 0;) pause();
}

std::unique_ptr<Event> CudaDevice::MakeEvent(std::string_view name) {
  cudaEvent_t handle = nullptr;
  if (!abort_.failed()) {
    absl::Status status = ToStatus(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags");
    if (!status.ok()) Fail(Annotate(status, absl::StrCat("for event ", View(name))));
  }
  return std::make_unique<CudaEvent>(name, handle);
}

void CudaDevice::Record(Event& event, StreamId stream) {
  if (options_.recorder != nullptr) options_.recorder->OnRecord(options_.rank, stream, event);
  auto& cuda_event = static_cast<CudaEvent&>(event);
  if (abort_.failed() || cuda_event.handle == nullptr) return;
  absl::Status status =
      ToStatus(cudaEventRecord(cuda_event.handle, Of(stream).handle), "cudaEventRecord");
  if (!status.ok()) return Fail(Annotate(status, absl::StrCat("of event ", event.name())));
  cuda_event.recorded = true;
  cuda_event.stream = stream;
}

void CudaDevice::Wait(StreamId stream, const Event& event) {
  const auto& cuda_event = static_cast<const CudaEvent&>(event);
  if (!cuda_event.recorded) return;
  if (options_.recorder != nullptr) options_.recorder->OnWait(options_.rank, stream, event);
  if (abort_.failed() || Dropped(event.name(), Name(stream))) return;
  const cudaStream_t handle = Of(stream).handle;
  const auto wait = [&] {
    return ToStatus(cudaStreamWaitEvent(handle, cuda_event.handle, 0), "cudaStreamWaitEvent");
  };
  const bool exposed =
      stream == StreamId::kCompute && cuda_event.stream == StreamId::kCommunication;
  absl::Status status = exposed ? communication_waits_.Measure(handle, wait) : wait();
  if (!status.ok()) Fail(Annotate(status, absl::StrCat("for event ", event.name())));
}

absl::Status CudaDevice::HostWait(const Event& event) {
  const auto& cuda_event = static_cast<const CudaEvent&>(event);
  if (!cuda_event.recorded) return status();
  if (options_.recorder != nullptr) options_.recorder->OnHostWait(options_.rank, event);
  if (Dropped(event.name(), "host")) return status();
  SetWaitingFor(StreamId::kCompute, event.name());
  WaitUntilHappened(cuda_event.handle, event.name());
  SetWaitingFor(StreamId::kCompute, "");
  return status();
}

void CudaDevice::WaitUntilHappened(cudaEvent_t event, std::string_view name) {
  for (Pause pause; !abort_.failed(); pause()) {
    const cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) {
      if (while_waiting_) while_waiting_();  // what it looks after may have ended too
      break;
    }
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // the runtime keeps it as if it were one
      if (while_waiting_) while_waiting_();
      continue;
    }
    Fail(Annotate(ToStatus(error, "cudaEventQuery"),
                  absl::StrCat("in what was enqueued before event ", View(name))));
  }
}

// The driver takes about a thousand launches, waits and records of a stream ahead of the GPU; an op
// has up to ten. The next one blocks in it, where the worker sees no abort and looks after nothing;
// so it waits here before. (A long staged copy and a collective of --virtual have more. Both get
// done without another worker's help.)
void CudaDevice::LimitOpsAhead(StreamId id) {
  Stream& stream = Of(id);
  if (++stream.ops % options_.ops_ahead != 0) return;
  cudaEvent_t& event = stream.ops_ahead[static_cast<size_t>(stream.ops / options_.ops_ahead % 2)];
  if (event == nullptr) {
    absl::Status status = ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags");
    if (!status.ok()) return Fail(std::move(status));
  } else {
    SetWaitingFor(StreamId::kCompute, "its GPU");
    WaitUntilHappened(event, "ops ahead");  // recorded twice ops_ahead ops ago
    SetWaitingFor(StreamId::kCompute, "");
    if (abort_.failed()) return;
  }
  absl::Status status = ToStatus(cudaEventRecord(event, stream.handle), "cudaEventRecord");
  if (!status.ok()) Fail(std::move(status));
}

double CudaDevice::SecondsExposed(int64_t end) {
  if (abort_.failed()) return 0;  // what they wait for may never come
  const absl::StatusOr<double> seconds = communication_waits_.Seconds(end);
  if (seconds.ok()) return *seconds;
  Fail(Annotate(seconds.status(), "of a wait for communication"));
  return 0;
}

bool CudaDevice::Dropped(std::string_view event, std::string_view waiter) const {
  if (options_.drop_wait.empty()) return false;
  return options_.drop_wait == absl::StrCat(View(event), " -> ", View(waiter));
}

int64_t CudaDevice::Announce(StreamId stream, std::string_view name) {
  const int64_t id = next_op_++;
  if (options_.recorder != nullptr) options_.recorder->OnEnqueue(options_.rank, stream, name, id);
  return id;
}

void CudaDevice::Enqueue(StreamId stream, std::string_view name, const Start& start) {
  Announce(stream, name);
  if (!abort_.failed()) LimitOpsAhead(stream);
  if (abort_.failed()) return;
  absl::Status status = start(Of(stream).handle);
  if (status.ok()) status = ToStatus(cudaGetLastError(), "cudaGetLastError");
  if (!status.ok()) {
    Fail(Annotate(status, absl::StrCat("in ", View(name), " on stream ", View(Name(stream)))));
  }
}

void CudaDevice::EnqueueOnHost(StreamId stream, std::string_view name,
                               std::function<absl::Status()> work) {
  const int64_t id = next_op_;  // which Enqueue announces
  Enqueue(stream, name,
          [&](cudaStream_t) { return LaunchOnHost(stream, name, id, std::move(work)); });
}

void CudaDevice::StoreTime(StreamId stream, std::chrono::steady_clock::time_point* time) {
  if (abort_.failed()) return;
  absl::Status status = LaunchOnHost(stream, "clock", -1, [time] {
    *time = std::chrono::steady_clock::now();
    return absl::OkStatus();
  });
  if (!status.ok()) Fail(std::move(status));
}

absl::Status CudaDevice::LaunchOnHost(StreamId stream, std::string_view name, int64_t id,
                                      std::function<absl::Status()> work) {
  std::deque<HostFunction>& functions = Of(stream).host_functions;
  while (!functions.empty() && functions.front().done.load(std::memory_order_acquire)) {
    functions.pop_front();
  }
  HostFunction& function = functions.emplace_back();
  function.device = this;
  function.stream = stream;
  function.name = name;
  function.id = id;
  function.work = std::move(work);
  absl::Status status = ToStatus(cudaLaunchHostFunc(Of(stream).handle, &RunHostFunction, &function),
                                 "cudaLaunchHostFunc");
  if (!status.ok()) functions.pop_back();
  return status;
}

void CUDART_CB CudaDevice::RunHostFunction(void* host_function) {
  auto& function = *static_cast<HostFunction*>(host_function);
  CudaDevice& device = *function.device;
  device.host_functions_running_.fetch_add(1, std::memory_order_relaxed);
  const bool is_op = function.id >= 0;
  Recorder* recorder = is_op ? device.options_.recorder : nullptr;
  const int rank = device.options_.rank;
  // A piece of a copy is not left out: the kernels behind it run after a failure too, and must not
  // find what was there before as tokens.
  if (!is_op || !device.abort_.failed()) {
    if (recorder != nullptr) recorder->OnBegin(rank, function.stream, function.name, function.id);
    absl::Status status = Guarded(function.work);
    if (recorder != nullptr) recorder->OnEnd(rank, function.stream, function.name, function.id);
    if (!status.ok()) device.Fail(std::move(status));
  }
  function.done.store(true, std::memory_order_release);  // it may be gone now
  // And after this the device.
  device.host_functions_running_.fetch_sub(1, std::memory_order_release);
}

absl::StatusOr<void*> CudaDevice::Workspace(int64_t bytes) const {
  if (bytes <= workspace_bytes_) return workspace();
  return absl::ResourceExhaustedError(absl::StrCat("a kernel wanted a workspace of ", bytes,
                                                   " bytes, and there are ", workspace_bytes_,
                                                   ". Use a smaller micro-batch"));
}

void CudaDevice::Fail(absl::Status error) {
  assert(!error.ok());
  // What another rank's failure made fail here keeps the name of that rank.
  const absl::Status of_run = abort_.status();
  std::string message(error.message());
  if (of_run.ok() || error != of_run) message = absl::StrCat("rank ", options_.rank, ": ", message);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (code_ != absl::StatusCode::kOk) return;
    code_ = error.code();
    message_ = message;
  }
  abort_.Fail(absl::Status(error.code(), message));
}

absl::Status CudaDevice::status() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (code_ != absl::StatusCode::kOk) return absl::Status(code_, message_);
  }
  return abort_.status();
}

Waiting CudaDevice::CurrentWait(StreamId stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_[static_cast<size_t>(stream)];
}

void CudaDevice::SetWaitingFor(StreamId stream, std::string_view what) {
  if (abort_.failed()) return;  // it stays what it was
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_[static_cast<size_t>(stream)] = {std::string(what), std::chrono::steady_clock::now()};
}

}  // namespace zerobox::cuda

namespace zerobox {

bool BuiltWithCuda() { return true; }

absl::StatusOr<int> CountGpus() {
  // The program has one thread still. A kernel that is loaded at its first launch may wait for the
  // GPU to be idle, which it never is in a collective.
  (void)setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);  // NOLINT(concurrency-mt-unsafe)
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const absl::Status status = cuda::ToStatus(error, "cudaGetDeviceCount");
  if (status.ok() && count > 0) {
    const std::string problem = cuda::CublasLtProblem();
    if (problem.empty()) return count;
    return absl::UnavailableError(
        absl::StrCat("a GPU's matrix products need cuBLASLt, and ", problem));
  }
  if (error == cudaErrorInsufficientDriver) {
    return absl::UnavailableError(absl::StrCat(
        "this machine has no NVIDIA driver, or one older than this program's CUDA ",
        CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10, " wants (install one)"));
  }
  return absl::UnavailableError(
      absl::StrCat("this machine has no CUDA devices (", status.message(), ")"));
}

int64_t GpuWorkspaceBytes(const CudaOpsSizes& sizes) {
  constexpr int kMostMultiprocessors = 256;  // no GPU has more
  return std::max(kGpuWorkspaceBytes, cuda::OpsWorkspaceBytes(sizes, kMostMultiprocessors));
}

absl::StatusOr<int64_t> FreeGpuMemory(int gpu) {
  absl::Status status = cuda::MakeCurrent(gpu);
  size_t free = 0;
  size_t total = 0;
  if (status.ok()) status = cuda::ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (!status.ok()) return status;
  return static_cast<int64_t>(free);
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options,
                                                       Abort& abort) {
  return cuda::CudaDevice::Make(options, abort);
}

}  // namespace zerobox
