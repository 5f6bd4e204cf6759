// SPDX-License-Identifier: Apache-2.0
//
// The watch over a run: silent ranks end it, slow evaluating and saving does not, and who does not
// come back is given up. Its clock is the tests' own, so that none of them waits for time to pass.
#include "trainer/watch.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/device/host_device.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int kDevices = 3;
constexpr double kTimeout = 600;
constexpr int kSecondsALook = 100;

bool Contains(absl::string_view text, const std::string& part) {
  return text.find(absl::string_view(part)) != absl::string_view::npos;
}

// Opened once; who waits at it wakes.
class Gate {
 public:
  void Open() {
    open_ = true;
    open_.notify_all();
  }
  void Wait() const { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

// A clock that leaps ahead with every look of the watch, once it is told to.
class LeapingClock {
 public:
  // From now on; forgets how many looks there were before.
  void Start(int seconds_a_look) {
    seconds_a_look_ = seconds_a_look;
    looks_ = 0;
  }
  // Until the watch has looked so often since Start.
  void AwaitLooks(int looks) const {
    for (int seen = looks_; seen < looks; seen = looks_) looks_.wait(seen);
  }
  // `after_look` is called with the number of looks since Start.
  WatchHooks Hooks(const std::function<void(int)>& after_look = {}) {
    WatchHooks hooks;
    hooks.look_seconds = 0.001;
    hooks.clock = [this] {
      return std::chrono::steady_clock::now() + std::chrono::seconds(ahead_.load());
    };
    hooks.after_look = [this, after_look] {
      ahead_ += seconds_a_look_;
      const int looks = ++looks_;
      looks_.notify_all();
      if (after_look) after_look(looks);
    };
    return hooks;
  }

 private:
  std::atomic<int64_t> ahead_{0};
  std::atomic<int> seconds_a_look_{0};
  std::atomic<int> looks_{0};
};

// The devices of a run, by rank, as soon as they are there.
class Devices {
 public:
  void Set(int rank, const Device& device) { devices_[static_cast<size_t>(rank)] = &device; }
  const Device& Get(int rank) const {
    const std::atomic<const Device*>& device = devices_[static_cast<size_t>(rank)];
    while (device == nullptr) std::this_thread::yield();
    return *device;
  }
  // Until every rank but one waits for this on that stream.
  void AwaitOthers(int rank, StreamId stream, const std::string& what) const {
    for (int other = 0; other < kDevices; ++other) {
      if (other == rank) continue;
      while (Get(other).WaitingFor(stream) != what) std::this_thread::yield();
    }
  }
  void AwaitFailure(int rank) const {
    while (Get(rank).status().ok()) std::this_thread::yield();
  }

 private:
  std::array<std::atomic<const Device*>, kDevices> devices_{};
};

TrainSettings Settings(int stage, int64_t eval_interval) {
  TrainSettings settings = SmallSettings();
  settings.devices = kDevices;
  settings.zero_stage = stage;
  settings.steps = 2;
  settings.eval_interval = eval_interval;
  settings.eval_batches = 1;
  settings.collective_timeout_seconds = kTimeout;
  return settings;
}

// How a run was ended that `silent` let wait for `what`.
void ExpectTimedOut(const RunResult& result, int silent, const std::string& what) {
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded) << result.status;
  const int named = silent == 0 ? 1 : 0;  // the first of those who wait
  EXPECT_TRUE(Contains(result.status.message(),
                       "rank " + std::to_string(named) + " has waited 600 s for " + what + ": "))
      << result.status;
  EXPECT_TRUE(Contains(result.status.message(), "--collective_timeout")) << result.status;
  ASSERT_EQ(result.where.size(), kDevices);
  for (int rank = 0; rank < kDevices; ++rank) {
    const std::string& where = result.where[static_cast<size_t>(rank)];
    EXPECT_EQ(Contains(where, ", waiting for " + what) || Contains(where, ", " + what),
              rank != silent)
        << where;
  }
}

class SilentRank : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, SilentRank, testing::Range(0, 4),
                         [](const auto& stage) { return std::to_string(stage.param); });

TEST_P(SilentRank, InAnyCallEndsTheRunAndTheCallIsNamed) {
  std::atomic<int64_t> calls{0};
  TrainHooks counting;
  counting.call = [&](const CallInfo& call) {
    if (call.rank == 0) ++calls;
    return absl::OkStatus();
  };
  const TrainSettings settings = Settings(GetParam(), /*eval_interval=*/0);
  ASSERT_TRUE(RunSmall(settings, counting).result.status.ok());
  ASSERT_GT(calls, 0);
  for (int64_t number = 0; number < calls; ++number) {
    const int silent = static_cast<int>(number % kDevices);
    SCOPED_TRACE(testing::Message() << "rank " << silent << ", call " << number);
    LeapingClock clock;
    Devices devices;
    std::string awaited;
    TrainHooks hooks;
    hooks.watch = clock.Hooks();
    hooks.after_setup = [&](int rank, Device& device) { devices.Set(rank, device); };
    hooks.call = [&](const CallInfo& call) {
      if (call.rank != silent || call.number != number) return absl::OkStatus();
      awaited = Describe(call);
      devices.AwaitOthers(silent, StreamId::kCommunication, awaited);
      clock.Start(kSecondsALook);
      devices.AwaitFailure(silent);
      return absl::OkStatus();
    };
    const RunResult result = RunSmall(settings, hooks).result;
    // While it saves, the rank that says nothing may be writing.
    ExpectTimedOut(result, silent, awaited);
  }
}

// Stops one rank's worker where it waits for the end of a step.
class StopsAfterStep final : public Recorder {
 public:
  StopsAfterStep(int rank, int64_t step, std::function<void()> stop)
      : rank_(rank), step_(step), stop_(std::move(stop)) {}
  void OnHostWait(int rank, const Event& event) override {
    if (rank == rank_ && event.name() == "results read" && ++waits_ == step_) stop_();
  }
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}

 private:
  const int rank_;
  const int64_t step_;
  const std::function<void()> stop_;
  int64_t waits_ = 0;  // of that rank's worker
};

TEST_P(SilentRank, AtABarrierEndsTheRun) {
  for (const int64_t eval_interval : {2, 0}) {  // before an evaluation, and before saving
    LeapingClock clock;
    Devices devices;
    StopsAfterStep recorder(/*rank=*/1, /*step=*/2, [&] {
      devices.AwaitOthers(1, StreamId::kCompute, "the other devices");
      clock.Start(kSecondsALook);
      devices.AwaitFailure(1);
    });
    TrainHooks hooks;
    hooks.watch = clock.Hooks();
    hooks.after_setup = [&](int rank, Device& device) { devices.Set(rank, device); };
    hooks.recorder = &recorder;
    const RunResult result = RunSmall(Settings(GetParam(), eval_interval), hooks).result;
    ExpectTimedOut(result, /*silent=*/1, "the other devices");
    const std::string phase = eval_interval > 0 ? "evaluation after step 2" : "saving the model";
    EXPECT_EQ(result.where[0], phase + ", waiting for the other devices");
    EXPECT_EQ(result.where[2], phase + ", waiting for the other devices");
  }
}
