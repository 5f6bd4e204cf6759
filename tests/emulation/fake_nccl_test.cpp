// SPDX-License-Identifier: Apache-2.0
//
// That the NCCL of the tests finds what it is to find.
#include "tests/emulation/fake_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/bfloat16.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox::fake_nccl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kElements = 16;

// One rank, on a GPU of its own.
struct Rank {
  int rank = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t compute = nullptr, communication = nullptr;
  float* data = nullptr;
};

void Settle(ncclComm_t communicator) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    ASSERT_EQ(ncclCommGetAsyncError(communicator, &state), ncclSuccess);
  }
  ASSERT_EQ(state, ncclSuccess);
}

void Begin(Rank& rank, int ranks, const ncclUniqueId& id) {
  ASSERT_EQ(cudaSetDevice(rank.rank), cudaSuccess);
  for (cudaStream_t* stream : {&rank.compute, &rank.communication}) {
    ASSERT_EQ(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0), cudaSuccess);
  }
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, kElements * sizeof(float)), cudaSuccess);
  rank.data = static_cast<float*>(data);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ASSERT_EQ(ncclCommInitRankConfig(&rank.communicator, ranks, id, rank.rank, &config),
            ncclInProgress);
  Settle(rank.communicator);
}

// Ends well where `body` has not given the communicator back itself.
void End(Rank& rank) {
  if (rank.communicator != nullptr) {
    ncclCommFinalize(rank.communicator);
    Settle(rank.communicator);
    EXPECT_EQ(ncclCommDestroy(rank.communicator), ncclSuccess);
  }
  for (const cudaStream_t stream : {rank.compute, rank.communication}) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  EXPECT_EQ(cudaFree(rank.data), cudaSuccess);
}

void RunRanks(int ranks, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank = {.rank = r};
      Begin(rank, ranks, id);
      body(rank);
      End(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ncclResult_t AllReduce(const Rank& rank, size_t elements = kElements) {
  return ncclAllReduce(rank.data, rank.data, elements, ncclFloat32, ncclSum, rank.communicator,
                       rank.communication);
}
void Zero(const Rank& rank, cudaStream_t stream) {
  EXPECT_EQ(cudaMemsetAsync(rank.data, 0, kElements * sizeof(float), stream), cudaSuccess);
}
cudaError_t Synchronize(cudaStream_t stream) {
  cudaError_t state = cudaErrorNotReady;
  while (state == cudaErrorNotReady) state = cudaStreamQuery(stream);
  return state;
}

TEST(FakeNccl, AnEventThatIsRecordedWhileACallIsInProgressDoesNotStandBehindIt) {
  int in_progress = 0;
  for (const bool settled : {true, false}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      fake_cuda::Reset({.devices = 2, .workers = 2});
      SetSeed(seed);
      bool was_in_progress = false;
      RunRanks(2, [&](Rank& rank) {
        Zero(rank, rank.communication);
        AllReduce(rank);  // which connects
        Settle(rank.communicator);
        const ncclResult_t result = AllReduce(rank);
        if (rank.rank == 0) was_in_progress = result == ncclInProgress;
        cudaEvent_t event;
        ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
        if (settled) Settle(rank.communicator);
        ASSERT_EQ(cudaEventRecord(event, rank.communication), cudaSuccess);
        Settle(rank.communicator);
        ASSERT_EQ(cudaStreamWaitEvent(rank.compute, event, 0), cudaSuccess);
        Zero(rank, rank.compute);
        EXPECT_EQ(Synchronize(rank.compute), cudaSuccess);
        EXPECT_EQ(Synchronize(rank.communication), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
      });
      const std::vector<std::string> reports = fake_cuda::TakeReports();
      if (settled) {
        EXPECT_THAT(reports, IsEmpty());
      } else if (was_in_progress) {
        ++in_progress;
        EXPECT_THAT(reports, Contains(HasSubstr("race: ")));
        EXPECT_THAT(reports, Contains(HasSubstr("ncclAllReduce on stream communication")));
      }
    }
  }
  EXPECT_GE(in_progress, 2);
}

TEST(FakeNccl, RoundsASumOfBf16EachTimeThatItAdds) {
  fake_cuda::Reset({.devices = 4, .workers = 4});
  std::vector<float> sums(4);
  RunRanks(4, [&](Rank& rank) {
    // Where two of its numbers are 2 apart.
    auto* value = reinterpret_cast<BFloat16*>(rank.data);
    *value = ToBFloat16(rank.rank == 0 ? 256 : 1);
    fake_cuda::HostAccess({value, sizeof *value, true});
    ncclAllReduce(value, value, 1, ncclBfloat16, ncclSum, rank.communicator, rank.communication);
    Settle(rank.communicator);
    EXPECT_EQ(Synchronize(rank.communication), cudaSuccess);
    sums[static_cast<size_t>(rank.rank)] = ToFloat(*value);
  });
  EXPECT_THAT(sums, ElementsAre(256, 256, 256, 256));
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(FakeNccl, ReportsWhatItsHeaderSays) {
  fake_cuda::Reset({.devices = 2, .workers = 2});
  const auto expect_report = [](ncclResult_t result, const char* what) {
    EXPECT_EQ(result, ncclInvalidUsage) << what;
    EXPECT_THAT(fake_cuda::TakeReports(), ElementsAre(HasSubstr(what)));
  };
  RunRanks(1, [&](Rank& rank) {
    Zero(rank, rank.communication);
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) result = AllReduce(rank);
    expect_report(AllReduce(rank), "ncclAllReduce: the communicator is in progress");
    Settle(rank.communicator);
    expect_report(ncclAllReduce(rank.data, rank.data + 1, 2, ncclFloat32, ncclSum,
                                rank.communicator, rank.communication),
                  "both buffers overlap");
    expect_report(ncclAllReduce(rank.data, rank.data, 2, ncclFloat32, ncclMax, rank.communicator,
                                rank.communication),
                  "an operation that is not known");
    std::thread([&] {
      expect_report(AllReduce(rank), "the communicator is another thread's");
    }).join();
    EXPECT_EQ(Synchronize(rank.communication), cudaSuccess);
    EXPECT_EQ(ncclCommDestroy(rank.communicator), ncclSuccess);
    EXPECT_THAT(fake_cuda::TakeReports(), ElementsAre(HasSubstr("is not finalized")));
    expect_report(ncclCommDestroy(rank.communicator), "is destroyed or aborted");
    expect_report(ncclCommAbort(rank.communicator), "is destroyed or aborted");
    expect_report(AllReduce(rank), "is destroyed or aborted");
    rank.communicator = nullptr;
    expect_report(AllReduce(rank), "there is no communicator");
  });
  RunRanks(1, [&](Rank& rank) { rank.communicator = nullptr; });
  EXPECT_THAT(fake_cuda::TakeReports(),
              ElementsAre(HasSubstr("has neither destroyed nor aborted its communicator")));
  EXPECT_EQ(CountsNow().living, 1);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t communicator = nullptr;
  expect_report(ncclCommInitRankConfig(&communicator, 1, {}, 0, &config), "is a blocking one");
  config.blocking = 0;
  expect_report(ncclCommInitRankConfig(&communicator, 1, {}, 0, &config), "the id is unknown");
  EXPECT_EQ(communicator, nullptr);
}

TEST(FakeNccl, AnAbortLetsTheStreamGoOn) {
  fake_cuda::Reset({.devices = 2, .workers = 2, .may_stall = true});
  RunRanks(2, [&](Rank& rank) {
    Zero(rank, rank.communication);
    AllReduce(rank);
    Settle(rank.communicator);
    if (rank.rank == 0) {
      AllReduce(rank);  // alone
      Settle(rank.communicator);
      for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(cudaStreamQuery(rank.communication), cudaErrorNotReady);
      }
    }
    EXPECT_EQ(ncclCommAbort(rank.communicator), ncclSuccess);
    rank.communicator = nullptr;
  });
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
  EXPECT_EQ(CountsNow().aborted, 2);
}

TEST(FakeNccl, ReportsADeadlockOnlyWhenItLasts) {
  fake_cuda::Reset({.devices = 2, .workers = 2, .deadlock_after = std::chrono::seconds(3)});
  RunRanks(2, [&](Rank& rank) {
    Zero(rank, rank.communication);
    AllReduce(rank);
    Settle(rank.communicator);
    if (rank.rank == 0) AllReduce(rank);
    Settle(rank.communicator);
    if (rank.rank == 0) {
      EXPECT_EQ(cudaStreamQuery(rank.communication), cudaErrorNotReady);
      EXPECT_EQ(Synchronize(rank.communication), cudaErrorLaunchTimeout);
    }
    EXPECT_EQ(ncclCommAbort(rank.communicator), ncclSuccess);
    rank.communicator = nullptr;
  });
  EXPECT_THAT(fake_cuda::TakeReports(),
              ElementsAre(HasSubstr("stream communication of device 0 is before ncclAllReduce")));
}

}  // namespace
}  // namespace zerobox::fake_nccl
