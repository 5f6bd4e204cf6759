// SPDX-License-Identifier: Apache-2.0
#include "ops/device/host_device.h"

#include <cassert>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/device/guarded.h"
#include "ops/device/host_memory.h"
#include "ops/device/host_stream.h"
#include "ops/device/thread_sanitizer.h"
#include "ops/device/thread_team.h"
#include "ops/host/host_ops.h"

namespace zerobox {
namespace {

absl::Status NoThread(const std::system_error& error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the machine does not give a device one more thread: ", error.what(),
                   ". Use fewer devices or threads"));
}

}  // namespace

struct HostDevice::State {
  // One side: memory of its own, kernels on one stream, and the threads that these share.
  struct Side {
    Side(HostMemory reserved, const RegionBytes& regions)
        : memory(std::move(reserved)), pool(memory.data(), regions) {}
    HostMemory memory;
    MemoryPool pool;
    std::unique_ptr<Ops> ops;
    std::unique_ptr<ThreadTeam> team;
  };
  State(HostMemory device_memory, HostMemory host_memory, const HostDeviceOptions& options,
        Abort& abort)
      : device(std::move(device_memory), options.regions),
        host(std::move(host_memory), options.host_regions),
        events(abort) {}

  Side& Of(StreamId stream) { return stream == StreamId::kToHost ? host : device; }

  Side device, host;
  WaitPoint events;  // guards every Mark
  int64_t next_op = 0;
  std::atomic<int64_t> to_host{0};
  std::atomic<int64_t> from_host{0};

  mutable std::mutex mutex;
  absl::StatusCode code = absl::StatusCode::kOk;  // in parts, for the reason given in Abort
  std::string message;
  std::array<Waiting, kStreams> waiting;
  std::deque<double> exposed;  // seconds of the waits for communication that are not asked for

  int64_t communication_waits = 0;  // the worker's alone, as is the next
  int64_t waits_asked = 0;

  // Last, so that they end before anything that their work uses.
  std::array<std::unique_ptr<HostStream>, kStreams> streams;
};

// Shared by the event, the stream that reaches it and whoever waits for it, as an event may be
// destroyed or recorded again before.
struct HostDevice::Mark {
  explicit Mark(StreamId recorded_on) : stream(recorded_on) {}
  const StreamId stream;
  bool done = false;
};

class HostDevice::HostEvent final : public Event {
 public:
  using Event::Event;
  std::shared_ptr<Mark> latest;  // null before the first Record; the worker's alone
};

absl::StatusOr<std::unique_ptr<HostDevice>> HostDevice::Make(HostDeviceOptions options,
                                                             Abort& abort) {
  absl::StatusOr<HostMemory> memory = HostMemory::Reserve(RoundUpRegions(options.regions));
  if (!memory.ok()) return memory.status();
  absl::StatusOr<HostMemory> host_memory =
      HostMemory::Reserve(RoundUpRegions(options.host_regions));
  if (!host_memory.ok()) return host_memory.status();
  auto device = std::unique_ptr<HostDevice>(new HostDevice(options, abort));
  device->state_ =
      std::make_unique<State>(*std::move(memory), *std::move(host_memory), options, abort);
  State& state = *device->state_;
  try {
    state.device.team = std::make_unique<ThreadTeam>(options.threads);
    state.host.team = std::make_unique<ThreadTeam>(options.host_threads);
  } catch (const std::system_error& error) {
    return NoThread(error);
  }
  state.device.pool.set_recorder(options.recorder, options.rank);
  for (State::Side* side : {&state.device, &state.host}) {
    if (options.poison) side->pool.PoisonFreshMemory();
  }
  state.device.ops = MakeHostOps(*device, StreamId::kCompute);
  state.host.ops = MakeHostOps(*device, StreamId::kToHost);
  return device;
}

HostDevice::HostDevice(const HostDeviceOptions& options, Abort& abort)
    : options_(options), abort_(abort) {}

HostDevice::~HostDevice() = default;

void HostDevice::StopStreams() {
  for (std::unique_ptr<HostStream>& stream : state_->streams) stream.reset();
}

bool HostDevice::Inline(StreamId stream) const {
  return stream == StreamId::kCompute && !options_.threaded_compute;
}

Ops& HostDevice::ops() { return *state_->device.ops; }
MemoryPool& HostDevice::memory() { return state_->device.pool; }
Ops& HostDevice::host_ops() { return *state_->host.ops; }
MemoryPool& HostDevice::host_memory() { return state_->host.pool; }
int HostDevice::threads(StreamId stream) const { return state_->Of(stream).team->threads(); }

void HostDevice::Push(StreamId stream, std::function<void()> item) {
  if (Inline(stream)) {
    item();
    return;
  }
  std::unique_ptr<HostStream>& queue = state_->streams[static_cast<size_t>(stream)];
  if (queue == nullptr) {
    if (abort_.failed()) return;
    try {
      queue = std::make_unique<HostStream>(abort_);
    } catch (const std::system_error& error) {
      Fail(NoThread(error));
      return;
    }
  }
  queue->Push(std::move(item));
}

void HostDevice::Enqueue(StreamId stream, std::string_view name,
                         std::function<absl::Status()> work) {
  const int64_t id = state_->next_op++;
  if (options_.recorder != nullptr) options_.recorder->OnEnqueue(rank(), stream, name, id);
  if (Inline(stream)) {
    RunOp(stream, name, id, work);
    return;
  }
  Push(stream, [this, stream, name, id, work = std::move(work)] { RunOp(stream, name, id, work); });
}

void HostDevice::RunOp(StreamId stream, std::string_view name, int64_t id,
                       const std::function<absl::Status()>& work) {
  if (abort_.failed()) return;
  if (options_.recorder != nullptr) options_.recorder->OnBegin(rank(), stream, name, id);
  absl::Status status = Guarded(work);
  if (options_.recorder != nullptr) options_.recorder->OnEnd(rank(), stream, name, id);
  if (!status.ok()) Fail(std::move(status));
}

std::unique_ptr<Event> HostDevice::MakeEvent(std::string_view name) {
  return std::make_unique<HostEvent>(name);
}

void HostDevice::Record(Event& event, StreamId stream) {
  if (options_.recorder != nullptr) options_.recorder->OnRecord(rank(), stream, event);
  std::shared_ptr<Mark> mark = std::make_shared<Mark>(stream);
  {
    const UnorderedScope scope;
    static_cast<HostEvent&>(event).latest = mark;
  }
  Push(stream, [this, mark = std::move(mark)] {
    Publish(mark.get());
    const UnorderedScope scope;
    state_->events.Notify([&] { mark->done = true; });
  });
}

void HostDevice::Wait(StreamId stream, const Event& event) {
  const std::shared_ptr<Mark>& latest = static_cast<const HostEvent&>(event).latest;
  if (latest == nullptr) return;
  if (options_.recorder != nullptr) options_.recorder->OnWait(rank(), stream, event);
  if (Dropped(event.name(), Name(stream))) return;
  if (stream == StreamId::kCompute && latest->stream == StreamId::kCommunication) {
    ++state_->communication_waits;
  }
  if (Inline(stream)) {
    WaitInStream(stream, event.name(), *latest);
    return;
  }
  std::shared_ptr<Mark> mark;
  {
    const UnorderedScope scope;
    mark = latest;
  }
  Push(stream, [this, stream, name = event.name(), mark = std::move(mark)] {
    WaitInStream(stream, name, *mark);
  });
}

absl::Status HostDevice::HostWait(const Event& event) {
  const std::shared_ptr<Mark>& latest = static_cast<const HostEvent&>(event).latest;
  if (latest == nullptr) return status();
  if (options_.recorder != nullptr) options_.recorder->OnHostWait(rank(), event);
  if (!Dropped(event.name(), "host")) WaitForMark(StreamId::kCompute, event.name(), *latest);
  return status();
}

bool HostDevice::Dropped(std::string_view event, std::string_view waiter) const {
  if (options_.drop_wait.empty()) return false;
  return options_.drop_wait == std::string(event) + " -> " + std::string(waiter);
}

double HostDevice::WaitForMark(StreamId waiter, const std::string& name, Mark& mark) {
  double seconds = 0;
  {
    const UnorderedScope scope;
    SetWaiting(waiter, name, /*own_event=*/true);
    const auto begin = std::chrono::steady_clock::now();
    bool stands_still = false;
    const bool done = state_->events.WaitUntil([&] {
      stands_still = stands_still || !mark.done;
      return mark.done;
    });
    if (stands_still) {
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (!done) return seconds;
    SetWaitingFor(waiter, "");
  }
  Follow(&mark);
  return seconds;
}

void HostDevice::WaitInStream(StreamId stream, const std::string& name, Mark& mark) {
  const double seconds = WaitForMark(stream, name, mark);
  if (stream != StreamId::kCompute || mark.stream != StreamId::kCommunication) return;
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->exposed.push_back(seconds);
}

int64_t HostDevice::communication_waits() const { return state_->communication_waits; }

double HostDevice::SecondsExposed(int64_t end) {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  double seconds = 0;
  // Fewer than were enqueued, in a failed run.
  for (; state_->waits_asked < end && !state_->exposed.empty(); ++state_->waits_asked) {
    seconds += state_->exposed.front();
    state_->exposed.pop_front();
  }
  return seconds;
}

void HostDevice::Copy(StreamId stream, Buffer to, Buffer from) {
  assert(to.dtype == from.dtype && to.elements == from.elements);
  Enqueue(stream, "copy", [to, from] {
    if (!to.empty()) std::memmove(to.data, from.data, static_cast<size_t>(to.bytes()));
    return absl::OkStatus();
  });
}

void HostDevice::Zero(StreamId stream, Buffer buffer) {
  Enqueue(stream, "zero", [buffer] {
    if (!buffer.empty()) std::memset(buffer.data, 0, static_cast<size_t>(buffer.bytes()));
    return absl::OkStatus();
  });
}

void HostDevice::CopyToHost(StreamId stream, void* to, Buffer from) {
  if (options_.recorder != nullptr) options_.recorder->OnCopy(rank(), stream, to, from);
  Enqueue(stream, "copy_to_host", [this, to, from] {
    if (!from.empty()) std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
    state_->to_host += from.bytes();
    return absl::OkStatus();
  });
}

void HostDevice::CopyFromHost(StreamId stream, Buffer to, const void* from) {
  if (options_.recorder != nullptr) options_.recorder->OnCopy(rank(), stream, from, to);
  Enqueue(stream, "copy_from_host", [this, to, from] {
    if (!to.empty()) std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
    state_->from_host += to.bytes();
    return absl::OkStatus();
  });
}

CopiedBytes HostDevice::copied() const { return {state_->to_host, state_->from_host}; }

void HostDevice::Announce(Activity activity, int unit) {
  if (options_.recorder != nullptr) options_.recorder->OnAnnounce(rank(), activity, unit);
}

class HostDevice::HostTimeMarks final : public TimeMarks {
 public:
  explicit HostTimeMarks(HostDevice& device) : device_(device) {}
  void Begin() override { used_ = 0; }
  int Mark(StreamId stream) override {
    if (used_ == times_.size()) times_.emplace_back();
    device_.Push(stream, [&time = times_[used_]] {
      time = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    });
    return static_cast<int>(used_++);
  }
  absl::StatusOr<std::vector<int64_t>> Times() override {
    return std::vector<int64_t>(times_.begin(), times_.begin() + static_cast<int64_t>(used_));
  }

 private:
  HostDevice& device_;
  std::deque<int64_t> times_;  // what a stream is to write stays where it is
  size_t used_ = 0;
};

std::unique_ptr<TimeMarks> HostDevice::MakeTimeMarks() {
  return std::make_unique<HostTimeMarks>(*this);
}

void HostDevice::ParallelFor(StreamId stream, int64_t tasks,
                             const std::function<void(int64_t)>& task) {
  state_->Of(stream).team->Run(tasks, [&](int64_t i) {
    absl::Status status = Guarded([&] {
      task(i);
      return absl::OkStatus();
    });
    if (!status.ok()) Fail(std::move(status));
  });
}

void HostDevice::Fail(absl::Status error) {
  assert(!error.ok());
  // What another rank's failure made fail here keeps the name of that rank.
  const absl::Status of_run = abort_.status();
  std::string message(error.message());
  if (of_run.ok() || error != of_run) message = absl::StrCat("rank ", rank(), ": ", message);
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->code != absl::StatusCode::kOk) return;
    state_->code = error.code();
    state_->message = message;
  }
  abort_.Fail(absl::Status(error.code(), message));
}

absl::Status HostDevice::status() const {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->code != absl::StatusCode::kOk) return absl::Status(state_->code, state_->message);
  }
  return abort_.status();
}

Waiting HostDevice::CurrentWait(StreamId stream) const {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->waiting[static_cast<size_t>(stream)];
}

void HostDevice::SetWaitingFor(StreamId stream, std::string_view what) {
  SetWaiting(stream, what, /*own_event=*/false);
}

void HostDevice::SetWaiting(StreamId stream, std::string_view what, bool own_event) {
  // What was waited for when the run failed stays named, also while the queues run empty.
  if (abort_.failed()) return;
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->waiting[static_cast<size_t>(stream)] = {std::string(what),
                                                  std::chrono::steady_clock::now(), own_event};
}

}  // namespace zerobox
