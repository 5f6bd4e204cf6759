// SPDX-License-Identifier: Apache-2.0
//
// What becomes of collectives by NCCL when a rank fails, is silent or makes another call, and when
// any function of NCCL fails: the run ends, and each rank says which call it is in.
#include <algorithm>
#include <array>
#include <cmath>

#include "ops/bfloat16.h"
#include "tests/emulation/nccl_world.h"

namespace zerobox {
namespace {

using cuda::CudaDevice;
using fake_cuda::Policy;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

INSTANTIATE_TEST_SUITE_P(, NcclTest,
                         testing::Combine(testing::ValuesIn(fake_cuda::kPolicies),
                                          testing::Values(1, 2, 4)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(, NcclRanks,
                         testing::Combine(testing::ValuesIn(fake_cuda::kPolicies),
                                          testing::Values(2, 4)),
                         NameOf);

constexpr std::chrono::milliseconds kAWhile{200};

TEST_P(NcclRanks, ARankThatFailsEndsTheRunAndTheOthersSayWhichCallTheyAreIn) {
  World* running = nullptr;
  std::map<int, std::string> others;
  for (int r = 0; r < size(); ++r) {
    if (r != 1) others[r] = "all-reduce number 3 (gradients, unit 0)";
  }
  const auto hook = [&](const CallInfo& call) {
    if (call.rank != 1 || call.number != 3) return absl::OkStatus();
    running->Await(others, kCommunication, kAWhile);
    return absl::DataLossError("broken");
  };
  World world({.size = size(), .hook = hook});
  running = &world;
  const Outcome outcome = world([](Rank rank) {
    ReduceZeros(rank, 3);
    EXPECT_TRUE(Finish(rank).ok());
    ReduceZeros(rank, 2);
    EXPECT_FALSE(Finish(rank).ok());
    if (rank.rank != 1) return;
    EXPECT_EQ(rank.communicator.traffic().collectives[2].calls, 3);
  });
  EXPECT_EQ(outcome.status,
            absl::DataLossError("rank 1: all-reduce number 3 (gradients, unit 0): broken"));
  for (const auto& [r, what] : others) {
    EXPECT_EQ(outcome.waiting[r].what, what) << r;
    EXPECT_TRUE(outcome.waiting[r].since.time_since_epoch().count() > 0);
  }
  EXPECT_EQ(outcome.counts.aborted, size());
  EXPECT_EQ(outcome.counts.living, 0);
}

// Fails the run when all ranks have waited for this for a while, as the watch over silent ranks
// does.
void RunAndWatch(World& world, const std::map<int, std::string>& waiting,
                 const std::function<void(Rank)>& body) {
  std::thread watch([&] {
    world.Await(waiting, kCommunication, kAWhile);
    world.abort().Fail(absl::DeadlineExceededError("a rank is silent"));
  });
  const Outcome outcome = world(body);
  watch.join();
  EXPECT_EQ(outcome.status, absl::DeadlineExceededError("a rank is silent"));
  for (const auto& [rank, what] : waiting) EXPECT_EQ(outcome.waiting[rank].what, what) << rank;
  EXPECT_EQ(outcome.counts.living, 0);
  EXPECT_EQ(outcome.counts.aborted, std::ssize(waiting));
}

TEST_P(NcclRanks, ARankThatSkipsACallLeavesTheOthersInTheirLast) {
  Reset(/*may_stall=*/true);
  std::map<int, std::string> waiting = {{0, "the end of all ranks' calls"}};
  for (int r = 1; r < size(); ++r) waiting[r] = "all-reduce number 3 (gradients, unit 3)";
  World world({.size = size()});
  RunAndWatch(world, waiting, [](Rank rank) {
    ReduceZeros(rank, rank.rank == 0 ? 3 : 4);
    EXPECT_EQ(Finish(rank).ok(), rank.rank == 0);
  });
}

// Their size was never there, so NCCL connects: the worker does not get past the call.
TEST_P(NcclRanks, AWorkerThatIsStuckInACallSeesTheRunFail) {
  Reset(/*may_stall=*/true);
  std::map<int, std::string> waiting;
  for (int r = 0; r < size(); ++r) {
    waiting[r] = r == 1 ? "the end of all ranks' calls" : "all-reduce number 2 (gradients, unit 0)";
  }
  World world({.size = size()});
  RunAndWatch(world, waiting, [](Rank rank) {
    ReduceZeros(rank, 2);
    EXPECT_TRUE(Finish(rank).ok());
    if (rank.rank == 1) return;
    ReduceZeros(rank, 3, 10'000);
    EXPECT_FALSE(Finish(rank).ok());
  });
}

TEST_P(NcclRanks, ACallThatIsAnotherOnOneRankLeavesAllInTheirs) {
  struct Wrong {
    Collective collective;
    int64_t elements;
    DType dtype;
    int root;
  };
  const Wrong right = {Collective::kBroadcast, 16, DType::kFloat32, 0};
  const std::vector<Wrong> wrong = {{Collective::kAllReduce, 16, DType::kFloat32, 0},
                                    {Collective::kBroadcast, 12, DType::kFloat32, 0},
                                    {Collective::kBroadcast, 16, DType::kInt32, 0},
                                    {Collective::kBroadcast, 16, DType::kFloat32, 1}};
  for (const Wrong& other : wrong) {
    Reset(/*may_stall=*/true);
    std::map<int, std::string> waiting;
    for (int r = 0; r < size(); ++r) waiting[r] = "broadcast number 0 (gradients, unit 5)";
    if (other.collective == Collective::kAllReduce) {
      waiting[1] = "all-reduce number 0 (gradients, unit 5)";
    }
    World world({.size = size()});
    RunAndWatch(world, waiting, [&](Rank rank) {
      const Wrong& mine = rank.rank == 1 ? other : right;
      const Buffer buffer = Allocate(rank.device, mine.dtype, mine.elements);
      rank.device.Zero(kCommunication, buffer);
      rank.communicator.MakeCall(mine.collective, buffer, mine.root, kGradients);
      EXPECT_FALSE(Finish(rank).ok());
    });
    const std::vector<std::string> reports = fake_cuda::TakeReports();
    EXPECT_FALSE(reports.empty());
    EXPECT_THAT(reports, Each(HasSubstr("that of another rank is")));
  }
}

TEST_P(NcclRanks, ARankThatNeverComesLeavesTheOthersSayingSo) {
  const std::string waiting =
      "the communicator of rank 0 of " + std::to_string(size()) + " on GPU 0";
  World* running = nullptr;
  World world({.size = size(), .before = [&](int rank) {
                 if (rank != 1) return true;
                 running->Await({{0, waiting}});
                 running->abort().Fail(absl::InternalError("rank 1 has no device"));
                 return false;
               }});
  running = &world;
  const Outcome outcome = world([](Rank) { ADD_FAILURE() << "it joined"; });
  EXPECT_EQ(outcome.status, absl::InternalError("rank 1 has no device"));
  EXPECT_EQ(outcome.waiting[0].what, waiting);
  EXPECT_EQ(outcome.counts.living, 0);
  EXPECT_EQ(outcome.counts.destroyed, 0);
}

TEST_P(NcclRanks, RefusesTwoRanksOnOneGpuByName) {
  const Outcome outcome =
      World({.size = size(), .gpus = 1})([](Rank) { ADD_FAILURE() << "it joined"; });
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("ncclCommInitRankConfig: invalid usage (Duplicate GPU detected: rank 0 "
                        "and rank 1 both on CUDA device 0), the communicator of rank "));
  EXPECT_EQ(outcome.counts.living, 0);
}

TEST_P(NcclRanks, AnAsynchronousErrorIsSeenWhileWaitingAndNamesTheCall) {
  Reset(/*may_stall=*/true);
  World world({.size = size()});
  std::thread network([&] {
    world.Await({{1, "all is done"}}, kCompute);
    world.Await({{1, "all-reduce number 0 (gradients, unit 0)"}});
    fake_nccl::FailAsynchronously(1, ncclRemoteError);
  });
  const Outcome outcome = world([&](Rank rank) {
    if (rank.rank == 0) {
      while (!world.abort().failed()) std::this_thread::yield();
      return;
    }
    ReduceZeros(rank, 1);
    EXPECT_FALSE(Finish(rank).ok());
  });
  network.join();
  EXPECT_EQ(outcome.status,
            absl::UnavailableError("rank 1: ncclCommGetAsyncError: remote process exited or there "
                                   "was a network error (the test wants it), in all-reduce number "
                                   "0 (gradients, unit 0)"));
  EXPECT_EQ(outcome.counts.aborted, size());
}

// One of everything.
void UseEverything(Rank rank) {
  const Buffer buffer = Allocate(rank.device, DType::kBFloat16, 64);
  rank.device.Zero(kCommunication, buffer);
  for (const Collective collective : kAllCollectives) {
    rank.communicator.MakeCall(collective, buffer, 0, kGradients);
  }
  const absl::Status status = Finish(rank);
  EXPECT_EQ(status.ok(), rank.device.status().ok());
}

TEST_P(NcclTest, AnErrorOfAnyCallIsReturnedWithItsNameAndNothingHangsOrLeaks) {
  const RunOptions options = {.size = size(), .largest_call_bytes = 1024};
  ASSERT_TRUE(World(options)(UseEverything).status.ok());
  std::map<std::string, int> calls;
  for (const auto& [function, times] : fake_cuda::Calls(0)) {
    if (function.starts_with("nccl")) calls[function] = times;
  }
  // What only a failed run calls has a test of its own.
  EXPECT_EQ(calls.size(), 9u);
  for (const auto& [function, times] : calls) {
    const bool question = function == "ncclCommGetAsyncError";
    // How many there are depends on how long the others take.
    for (int nth = 1; nth <= (question ? std::min(times / 2, 30) : times); ++nth) {
      Reset();
      fake_cuda::FailCall(function, nth, cudaErrorUnknown, 0);
      const Outcome outcome = World(options)(UseEverything);
      EXPECT_EQ(outcome.counts.living, 0) << function << " " << nth;
      EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()) << function << " " << nth;
      EXPECT_EQ(fake_cuda::LiveNow().events, 0) << function << " " << nth;
      if (function == "ncclCommDestroy") {
        EXPECT_TRUE(outcome.status.ok()) << "nothing is left to do";
        continue;
      }
      const std::string message(outcome.status.message());
      EXPECT_THAT(message, HasSubstr(function + ": internal error (the test wants it)"));
      EXPECT_THAT(message, StartsWith(function == "ncclGetUniqueId" ? "" : "rank 0: "));
    }
  }
}

TEST_P(NcclRanks, AreGoneThoughAnAbortFails) {
  fake_cuda::FailCall("ncclCommAbort", 1);
  const auto hook = [](const CallInfo& call) {
    return call.rank == 0 ? absl::DataLossError("broken") : absl::OkStatus();
  };
  const Outcome outcome = World({.size = size(), .hook = hook})(UseEverything);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(outcome.counts.living, 0);
  EXPECT_EQ(outcome.counts.aborted, size());
}

TEST_P(NcclRanks, AGpuThatBreaksIsAnErrorAndNothingHangs) {
  const RunOptions options = {.size = size(), .largest_call_bytes = 1024};
  ASSERT_TRUE(World(options)(UseEverything).status.ok());
  const auto operations = static_cast<int>(fake_cuda::OperationsRun());
  ASSERT_GE(operations, 14 * size());
  // NCCL says less than CUDA.
  const auto says_so = AnyOf(HasSubstr("cudaErrorIllegalAddress"), HasSubstr("cuda error"));
  for (int nth = 1; nth <= operations; nth += size() - 1) {
    Reset();
    fake_cuda::FailWork(nth);
    const Outcome outcome = World(options)(UseEverything);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal) << nth;
    EXPECT_THAT(std::string(outcome.status.message()), says_so);
    EXPECT_EQ(outcome.counts.living, 0);
  }
}

TEST(Nccl, IsThere) { EXPECT_TRUE(CheckNccl().ok()); }

}  // namespace
}  // namespace zerobox
