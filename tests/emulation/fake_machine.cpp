// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_machine.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <tuple>
#include <utility>

#include "tests/emulation/access_checker.h"
#include "tests/emulation/simt.h"
#include "tests/emulation/symbols.h"

namespace zerobox::fake_cuda {
namespace {

// The checker of accesses, where there is one, asks these while an operation runs.
bool Ordered(uint32_t number, uint32_t other) {
  return number == other || Machine::Get().HappensBefore(number, other);
}
std::string NameOf(uint32_t number) { return Machine::Get().Describe(number); }

cudaError_t EnqueueKernel(cudaStream_t stream, simt::KernelLaunch launch) {
  const cudaError_t error = Injected("cudaLaunchKernelExC");
  if (error != cudaSuccess) return error;
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Operation operation;
  operation.kernel = launch.kernel;
  operation.work = [launch = std::move(launch)] { simt::Run(launch); };
  return Machine::Get().Push(stream, std::move(operation));
}

}  // namespace

void Report(std::string what) { simt::Report(std::move(what)); }
std::vector<std::string> TakeReports() { return simt::TakeReports(); }

void Join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

HostThread::HostThread() : id(syscall(SYS_gettid)) {}

void HostThread::Acts() {
  asks.clear();
  repeats = false;
}

HostThread::~HostThread() {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().RemoveWorker(this);
}

Machine& Machine::Get() {
  // Never destroyed: threads that end after main() still leave it.
  static Machine* machine = new Machine;
  return *machine;
}

HostThread& Machine::thread() {
  thread_local HostThread thread;
  if (thread.resets != resets_) {
    thread.resets = resets_;
    thread.device = thread.streams = 0;
    thread.was_here = false;
    thread.clock.clear();
    thread.last_error = cudaSuccess;
    thread.Acts();
    thread.asleep_at = nullptr;
  }
  return thread;
}

bool& Machine::runs_work() {
  thread_local bool runs = false;
  return runs;
}

void Machine::Reset(const Options& options) {
  options_ = options;
  streams_.clear();
  memory_.Clear();
  history_.assign(1, Past{});
  if (forget_) forget_();
  ++resets_;
  workers_.clear();
  gone_workers_ = 0;
  point_clocks_.clear();
  random_ = options.seed * 0x9E3779B97F4A7C15ull + 7;
  calls_.clear();
  failing_calls_.clear();
  failing_work_ = 0;
  broken_.clear();
  live_events = 0;
  progress_ = last_run_ = std::chrono::steady_clock::now();
  deadlock_reported_ = false;
  hold_ = false;
  Abort::ObserveAll(this);
  simt::SetLauncher(EnqueueKernel);
  if (auto* checker = simt::access_checker()) checker->SetStreamOrder(Ordered, NameOf);
}

void Machine::AddWorker(HostThread* thread) {
  const std::lock_guard<std::mutex> lock(sleep_mutex_);
  workers_.insert(thread);
  if (std::exchange(thread->was_here, false)) --gone_workers_;
}

void Machine::RemoveWorker(HostThread* thread) {
  const std::lock_guard<std::mutex> lock(sleep_mutex_);
  if (workers_.erase(thread) == 0) return;
  ++gone_workers_;
  thread->was_here = true;
}

cudaError_t Machine::CreateStream(int device, cudaStream_t* stream) {
  HostThread& self = thread();
  const auto index = std::count_if(streams_.begin(), streams_.end(), [&](const CUstream_st& s) {
    return s.device == device && s.thread == self.id;
  });
  CUstream_st& created = streams_.emplace_back();
  created.device = device;
  created.thread = self.id;
  created.number = streams_.size() - 1;
  created.index = static_cast<size_t>(index);
  *stream = &created;
  if (self.streams++ == 0) AddWorker(&self);
  NoteProgress();
  return cudaSuccess;
}

void Machine::DestroyStream(cudaStream_t stream) {
  if (!stream->queue.empty()) Report("a stream is destroyed that has work to do");
  stream->alive = false;
  for (HostThread* thread : workers_) {
    if (thread->id != stream->thread) continue;
    if (--thread->streams == 0) RemoveWorker(thread);
    return;
  }
}

int Machine::live_streams() const {
  return static_cast<int>(std::count_if(streams_.begin(), streams_.end(),
                                        [](const CUstream_st& s) { return s.alive; }));
}

cudaError_t Machine::Push(cudaStream_t stream, Operation operation) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    Report(operation.name + " on the default stream, which waits for all others");
    return cudaErrorInvalidResourceHandle;
  }
  if (!stream->alive || stream->device != thread().device) {
    Report(operation.name + " on a stream that is " +
           (stream->alive ? "another device's" : "destroyed"));
    return cudaErrorInvalidResourceHandle;
  }
  for (const Access& access : operation.accesses) {
    if (access.bytes == 0) continue;
    const Memory::Allocation* allocation = memory_.Find(access.data, access.bytes);
    if (allocation == nullptr || (!allocation->pinned && allocation->device != stream->device)) {
      Report(operation.name + (access.write ? " writes " : " reads ") +
             std::to_string(access.bytes) + " bytes at " + memory_.Describe(access.data) +
             ", which are not all in one allocation of its device or pinned");
      return cudaErrorInvalidValue;
    }
  }
  operation.host = thread().clock;
  if (operation.meeting != nullptr) operation.meeting->streams.push_back(stream);
  NoteProgress();
  stream->queue.push_back(std::move(operation));
  return cudaSuccess;
}

void Machine::Leave(cudaStream_t stream, const std::shared_ptr<Meeting>& meeting) {
  meeting->never = true;
  for (Operation& operation : stream->queue) {
    if (operation.meeting != meeting) continue;
    operation.kind = Operation::Kind::kWork;
    operation.name += ", aborted";
    operation.accesses.clear();
    operation.meeting = nullptr;
  }
}

bool Machine::Idle(int device) const {
  return std::all_of(streams_.begin(), streams_.end(), [&](const CUstream_st& stream) {
    return stream.device != device || stream.queue.empty();
  });
}

bool Machine::AllWait() const {
  if (static_cast<int>(workers_.size()) + gone_workers_ < options_.workers) return false;
  const std::lock_guard<std::mutex> lock(sleep_mutex_);
  return std::all_of(workers_.begin(), workers_.end(), [](const HostThread* thread) {
    if (thread->asleep_at != nullptr) return true;
    // One whose wait is over runs again, whether or not it has noticed.
    return thread->repeats && std::none_of(thread->asks.begin(), thread->asks.end(),
                                           [](const auto& asked) { return asked.second(); });
  });
}

void Machine::OnSleep(const WaitPoint* point) {
  const std::lock_guard<std::mutex> lock(sleep_mutex_);
  thread().asleep_at = point;
}

void Machine::OnWake(const WaitPoint* point) {
  const std::lock_guard<std::mutex> lock(sleep_mutex_);
  Join(point_clocks_[point], thread().clock);
  for (HostThread* thread : workers_) {
    if (thread->asleep_at == point) thread->asleep_at = nullptr;
  }
}

void Machine::OnReady(const WaitPoint* point) {
  const std::lock_guard<std::mutex> lock(sleep_mutex_);
  thread().asleep_at = nullptr;
  Join(thread().clock, point_clocks_[point]);
}

bool Machine::Poll(const void* what, std::function<bool()> ready) {
  HostThread& self = thread();
  const bool yes = std::erase_if(self.asks, [](const auto& asked) { return asked.second(); }) > 0;
  const bool again = !self.asks.insert_or_assign(what, std::move(ready)).second;
  // It asks what else it waits for first, and then acts on that.
  self.repeats = !yes;
  if (hold_ || yes) return true;
  const bool ends_well = RunWhileAllWait();
  self.repeats = again;
  return ends_well;
}

bool Machine::RunWhileAllWait() {
  const auto now = std::chrono::steady_clock::now();
  if (!AllWait() && now - last_run_ < options_.patience) return true;
  bool went_on = RunOne();
  // As long as nobody else runs, nobody else enqueues: going on at once spares the caller's pauses.
  while (went_on && AllWait()) went_on = RunOne();
  if (went_on || !AllWait()) return true;
  if (options_.may_stall || now - progress_ < options_.deadlock_after) return true;
  if (!deadlock_reported_) {
    Report("deadlock: all threads wait, and no stream can go on" + DescribeQueues());
  }
  deadlock_reported_ = true;
  return false;
}

bool Machine::CanRun(const CUstream_st& stream) {
  if (stream.queue.empty()) return false;
  const Operation& next = stream.queue.front();
  if (next.kind == Operation::Kind::kMeeting) return AllHaveCome(*next.meeting);
  return next.kind != Operation::Kind::kWait || next.record->done;
}

bool Machine::AllHaveCome(const Meeting& meeting) {
  if (meeting.never || meeting.streams.size() < meeting.size) return false;
  return std::all_of(
      meeting.streams.begin(), meeting.streams.end(), [&](const CUstream_st* stream) {
        return !stream->queue.empty() && stream->queue.front().meeting.get() == &meeting;
      });
}

CUstream_st* Machine::Choose() {
  std::vector<CUstream_st*> streams;
  for (CUstream_st& stream : streams_) {
    if (CanRun(stream)) streams.push_back(&stream);
  }
  if (streams.empty()) return nullptr;
  // Not by number: it depends on which thread came first.
  std::sort(streams.begin(), streams.end(), [](const CUstream_st* a, const CUstream_st* b) {
    return std::tie(a->index, a->device, a->thread) < std::tie(b->index, b->device, b->thread);
  });
  switch (options_.policy) {
    case Policy::kCommunicationFirst:
      return streams.back();
    case Policy::kComputeFirst:
      return streams.front();
    case Policy::kRandom:
      break;
  }
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return streams[(random_ >> 32) % streams.size()];
}

bool Machine::RunOne() {
  CUstream_st* stream = Choose();
  if (stream == nullptr) return false;
  if (const std::shared_ptr<Meeting> meeting = stream->queue.front().meeting) {
    RunMeeting(meeting);
  } else {
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    Run(*stream, std::move(operation));
  }
  progress_ = last_run_ = std::chrono::steady_clock::now();
  return true;
}

void Machine::Run(CUstream_st& stream, Operation operation) {
  Join(stream.clock, operation.host);
  switch (operation.kind) {
    case Operation::Kind::kWork:
      RunWork(stream, operation);
      break;
    case Operation::Kind::kRecord:
      operation.record->clock = stream.clock;
      operation.record->done = true;
      operation.record->when = std::chrono::steady_clock::now();
      break;
    case Operation::Kind::kWait:
      Join(stream.clock, operation.record->clock);
      break;
    case Operation::Kind::kMeeting:
      break;  // RunMeeting
  }
}

void Machine::RunWork(CUstream_st& stream, Operation& operation) {
  if (stream.clock.size() <= stream.number) stream.clock.resize(stream.number + 1);
  ++stream.clock[stream.number];
  if (!Begin(stream, operation, stream.clock)) {
    TouchAll(operation);
    Do(operation.work, running_);
  }
  running_ = 0;
}

// All that comes before it on one of the streams comes before what follows it on any.
void Machine::RunMeeting(const std::shared_ptr<Meeting>& meeting) {
  Clock clock;
  for (const CUstream_st* stream : meeting->streams) {
    Join(clock, stream->clock);
    Join(clock, stream->queue.front().host);
  }
  clock.resize(std::max(clock.size(), streams_.size()));
  for (const CUstream_st* stream : meeting->streams) ++clock[stream->number];
  for (CUstream_st* stream : meeting->streams) {
    // Without one of its devices it never takes place.
    meeting->never = Begin(*stream, stream->queue.front(), clock);
    if (!meeting->never) TouchAll(stream->queue.front());
    running_ = 0;
    if (meeting->never) return;
  }
  Do(meeting->work, static_cast<uint32_t>(operations_run()));
  meeting->done = true;
  for (CUstream_st* stream : meeting->streams) {
    stream->queue.pop_front();
    stream->clock = clock;
  }
}

bool Machine::Begin(const CUstream_st& stream, const Operation& operation, const Clock& clock) {
  history_.push_back({operation.name, operation.kernel, &stream, clock[stream.number], clock});
  running_ = static_cast<uint32_t>(history_.size() - 1);
  if (running_ != failing_work_) return false;
  Break(stream.device, work_error_);
  return true;
}

void Machine::TouchAll(const Operation& operation) {
  // Reads first: an operation may work in place.
  for (const bool writes : {false, true}) {
    for (const Access& access : operation.accesses) {
      if (access.write == writes) Touch(access);
    }
  }
}

void Machine::Do(const std::function<void()>& work, uint32_t number) {
  if (!work) return;
  runs_work() = true;
  if (auto* checker = simt::access_checker()) checker->SetOperation(number);
  work();
  if (auto* checker = simt::access_checker()) checker->SetOperation(0);
  runs_work() = false;
}

bool Machine::HappensBefore(uint32_t number, uint32_t other) const {
  return HappensBefore(number, history_[other].clock);
}

bool Machine::HappensBefore(uint32_t number, const Clock& clock) const {
  const Past& past = history_[number];
  return past.stream->number < clock.size() && clock[past.stream->number] >= past.count;
}

void Machine::Touch(const Access& access) {
  if (auto* checker = simt::access_checker()) {
    if (running_ != 0) checker->SetOperation(running_);
    checker->HostAccess(access.data, access.bytes,
                        access.write ? simt::AccessKind::kWrite : simt::AccessKind::kRead);
    if (!runs_work()) checker->SetOperation(0);
  }
  const Clock& clock = running_ != 0 ? history_[running_].clock : thread().clock;
  const auto ordered = [&](uint32_t before) { return HappensBefore(before, clock); };
  const std::vector<Memory::Conflict> conflicts =
      running_ != 0 ? memory_.Touch(access, running_, ordered) : memory_.Look(access, ordered);
  for (const Memory::Conflict& conflict : conflicts) {
    const std::string who =
        running_ != 0 ? history_[running_].name + " on " + Describe(*history_[running_].stream)
                      : "the host";
    Report("race: " + who + (access.write ? " writes " : " reads ") + std::to_string(access.bytes) +
           " bytes at " + memory_.Describe(access.data) + ", and nothing orders it after " +
           Describe(conflict.number) + ", which " + (conflict.wrote ? "wrote" : "read") + " there");
  }
}

void Machine::Break(int device, cudaError_t error) {
  broken_[device] = error;
  for (CUstream_st& stream : streams_) {
    if (stream.device != device) continue;
    for (Operation& operation : stream.queue) {
      if (operation.kind == Operation::Kind::kRecord) operation.record->done = true;
    }
    stream.queue.clear();
  }
}

cudaError_t Machine::broken(int device) const {
  const auto found = broken_.find(device);
  return found == broken_.end() ? cudaSuccess : found->second;
}

cudaError_t Machine::CountCall(const char* function, int device) {
  cudaError_t injected = cudaSuccess;
  for (const int counted : {-1, device}) {
    const Caller caller(counted, function);
    const int number = ++calls_[caller];
    const auto failing = failing_calls_.find(caller);
    if (failing == failing_calls_.end()) continue;
    const auto error = failing->second.find(number);
    if (error != failing->second.end()) injected = error->second;
  }
  return injected;
}

void Machine::FailCall(const std::string& function, int nth, cudaError_t error, int device) {
  const Caller caller(device, function);
  failing_calls_[caller][calls_[caller] + nth] = error;
}

std::map<std::string, int> Machine::calls(int device) const {
  std::map<std::string, int> calls;
  for (const auto& [caller, times] : calls_) {
    if (caller.first == device && times > 0) calls[caller.second] = times;
  }
  return calls;
}

void Machine::FailWork(int nth, cudaError_t error) {
  failing_work_ = operations_run() + nth;
  work_error_ = error;
}

std::string Machine::Describe(uint32_t number) const {
  const Past& past = history_[number];
  const std::string name = past.kernel != nullptr ? simt::FunctionName(past.kernel) : past.name;
  return name + " on " + Describe(*past.stream);
}

std::string Machine::Describe(const CUstream_st& stream) const {
  const std::vector<std::string>& names = options_.stream_names;
  std::string name =
      "stream " +
      (stream.index < names.size() ? names[stream.index] : std::to_string(stream.index)) +
      " of device " + std::to_string(stream.device);
  std::set<int64_t> threads;
  for (const CUstream_st& other : streams_) {
    if (other.device == stream.device) threads.insert(other.thread);
  }
  if (threads.size() < 2) return name;
  return name + ", rank " +
         std::to_string(std::distance(threads.begin(), threads.find(stream.thread)));
}

std::string Machine::DescribeQueues() const {
  std::string text;
  for (const CUstream_st& stream : streams_) {
    if (stream.queue.empty()) continue;
    text += "; " + Describe(stream) + " is before " + stream.queue.front().name;
  }
  return text;
}

}  // namespace zerobox::fake_cuda
