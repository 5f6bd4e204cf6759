// SPDX-License-Identifier: Apache-2.0
//
// Workers that do not come back from a failed run are given up.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/leaping_clock.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int kDevices = 3;

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

TrainSettings Settings(int stage) {
  TrainSettings settings = SmallSettings();
  settings.devices = kDevices;
  settings.zero_stage = stage;
  settings.steps = 2;
  settings.collective_timeout_seconds = 0;  // the clock leaps
  return settings;
}

class GivenUp final : public RunObserver {
 public:
  explicit GivenUp(std::function<void()> then = {}) : then_(std::move(then)) {}
  void OnStep(const StepMetrics&) override {}
  void OnEval(const EvalMetrics&) override {}
  void OnGivenUp(const RunResult& result) override {
    results.push_back(result);
    if (then_) then_();
  }
  std::vector<RunResult> results;

 private:
  const std::function<void()> then_;
};

RunResult RunObserved(const TrainSettings& settings, RunObserver* observer,
                      const TrainHooks& hooks) {
  const SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  return Train(settings, PlanRun(settings).value(), dataset, observer, nullptr, hooks);
}

TEST(AWorkerThatHangs, IsGivenUpOnceAndThenWaitedFor) {
  LeapingClock clock;
  Gate hangs, gate;
  GivenUp observer([&] { clock.Start(20); });
  TrainHooks hooks;
  hooks.watch = clock.Hooks([&](int looks) {
    if (!observer.results.empty() && looks == 10) gate.Open();
  });
  hooks.call = [&](const CallInfo& call) -> absl::Status {
    if (call.number != 4) return absl::OkStatus();
    if (call.rank == 2) {
      hangs.Wait();
      clock.Start(20);
      return absl::UnavailableError("the cable is out");
    }
    if (call.rank == 1) {  // in its communication stream
      hangs.Open();
      gate.Wait();
    }
    return absl::OkStatus();
  };
  const RunResult result = RunObserved(Settings(/*stage=*/3), &observer, hooks);
  ASSERT_EQ(observer.results.size(), 1u);
  const RunResult& known = observer.results[0];
  EXPECT_EQ(known.status.code(), absl::StatusCode::kUnavailable) << known.status;
  EXPECT_TRUE(Contains(known.status.message(), "the cable is out")) << known.status;
  EXPECT_EQ(known.steps, 0);
  ASSERT_EQ(known.where.size(), kDevices);
  EXPECT_EQ(known.where[1].substr(0, 25), "did not come back: step 1") << known.where[1];
  for (const std::string& where : known.where) {  // the others may be on their way
    EXPECT_TRUE(where.starts_with("step 1") || where.starts_with("did not come back: step 1"))
        << where;
  }
  // At last it came back.
  EXPECT_EQ(result.status, known.status);
  ASSERT_EQ(result.where.size(), kDevices);
  EXPECT_EQ(result.where[1].substr(0, 6), "step 1") << result.where[1];
}

TEST(AWorkerThatHangs, MayDoSoInItsSetUp) {
  LeapingClock clock;
  Gate gate;
  GivenUp observer([&] { gate.Open(); });
  TrainHooks hooks;
  hooks.watch = clock.Hooks();
  hooks.after_setup = [&](int rank, Device& device) {
    if (rank == 0) {
      clock.Start(20);
      device.Fail(absl::DataLossError("a bit flipped"));
    }
    if (rank == 1) gate.Wait();
  };
  const RunResult result = RunObserved(Settings(/*stage=*/0), &observer, hooks);
  EXPECT_EQ(result.status, absl::DataLossError("rank 0: a bit flipped"));
  ASSERT_EQ(observer.results.size(), 1u);
  ASSERT_EQ(observer.results[0].where.size(), kDevices);
  EXPECT_EQ(observer.results[0].where[1], "did not come back: set-up");
}

TEST(AWorkerThatHangs, IsWaitedForByWhoDoesNotGiveUp) {
  LeapingClock clock;
  Gate gate;
  TrainHooks hooks;
  hooks.watch = clock.Hooks([&](int looks) {
    if (looks == 20) gate.Open();
  });
  hooks.after_setup = [&](int rank, Device& device) {
    if (rank == 0) {
      clock.Start(1000);
      device.Fail(absl::DataLossError("a bit flipped"));
    }
    if (rank == 1) gate.Wait();
  };
  const RunResult result = RunObserved(Settings(/*stage=*/0), nullptr, hooks);
  EXPECT_EQ(result.status, absl::DataLossError("rank 0: a bit flipped"));
}

TEST(WorkersThatComeBackInTime, AreNotGivenUp) {
  GivenUp observer;
  TrainHooks hooks;
  hooks.watch.look_seconds = 0.001;
  hooks.call = [&](const CallInfo& call) {
    return call.number == 4 ? absl::UnavailableError("the cable is out") : absl::OkStatus();
  };
  const RunResult result = RunObserved(Settings(/*stage=*/3), &observer, hooks);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
  EXPECT_TRUE(observer.results.empty());
}

}  // namespace
}  // namespace zerobox
