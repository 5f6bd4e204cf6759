// SPDX-License-Identifier: Apache-2.0
//
// The watch over a run: silent ranks end it, slow evaluating and saving does not.
#include "trainer/watch.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/device/host_device.h"
#include "tests/leaping_clock.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int kDevices = 3;
constexpr double kTimeout = 600;
constexpr int kSecondsALook = 100;

bool Contains(absl::string_view text, const std::string& part) {
  return text.find(absl::string_view(part)) != absl::string_view::npos;
}

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

// Of what a recorder sees, what these tests want to.
class QuietRecorder : public Recorder {
 public:
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}
};

constexpr const char* kEndOfStep = "results read";  // what a worker then waits for

// Counts rank 0's collective calls of a number of steps.
class CallCounter final : public QuietRecorder {
 public:
  explicit CallCounter(int64_t steps) : steps_left_(steps) {}
  int64_t calls() const { return calls_; }
  void OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t) override {
    if (rank != 0 || stream != StreamId::kCommunication || steps_left_ == 0) return;
    for (int c = 0; c < kCollectives; ++c) calls_ += op == Name(static_cast<Collective>(c));
  }
  void OnHostWait(int rank, const Event& event) override {
    if (rank == 0 && event.name() == kEndOfStep && steps_left_ > 0) --steps_left_;
  }

 private:
  int64_t steps_left_;
  int64_t calls_ = 0;
};

// Stops one rank's worker where it waits for the end of a step.
class StopsAfterStep final : public QuietRecorder {
 public:
  StopsAfterStep(int rank, int64_t step, std::function<void()> stop)
      : rank_(rank), step_(step), stop_(std::move(stop)) {}
  void OnHostWait(int rank, const Event& event) override {
    if (rank == rank_ && event.name() == kEndOfStep && ++waits_ == step_) stop_();
  }

 private:
  const int rank_;
  const int64_t step_;
  const std::function<void()> stop_;
  int64_t waits_ = 0;
};

class SilentRank : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, SilentRank, testing::Range(0, 4),
                         [](const auto& stage) { return std::to_string(stage.param); });

TEST_P(SilentRank, InAnyCallOfAStepEndsTheRunAndTheCallIsNamed) {
  const TrainSettings settings = Settings(GetParam(), /*eval_interval=*/0);
  CallCounter counter(settings.steps);
  ASSERT_TRUE(RunSmall(settings, {.recorder = &counter}).result.status.ok());
  ASSERT_GE(counter.calls(), 6);
  for (int64_t number = 0; number < counter.calls(); ++number) {
    const int silent = static_cast<int>(number % kDevices);
    SCOPED_TRACE(testing::Message() << "rank " << silent << ", call " << number);
    LeapingClock clock;
    Devices devices;
    std::string call_name;
    TrainHooks hooks;
    hooks.watch = clock.Hooks();
    hooks.after_setup = [&](int rank, Device& device) { devices.Set(rank, device); };
    hooks.call = [&](const CallInfo& call) {
      if (call.rank != silent || call.number != number) return absl::OkStatus();
      call_name = Describe(call);
      devices.AwaitOthers(silent, StreamId::kCommunication, call_name);
      clock.Start(kSecondsALook);
      devices.AwaitFailure(silent);
      return absl::OkStatus();
    };
    const RunResult result = RunSmall(settings, hooks).result;
    ExpectTimedOut(result, silent, call_name);
  }
}

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

// A run in which rank 1 keeps the others waiting in the first call of step 2, while the watch looks
// and its clock leaps.
RunResult RunWithALongWait(double timeout_seconds, int seconds_a_look, int looks) {
  LeapingClock clock;
  Devices devices;
  std::atomic<bool> second_step{false};
  TrainHooks hooks;
  hooks.watch = clock.Hooks();
  hooks.after_setup = [&](int rank, Device& device) { devices.Set(rank, device); };
  hooks.loss_scale = [&](int rank, int64_t step) {
    if (rank == 1 && step == 2) second_step = true;
    return 1.0;
  };
  hooks.call = [&](const CallInfo& call) {
    if (call.rank != 1 || !second_step.exchange(false)) return absl::OkStatus();
    devices.AwaitOthers(1, StreamId::kCommunication, Describe(call));
    clock.Start(seconds_a_look, looks);
    clock.AwaitLooks(looks + 1);  // the last one by the last leap
    clock.Stop();
    return absl::OkStatus();
  };
  TrainSettings settings = Settings(/*stage=*/3, /*eval_interval=*/0);
  settings.collective_timeout_seconds = timeout_seconds;
  return RunSmall(settings, hooks).result;
}

TEST(PatientWatch, LetsRanksWaitForAsLongAsTheyMay) {
  const RunResult patient = RunWithALongWait(kTimeout, /*seconds_a_look=*/100, /*looks=*/5);
  EXPECT_TRUE(patient.status.ok()) << patient.status;
  const RunResult impatient = RunWithALongWait(kTimeout, /*seconds_a_look=*/100, /*looks=*/8);
  EXPECT_EQ(impatient.status.code(), absl::StatusCode::kDeadlineExceeded) << impatient.status;
}

TEST(PatientWatch, NeverFailsARunThatHasNoTimeout) {
  const RunResult result = RunWithALongWait(0, /*seconds_a_look=*/1'000'000, /*looks=*/30);
  EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST(PatientWatch, DoesNotCountTimeInWhichItCouldNotLook) {
  // A stopped process, or a machine that sleeps.
  const RunResult result = RunWithALongWait(kTimeout, /*seconds_a_look=*/100'000, /*looks=*/30);
  EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST(PatientWatch, DoesNotCountTimeInWhichARankSaves) {
  for (int stage = 0; stage <= 3; ++stage) {
    LeapingClock clock;
    Devices devices;
    int written = 0;
    TrainHooks hooks;
    hooks.watch = clock.Hooks();
    hooks.after_setup = [&](int rank, Device& device) { devices.Set(rank, device); };
    hooks.parameter = [&](const std::string&, const float*, int64_t) {
      if (written++ != 0) return;
      // At stage 3, the others wait for what rank 0 does not gather before it has written this.
      while (stage == 3 && devices.Get(1).WaitingFor(StreamId::kCommunication).empty()) {
        std::this_thread::yield();
      }
      clock.Start(kSecondsALook);
      clock.AwaitLooks(30);
      clock.Stop();
    };
    const RunResult result = RunSmall(Settings(stage, /*eval_interval=*/0), hooks).result;
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_GT(written, 1);
  }
}

TEST(PatientWatch, DoesNotCountTimeInWhichARankEvaluates) {
  LeapingClock clock;
  StopsAfterStep recorder(/*rank=*/2, /*step=*/3, [&] {
    clock.Start(kSecondsALook);
    clock.AwaitLooks(30);
    clock.Stop();
  });
  TrainHooks hooks;
  hooks.watch = clock.Hooks();
  hooks.recorder = &recorder;
  TrainSettings settings = Settings(/*stage=*/3, /*eval_interval=*/2);
  settings.steps = 4;
  const RunResult result = RunSmall(settings, hooks).result;
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.eval_metrics.size(), 2u);
}

//---- The watch alone

// Ranks of which nothing is there but what they wait for.
class WatchedRanks {
 public:
  explicit WatchedRanks(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      devices_.push_back(HostDevice::Make({.rank = rank}, abort_).value());
      statuses_.push_back(std::make_unique<RankStatus>(hooks_.clock));
      statuses_.back()->SetDevice(devices_.back().get());
    }
  }
  HostDevice& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }
  RankStatus& status(int rank) { return *statuses_[static_cast<size_t>(rank)]; }

  // What the watch makes of it, after `looks` looks.
  absl::Status Look(int looks) {
    std::vector<const RankStatus*> ranks;
    for (const auto& status : statuses_) ranks.push_back(status.get());
    Watch watch(ranks, kTimeout, hooks_, abort_);
    clock_.Start(kSecondsALook);
    after_look_ = [&](int look) {
      if (look != looks) return;
      for (size_t rank = 0; rank < ranks.size(); ++rank) watch.Back(static_cast<int>(rank));
    };
    watch.UntilAllAreBack([] {});
    return abort_.status();
  }

 private:
  Abort abort_;
  LeapingClock clock_;
  std::function<void(int)> after_look_;
  const WatchHooks hooks_ = clock_.Hooks([this](int look) { after_look_(look); });
  std::vector<std::unique_ptr<HostDevice>> devices_;
  std::vector<std::unique_ptr<RankStatus>> statuses_;
};

TEST(Watch, NamesTheRankAndWhatItWaitsFor) {
  WatchedRanks ranks(2);
  ranks.device(1).SetWaitingFor(StreamId::kCommunication, "a call");
  EXPECT_EQ(ranks.Look(20), absl::DeadlineExceededError(
                                "rank 1 has waited 600 s for a call: a device does not answer. "
                                "Where it is only slow, raise --collective_timeout (0: wait for "
                                "ever)"));
}

TEST(Watch, DoesNotTakeAWaitForTheSameDeviceForOneForOthers) {
  WatchedRanks ranks(1);
  ranks.device(0).SetWaitingFor(StreamId::kCompute, "an event");
  ranks.device(0).SetWaitingFor(StreamId::kToHost, "another");
  EXPECT_TRUE(ranks.Look(20).ok());
}

TEST(Watch, DoesNotExcuseRanksThatEvaluateAndAllWait) {
  WatchedRanks ranks(2);
  const RankStatus::Pause pause(ranks.status(0)), other(ranks.status(1));
  for (const int rank : {0, 1}) {
    ranks.device(rank).SetWaitingFor(StreamId::kCommunication, "a call");
    ranks.device(rank).SetWaitingFor(StreamId::kCompute, "its end");
  }
  EXPECT_EQ(ranks.Look(20).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Watch, ExcusesThemWhileOneOfThemDoesSomething) {
  WatchedRanks ranks(2);
  const RankStatus::Pause pause(ranks.status(0)), other(ranks.status(1));
  ranks.device(0).SetWaitingFor(StreamId::kCommunication, "a call");
  ranks.device(0).SetWaitingFor(StreamId::kCompute, "its end");
  EXPECT_TRUE(ranks.Look(20).ok());
}

TEST(Watch, CountsAgainAfterAPause) {
  WatchedRanks ranks(2);
  ranks.device(1).SetWaitingFor(StreamId::kCommunication, "a call");
  {
    const RankStatus::Pause pause(ranks.status(0));
    EXPECT_TRUE(ranks.Look(20).ok());
  }
  EXPECT_TRUE(ranks.Look(5).ok());
  EXPECT_EQ(ranks.Look(20).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace zerobox
