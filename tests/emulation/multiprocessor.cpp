// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/multiprocessor.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/emulation/symbols.h"

namespace zerobox::simt {

__thread const Thread* current_thread = nullptr;

bool Site::operator==(const Site& other) const {
  return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
}

namespace {

// What kernels need, and what a report does on the stack of the thread that it is about.
constexpr size_t kStackBytes = size_t{256} * 1024;

std::string Print(Site site) { return absl::StrCat(site.file, ":", site.line); }

}  // namespace

Multiprocessor& Multiprocessor::OfThisThread() {
  static thread_local Multiprocessor multiprocessor;
  return multiprocessor;
}

//---- Grids and blocks -------------------------------------------------------------------------

void Multiprocessor::Run(const KernelLaunch& launch) {
  assert(current_thread == nullptr);  // no launch from device code
  BeginGrid(launch);
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  stopped_ = false;
  for (uint64_t i = 0; i < blocks && !stopped_; ++i) {
    BeginBlock(BlockInOrder(i, blocks));
    RunBlock();
    EndBlock();
  }
}

void Multiprocessor::BeginGrid(const KernelLaunch& launch) {
  launch_ = &launch;
  ++launches_;
  random_ = options().seed * 0x9E3779B97F4A7C15u + 12345;
  position_ = {launch.grid, launch.block, {}};
  const dim3 block = launch.block;
  const uint32_t count = block.x * block.y * block.z;
  threads_.resize(count);
  states_.assign(count, {});
  copies_.resize(count);
  warps_.resize((count + kLanes - 1) / kLanes);
  for (uint32_t i = 0; i < count; ++i) {
    threads_[i] = {.index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)},
                   .number = i,
                   .lane = i % kLanes,
                   .warp = i / kLanes,
                   .block = &position_};
  }
}

uint64_t Multiprocessor::BlockInOrder(uint64_t i, uint64_t blocks) const {
  // A prime, so that its multiples visit every block.
  constexpr uint64_t kStride = 2654435761;
  switch (options().order) {
    case Order::kForward:
      return i;
    case Order::kReverse:
      return blocks - 1 - i;
    case Order::kRandom:
      return blocks % kStride == 0 ? i : (i * kStride + options().seed) % blocks;
  }
  return i;
}

void Multiprocessor::BeginBlock(uint64_t number) {
  // Counts of barriers are unlike those of every other block.
  static std::atomic<uint32_t> barriers = 0;
  block_barriers_ = barriers += 1u << 12;
  block_number_ = static_cast<uint32_t>(number);
  const dim3 grid = position_.grid_dim;
  position_.index = {static_cast<uint32_t>(number % grid.x),
                     static_cast<uint32_t>(number / grid.x % grid.y),
                     static_cast<uint32_t>(number / (uint64_t{grid.x} * grid.y))};
  alive_ = static_cast<uint32_t>(threads_.size());
  for (size_t i = 0; i < warps_.size(); ++i) {
    const size_t lanes = std::min<size_t>(kLanes, threads_.size() - i * kLanes);
    warps_[i].alive = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    warps_[i].barriers = 0;
    for (Rendezvous& meeting : warps_[i].pending) meeting.lanes = 0;
  }
  barrier_.arrived = 0;
  barrier_.count = 0;
  barrier_.waiting.clear();
  ready_.clear();
  first_ready_ = 0;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    states_[i].state = State::kNotStarted;
    ready_.push_back(i);
  }
  shared_memory_.Begin(launch_->shared_bytes);
}

// The scheduler's fiber is left for the first thread, and entered again when no thread is ready.
void Multiprocessor::RunBlock() {
  running_ = &scheduler_;
  Enter(TakeReady());
  current_thread = nullptr;
  if (!stopped_ && alive_ > 0) {
    Report(DeadlockReport());
    stopped_ = true;
  }
}

void Multiprocessor::EndBlock() {
  if (stopped_) {
    for (CopyQueue& copies : copies_) copies.Clear();
    free_fibers_.clear();
    for (const auto& fiber : fibers_) free_fibers_.push_back(fiber.get());
  }
  shared_memory_.Clear();
}

//---- The scheduler ----------------------------------------------------------------------------

void Multiprocessor::MakeReady(uint32_t thread) {
  states_[thread].state = State::kReady;
  ready_.push_back(thread);
}

int Multiprocessor::TakeReady() {
  if (first_ready_ == ready_.size()) {
    ready_.clear();
    first_ready_ = 0;
    return kNone;
  }
  switch (options().order) {
    case Order::kForward:
      return static_cast<int>(ready_[first_ready_++]);
    case Order::kReverse:
      break;
    case Order::kRandom: {
      const uint32_t count = static_cast<uint32_t>(ready_.size() - first_ready_);
      std::swap(ready_[first_ready_ + RandomBelow(count)], ready_.back());
      break;
    }
  }
  const int thread = static_cast<int>(ready_.back());
  ready_.pop_back();
  return thread;
}

// xorshift64 (Marsaglia 2003).
uint32_t Multiprocessor::RandomBelow(uint32_t n) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<uint32_t>(random_ >> 32) % n;
}

void Multiprocessor::SwitchTo(Fiber& fiber) {
  Fiber& from = *running_;
  running_ = &fiber;
  Fiber::Switch(from, fiber);
}

Fiber& Multiprocessor::FreeFiber() {
  if (free_fibers_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(kStackBytes));
    free_fibers_.push_back(fibers_.back().get());
  }
  Fiber& fiber = *free_fibers_.back();
  free_fibers_.pop_back();
  fiber.Prepare(FiberMain);
  return fiber;
}

// Leaves the running fiber for the thread's, which may be a new one.
void Multiprocessor::Enter(int thread) {
  current_thread = &threads_[thread];
  ThreadState& state = states_[thread];
  if (state.state == State::kNotStarted) state.fiber = &FreeFiber();
  state.state = State::kReady;
  SwitchTo(*state.fiber);
}

void Multiprocessor::Wait(Site site) {
  const Thread* self = current_thread;
  states_[self->number].state = State::kWaiting;
  states_[self->number].site = site;
  if (const int next = TakeReady(); next != kNone) {
    Enter(next);
  } else {
    SwitchTo(scheduler_);  // a deadlock
  }
  current_thread = self;
}

void Multiprocessor::FiberMain() {
  Multiprocessor& self = OfThisThread();
  self.running_->Entered(self.scheduler_);
  self.RunThreadsUntilOneWaits();
  std::abort();  // nobody enters this fiber again before it is prepared
}

// A thread that ends hands its stack to the next one that did not start yet, without a switch: a
// kernel without barriers runs on one fiber.
void Multiprocessor::RunThreadsUntilOneWaits() {
  for (;;) {
    launch_->thread();
    ExitThread();
    const int next = TakeReady();
    if (next != kNone && states_[next].state == State::kNotStarted) {
      current_thread = &threads_[next];
      states_[next].state = State::kReady;
      states_[next].fiber = running_;
      continue;
    }
    free_fibers_.push_back(running_);
    if (next != kNone) {
      Enter(next);
    } else {
      SwitchTo(scheduler_);
    }
  }
}

void Multiprocessor::ExitThread() {
  const Thread& thread = *current_thread;
  states_[thread.number].state = State::kDone;
  --alive_;
  warps_[thread.warp].alive &= ~(1u << thread.lane);
  if (!copies().empty()) {
    ReportAbout(thread.number, "a thread exits without a wait for its cp.async");
    copies().Clear();
  }
  for (const Rendezvous& meeting : warps_[thread.warp].pending) {
    if ((meeting.lanes >> thread.lane & 1) == 0) continue;
    Stop([&] {
      return absl::StrCat("divergent warp: a lane exits while others wait for it at ",
                          Print(meeting.site));
    });
  }
  if (alive_ > 0 && barrier_.arrived == alive_) {
    ReportAbout(thread.number, absl::StrCat("divergent barrier: a thread exits while the others "
                                            "wait at __syncthreads ",
                                            Print(barrier_.site)));
    ReleaseBarrier();
  }
}

//---- Barriers ---------------------------------------------------------------------------------

int Multiprocessor::Barrier(simt::Barrier kind, bool predicate, Site site) {
  if (barrier_.arrived == 0) {
    barrier_.kind = kind;
    barrier_.site = site;
  } else if (barrier_.kind != kind || !(barrier_.site == site)) {
    Stop([&] {
      return absl::StrCat("divergent barrier: a thread is at __syncthreads ", Print(site),
                          " while others wait at ", Print(barrier_.site));
    });
  }
  barrier_.count += predicate;
  if (++barrier_.arrived < alive_) {
    barrier_.waiting.push_back(current_thread->number);
    Wait(site);
    return barrier_.result;
  }
  if (alive_ != threads_.size()) {
    ReportAbout(current_thread->number,
                absl::StrCat("divergent barrier: __syncthreads ", Print(site), " is reached after ",
                             threads_.size() - alive_, " threads of the block exited"));
  }
  ReleaseBarrier();
  return barrier_.result;
}

// Everyone reads the result before anyone can complete the next barrier.
void Multiprocessor::ReleaseBarrier() {
  switch (barrier_.kind) {
    case simt::Barrier::kPlain:
    case simt::Barrier::kCount:
      barrier_.result = static_cast<int>(barrier_.count);
      break;
    case simt::Barrier::kOr:
      barrier_.result = barrier_.count > 0;
      break;
    case simt::Barrier::kAnd:
      barrier_.result = barrier_.count == barrier_.arrived;
      break;
  }
  barrier_.arrived = 0;
  barrier_.count = 0;
  ++block_barriers_;
  for (const uint32_t thread : barrier_.waiting) MakeReady(thread);
  barrier_.waiting.clear();
}

//---- Reports ----------------------------------------------------------------------------------

void Multiprocessor::GiveUp() {
  stopped_ = true;
  current_thread = nullptr;
  SwitchTo(scheduler_);
  std::abort();
}

void Multiprocessor::ReportAbout(uint32_t thread, const std::string& what) const {
  Report(absl::StrCat(what, " (", NameOf(thread), ")"));
}

Instant Multiprocessor::InstantOf(uint32_t thread) const {
  return {.launch = launches_,
          .block = block_number_,
          .block_barrier = block_barriers_,
          .thread = static_cast<uint16_t>(thread),
          .warp_barrier = warps_[thread / kLanes].barriers};
}

std::string Multiprocessor::NameOf(uint32_t thread) const {
  const uint3 block = position_.index, index = threads_[thread].index;
  return absl::StrFormat("%s block (%d,%d,%d) thread (%d,%d,%d)", FunctionName(launch_->kernel),
                         block.x, block.y, block.z, index.x, index.y, index.z);
}

std::string Multiprocessor::DeadlockReport() const {
  std::string report = "deadlock:";
  if (barrier_.arrived > 0) {
    absl::StrAppend(&report, " ", barrier_.arrived, " of ", alive_,
                    " threads wait at __syncthreads ", Print(barrier_.site), ";");
  }
  for (size_t i = 0; i < warps_.size(); ++i) {
    for (const Rendezvous& meeting : warps_[i].pending) {
      if (meeting.lanes == 0) continue;
      absl::StrAppendFormat(&report, " lanes 0x%08x of 0x%08x of warp %d wait at %s;",
                            meeting.arrived, meeting.lanes, i, Print(meeting.site));
    }
  }
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    if (states_[i].state == State::kDone) continue;
    absl::StrAppend(&report, " the first is ", NameOf(i), " at ", Print(states_[i].site));
    break;
  }
  return report;
}

int BlockBarrier(Barrier kind, bool predicate, Site site) {
  return Multiprocessor::OfThisThread().Barrier(kind, predicate, site);
}

}  // namespace zerobox::simt
