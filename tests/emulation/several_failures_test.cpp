// SPDX-License-Identifier: Apache-2.0
//
// A rank on GPUs fails at a collective call, leaves one out, makes another one, or never comes to
// it: the run ends, with the first error, and each rank says which call it was in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cuda/cuda.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/emulation/train_runs.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

void Yield() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

// The devices of a run, by rank, as soon as they are there.
class Devices {
 public:
  void AddTo(TrainHooks& hooks) {
    hooks.after_setup = [this](int rank, Device& device) { devices_[rank] = &device; };
  }
  void AwaitFailure(int rank) const {
    const fake_cuda::Idle idle;
    while (devices_[rank].load()->status().ok()) Yield();
  }
  // Until the other rank has been in this call for a while: for a moment it also says so while it
  // enqueues the call.
  void AwaitOther(int rank, const std::string& call) const {
    const fake_cuda::Idle idle;
    const std::atomic<const Device*>& other = devices_[1 - rank];
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto arrived = [&] {
      const Device* device = other;
      if (device == nullptr) return false;
      const Waiting wait = device->CurrentWait(StreamId::kCommunication);
      return wait.what == call &&
             std::chrono::steady_clock::now() - wait.since >= std::chrono::milliseconds(100);
    };
    while (!arrived()) {
      Yield();
      if (std::chrono::steady_clock::now() < give_up) continue;
      ADD_FAILURE() << "rank " << 1 - rank << " is not in " << call;
      return;
    }
  }

 private:
  std::array<std::atomic<const Device*>, 2> devices_{};
};

// A clock that leaps ahead when nothing has run for a while: then nothing will.
class StandstillClock {
 public:
  WatchHooks Hooks() {
    WatchHooks hooks;
    hooks.look_seconds = 0.001;
    hooks.clock = [this] { return std::chrono::steady_clock::now() + ahead_; };
    hooks.after_look = [this] {
      const int64_t operations = fake_cuda::OperationsRun();
      looks_ = operations == operations_ ? looks_ + 1 : 0;
      operations_ = operations;
      if (looks_ > 1000) ahead_ += std::chrono::seconds(100);
    };
    return hooks;
  }

 private:
  // The watch's thread's alone.
  std::chrono::seconds ahead_{0};
  int looks_ = 0;
  int64_t operations_ = 0;
};

// Makes one call of a rank another one, or none.
class Disturbed final : public Communicator {
 public:
  Disturbed(Communicator& real, int64_t number, bool skip)
      : real_(real), number_(number), skip_(skip) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  Traffic traffic() const override { return real_.traffic(); }

 private:
  void Call(Collective collective, Buffer buffer, int, CallLabel label) override {
    const bool here = number_-- == 0;
    if (here && skip_) return;
    switch (collective) {
      case Collective::kAllGather:
        return here ? real_.ReduceScatterSum(buffer, label) : real_.AllGather(buffer, label);
      case Collective::kReduceScatter:
        return here ? real_.AllReduceSum(buffer, label) : real_.ReduceScatterSum(buffer, label);
      case Collective::kAllReduce:
        return here ? real_.Broadcast(buffer, 0, label) : real_.AllReduceSum(buffer, label);
      case Collective::kBroadcast:
        ADD_FAILURE() << "not in training";
    }
  }

  Communicator& real_;
  int64_t number_;  // of calls until that one
  const bool skip_;
};

// Parameter: all ranks are on one GPU.
class SeveralGpusFailures : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!on_one_gpu() && !CheckNccl().ok()) GTEST_SKIP() << CheckNccl();
    Reset();
    const RunResult result = RunSmall(settings_, {.call =
                                                      [&](const CallInfo& call) {
                                                        if (call.rank == 0) calls_.push_back(call);
                                                        return absl::OkStatus();
                                                      }})
                                 .result;
    ASSERT_TRUE(result.status.ok()) << result.status;
    const Traffic& step = result.ranks[0].step_traffic;
    for (const CollectiveCount& count : step.collectives) step_calls_ += count.calls;
    step_calls_ += step.scalars.calls;
    // Three blocks and the ends, gathered twice but for the last block and reduced once; the sum of
    // squares; the evaluation's and the model file's gathers.
    EXPECT_EQ(step_calls_, 2 * 4 - 1 + 4 + 1);
    ASSERT_GE(std::ssize(calls_), step_calls_ + 8);
  }
  static bool on_one_gpu() { return GetParam(); }
  static void Reset() {
    fake_cuda::Reset({.devices = on_one_gpu() ? 1 : 2, .workers = 2, .may_stall = true});
  }
  // Those of a step at which the next is of another kind, so that a rank that leaves one out is
  // seen at once. (Else it works with other data until it ends a call too early.)
  std::vector<int64_t> LastOfAKind() const {
    std::vector<int64_t> last;
    for (int64_t i = 0; i + 1 < step_calls_; ++i) {
      if (calls_[i].collective != calls_[i + 1].collective) last.push_back(i);
    }
    return last;
  }
  void ExpectMismatch(const RunResult& result, int64_t number) const {
    const std::string call = absl::StrCat(" number ", number, " (");
    ASSERT_EQ(result.where.size(), 2u);
    if (on_one_gpu()) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal) << result.status;
      EXPECT_THAT(std::string(result.status.message()),
                  HasSubstr("the ranks of a group do not make the same call: rank 0 is in " +
                            Describe(calls_[number])));
    } else {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded) << result.status;
      EXPECT_THAT(fake_cuda::TakeReports(),
                  Each(AllOf(HasSubstr("NCCL: call number "), HasSubstr("it never ends"))));
    }
    EXPECT_THAT(result.where, Each(AllOf(StartsWith("step 1"), HasSubstr(call))));
    EXPECT_THAT(result.where[0], HasSubstr(Describe(calls_[number])));
    EXPECT_THAT(result.where[1], Not(HasSubstr(Describe(calls_[number]))));
  }
  // Rank 1 leaves this call out, or makes another.
  void ExpectMismatchWhere(int64_t number, bool skip) const {
    SCOPED_TRACE(Describe(calls_[number]));
    Reset();
    StandstillClock clock;
    TrainHooks hooks;
    hooks.watch = clock.Hooks();
    hooks.communicator = [&](Communicator& real) -> std::unique_ptr<Communicator> {
      if (real.rank() == 0) return nullptr;
      return std::make_unique<Disturbed>(real, number, skip);
    };
    ExpectMismatch(RunSmall(settings_, hooks).result, number);
    ExpectNothingStays();
  }
  static void ExpectNothingStays() {
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
    const fake_cuda::Live live = fake_cuda::LiveNow();
    EXPECT_EQ(live.device_allocations + live.pinned_allocations + live.streams + live.events, 0);
  }

  const TrainSettings settings_ = OneStepOfEverything(on_one_gpu());
  std::vector<CallInfo> calls_;  // of rank 0
  int64_t step_calls_ = 0;       // of them, in the step
};
INSTANTIATE_TEST_SUITE_P(, SeveralGpusFailures, testing::Bool(),
                         [](const auto& info) { return info.param ? "on_one_gpu" : "gpus"; });

TEST_P(SeveralGpusFailures, AtAnyCallOfAnyRankEndTheRunAndTheOtherSaysWhichItIsIn) {
  for (const CallInfo& failing : calls_) {
    const int rank = static_cast<int>(failing.number % 2);
    const std::string name = Describe(failing);
    SCOPED_TRACE(absl::StrCat("rank ", rank, ", ", name));
    Reset();
    Devices devices;
    TrainHooks hooks;
    devices.AddTo(hooks);
    hooks.call = [&](const CallInfo& call) {
      if (call.rank != rank || call.number != failing.number) return absl::OkStatus();
      devices.AwaitOther(rank, name);
      return absl::UnavailableError("the cable is out");
    };
    const RunResult result = RunSmall(settings_, hooks).result;
    EXPECT_EQ(result.status, absl::UnavailableError(
                                 absl::StrCat("rank ", rank, ": ", name, ": the cable is out")));
    ASSERT_EQ(result.where.size(), 2u);
    EXPECT_THAT(result.where[1 - rank], HasSubstr("waiting for "));
    EXPECT_THAT(result.where[1 - rank], HasSubstr(name));
    EXPECT_THAT(result.where[rank], Not(HasSubstr(name)));
    if (failing.number < step_calls_) {
      EXPECT_THAT(result.where[rank], StartsWith("step 1"));
    }
    ExpectNothingStays();
  }
}

TEST_P(SeveralGpusFailures, ByACallLeftOutAreFound) {
  const std::vector<int64_t> last = LastOfAKind();
  ASSERT_GE(last.size(), 4u);
  for (const int64_t number : last) {
    ExpectMismatchWhere(number, /*skip=*/true);
  }
}

TEST_P(SeveralGpusFailures, ByAnotherCallAreFound) {
  for (int64_t number = 0; number < step_calls_; number += 3) {
    ExpectMismatchWhere(number, /*skip=*/false);
  }
}

TEST_P(SeveralGpusFailures, ToComeToACallEndTheRunAfterTheTimeout) {
  for (int64_t number = 0; number < step_calls_; number += 2) {
    const std::string name = Describe(calls_[number]);
    const int silent = number % 4 == 0 ? 1 : 0;
    SCOPED_TRACE(absl::StrCat("rank ", silent, ", ", name));
    Reset();
    StandstillClock clock;
    Devices devices;
    TrainHooks hooks;
    devices.AddTo(hooks);
    hooks.watch = clock.Hooks();
    hooks.call = [&](const CallInfo& call) {
      if (call.rank == silent && call.number == number) devices.AwaitFailure(silent);
      return absl::OkStatus();
    };
    const RunResult result = RunSmall(settings_, hooks).result;
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr(absl::StrCat("rank ", 1 - silent, " has waited 600 s for ", name, ": ")));
    ASSERT_EQ(result.where.size(), 2u);
    EXPECT_THAT(result.where[1 - silent], AllOf(HasSubstr("waiting for "), HasSubstr(name)));
    EXPECT_THAT(result.where[silent], AllOf(StartsWith("step 1"), Not(HasSubstr(name))));
    ExpectNothingStays();
  }
}

}  // namespace
}  // namespace zerobox
