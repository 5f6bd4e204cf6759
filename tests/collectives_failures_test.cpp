// SPDX-License-Identifier: Apache-2.0
//
// Collectives in which a rank fails, is missing, or makes another call than the rest; and how long
// its memory must stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives_world.h"

namespace zerobox {
namespace {

// What rank 2 does otherwise than the rest, and what the message must say of it.
struct Mismatch {
  std::function<void(Communicator&, Buffer)> call;
  std::string message;
};

TEST(Collectives, ACallThatDiffersFailsOnAllRanksAndChangesNothing) {
  const std::vector<Mismatch> mismatches = {
      {[](Communicator& rank, Buffer b) { rank.ReduceScatterSum(b, kParameters); },
       "reduce-scatter number 1 (parameters, unit 3) of 96 fp32 elements"},
      {[](Communicator& rank, Buffer b) { rank.AllGather(b.Slice(0, 48), kParameters); },
       "all-gather number 1 (parameters, unit 3) of 48 fp32 elements"},
      {[](Communicator& rank, Buffer b) {
         rank.AllGather({b.data, 96, DType::kBFloat16}, kParameters);
       },
       "all-gather number 1 (parameters, unit 3) of 96 bf16 elements"},
      {[](Communicator& rank, Buffer b) { rank.AllGather(b, kGradients); },
       "all-gather number 1 (gradients, unit 1) of 96 fp32 elements"},
      {[](Communicator& rank, Buffer b) { rank.Broadcast(b, 2, kParameters); },
       "broadcast number 1 (parameters, unit 3) of 96 fp32 elements from rank 2"},
  };
  for (const Mismatch& mismatch : mismatches) {
    World world(4);
    const auto first = world.Make<float>(DType::kFloat32, 96, RandomFloat);
    const auto buffers = world.Make<float>(DType::kFloat32, 96, RandomFloat);
    for (int r = 0; r < 4; ++r) {
      world.rank(r).AllReduceSum(first[static_cast<size_t>(r)], kGradients);
      const Buffer buffer = buffers[static_cast<size_t>(r)];
      if (r == 2) {
        mismatch.call(world.rank(r), buffer);
      } else {
        world.rank(r).AllGather(buffer, kParameters);
      }
    }
    for (const absl::Status& status : world.Finish()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
      const std::string message(status.message());
      EXPECT_NE(message.find("rank 2 is in " + mismatch.message), std::string::npos) << message;
      EXPECT_NE(message.find("rank 0 is in all-gather number 1 (parameters, unit 3) of 96 fp32"),
                std::string::npos)
          << message;
    }
    for (int r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < 96; ++i) {
        ASSERT_EQ(buffers[static_cast<size_t>(r)].As<float>()[i], RandomFloat(r, i));
      }
    }
  }
}

TEST(Collectives, ARankThatFailsInACallEndsAllOthersWithItsError) {
  for (const auto collective : {Collective::kAllGather, Collective::kReduceScatter,
                                Collective::kAllReduce, Collective::kBroadcast}) {
    std::vector<std::string> seen(4);
    std::latch stands(3);
    World* the_world = nullptr;
    World world(4, [&](const CallInfo& call) -> absl::Status {
      seen[static_cast<size_t>(call.rank)] +=
          std::string(Name(call.collective)) + " " + std::to_string(call.number) + " " +
          std::string(Name(call.label.purpose)) + " " + std::to_string(call.label.unit) + ";";
      if (call.rank != 2 || call.number != 1) return absl::OkStatus();
      for (const int other : {0, 1, 3}) {
        while (the_world->device(other).WaitingFor(kCommunication).find("number 1 ") ==
               std::string::npos) {
          std::this_thread::yield();
        }
      }
      return absl::DataLossError("pulled the plug");
    });
    the_world = &world;
    const auto buffers = world.Make<float>(DType::kFloat32, 64, RandomFloat);
    for (int r = 0; r < 4; ++r) {
      const Buffer buffer = buffers[static_cast<size_t>(r)];
      world.rank(r).AllReduceSum(buffer, kGradients);
      world.rank(r).MakeCall(collective, buffer, 0, kParameters);
      world.rank(r).AllGather(buffer, kParameters);  // never begins
    }
    std::string name(Name(collective));
    const std::string begun = "all_reduce 0 gradients 1;" + name + " 1 parameters 3;";
    std::replace(name.begin(), name.end(), '_', '-');
    for (const absl::Status& status : world.Finish()) {
      EXPECT_EQ(status, absl::DataLossError("rank 2: " + name +
                                            " number 1 (parameters, unit 3): pulled the plug"));
    }
    world.ranks.clear();
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(world.device(r).WaitingFor(kCommunication),
                r == 2 ? "" : name + " number 1 (parameters, unit 3)");
    }
    world.devices.clear();
    EXPECT_EQ(seen, std::vector<std::string>(4, begun));
  }
}

TEST(Collectives, AnAbortEndsTheWaitForAMissingRank) {
  World world(3);
  const auto buffers = world.Make<float>(DType::kFloat32, 3, RandomFloat);
  world.rank(0).AllGather(buffers[0], kScalar);
  world.rank(2).AllGather(buffers[2], kScalar);
  for (const int r : {0, 2}) {
    while (world.device(r).WaitingFor(kCommunication) != "all-gather number 0 (scalars)") {
      std::this_thread::yield();
    }
  }
  world.abort.Fail(absl::CancelledError("stopped by a signal"));
  for (const absl::Status& status : world.Finish()) {
    EXPECT_EQ(status, absl::CancelledError("stopped by a signal"));
  }
}

TEST(Collectives, CommunicatorAndGroupMayGoWhileCallsAreInTheQueue) {
  std::latch gate(1);
  World world(2, [&](const CallInfo&) {
    gate.wait();
    return absl::OkStatus();
  });
  const auto buffers = world.Make<float>(DType::kFloat32, 2, RandomFloat);
  for (int r = 0; r < 2; ++r) {
    world.rank(r).AllGather(buffers[static_cast<size_t>(r)], kParameters);
    world.rank(r).AllReduceSum(buffers[static_cast<size_t>(r)], kGradients);
  }
  world.ranks.clear();
  world.group.reset();
  gate.count_down();
  world.FinishOk();
  for (int64_t i = 0; i < 2; ++i) {
    const auto owner = static_cast<int>(i);
    EXPECT_EQ(buffers[0].As<float>()[i], 2 * RandomFloat(owner, i));
  }
}

TEST(Collectives, WaitForTheEventThatTheBufferIsReadyAndComputeWaitsForTheResult) {
  constexpr int kSize = 4;
  constexpr int kRounds = 50;
  Abort abort;
  HostGroup group(kSize, abort);
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(kSize));
  std::array<float, kSize> results{};
  for (int r = 0; r < kSize; ++r) {
    workers.emplace_back([&, r] {
      HostDeviceOptions options;
      options.rank = r;
      options.regions = {0, 0, 0, 1 << 16};
      const auto device = HostDevice::Make(options, abort);
      ASSERT_TRUE(device.ok());
      const auto rank = group.Join(r, **device);
      const Buffer buffer = (*device)->Allocate(Region::kTransient, Category::kWorkspace,
                                                DType::kFloat32, 1000, "test");
      (*device)->Zero(StreamId::kCompute, buffer);
      const auto ready = (*device)->MakeEvent("ready");
      const auto reduced = (*device)->MakeEvent("reduced");
      for (int round = 0; round < kRounds; ++round) {
        (*device)->Enqueue(StreamId::kCompute, "add", [&buffer, r] {
          for (int64_t i = 0; i < 1000; ++i) {
            buffer.As<float>()[i] = buffer.As<float>()[i] / 4 + static_cast<float>(r);
          }
          return absl::OkStatus();
        });
        (*device)->Record(*ready, StreamId::kCompute);
        (*device)->Wait(kCommunication, *ready);
        rank->AllReduceSum(buffer, kGradients);
        (*device)->Record(*reduced, kCommunication);
        (*device)->Wait(StreamId::kCompute, *reduced);
      }
      ASSERT_TRUE((*device)->HostWait(*reduced).ok());
      results[static_cast<size_t>(r)] = buffer.As<float>()[999];
    });
  }
  for (std::thread& worker : workers) worker.join();
  // Every round adds 0 + 1 + 2 + 3 to the same number on all ranks.
  for (const float result : results) EXPECT_EQ(result, 6.0f * kRounds);
}

// Memory that is given back by a rank that fails is not used by another any more: for the address
// sanitizer, and because it would crash.
TEST(Collectives, AFailingRankMayGiveItsMemoryBackAtOnce) {
  constexpr int kSize = 4;
  for (int round = 0; round < 10; ++round) {
    Abort abort;
    HostGroup group(kSize, abort);
    std::vector<std::thread> workers;
    workers.reserve(static_cast<size_t>(kSize));
    std::vector<absl::Status> statuses(kSize);
    for (int r = 0; r < kSize; ++r) {
      workers.emplace_back([&, r] {
        HostDeviceOptions options;
        options.rank = r;
        options.regions = {0, 0, 0, 1 << 20};
        const auto device = HostDevice::Make(options, abort);
        ASSERT_TRUE(device.ok());
        const auto rank = group.Join(r, **device);
        const Buffer buffer = (*device)->Allocate(Region::kTransient, Category::kWorkspace,
                                                  DType::kFloat32, 1 << 16, "test");
        const auto done = (*device)->MakeEvent("done");
        for (int call = 0; (*device)->status().ok(); ++call) {
          rank->AllReduceSum(buffer, kGradients);
          (*device)->Record(*done, kCommunication);
          // A failure while the others are in some call, in another place of it each time.
          if (r == round % kSize && call == 1 + round % 5) {
            (*device)->Fail(absl::DataLossError("gone"));
          }
          (void)(*device)->HostWait(*done);
        }
        statuses[static_cast<size_t>(r)] = (*device)->status();
      });
    }
    for (std::thread& worker : workers) worker.join();
    for (const absl::Status& status : statuses) {
      ASSERT_EQ(status, absl::DataLossError("rank " + std::to_string(round % kSize) + ": gone"));
    }
  }
}

TEST(Collectives, AFailingRootStaysUntilTheOthersHaveStoppedReading) {
  constexpr int kSize = 4;
  constexpr int64_t kElements = 4 << 20;
  for (int round = 0; round < 3; ++round) {
    Abort abort;
    HostGroup group(kSize, abort);
    std::vector<std::thread> workers;
    workers.reserve(static_cast<size_t>(kSize));
    for (int r = 0; r < kSize; ++r) {
      workers.emplace_back([&, r] {
        HostDeviceOptions options;
        options.rank = r;
        options.regions = {0, 0, 0, kElements * 4};
        const auto device = HostDevice::Make(options, abort);
        ASSERT_TRUE(device.ok());
        const auto rank = group.Join(r, **device);
        const Buffer buffer = (*device)->Allocate(Region::kTransient, Category::kWorkspace,
                                                  DType::kFloat32, kElements, "test");
        const auto done = (*device)->MakeEvent("done");
        rank->Broadcast(buffer, 0, kParameters);
        (*device)->Record(*done, kCommunication);
        if (r == 0) {
          // One of three has its copy, so others are most likely in the middle of theirs.
          while (Of(rank->traffic(), Collective::kBroadcast).bytes_sent == 0) {
            std::this_thread::yield();
          }
          (*device)->Fail(absl::DataLossError("gone"));
        }
        (void)(*device)->HostWait(*done);
      });
    }
    for (std::thread& worker : workers) worker.join();
    ASSERT_EQ(abort.status(), absl::DataLossError("rank 0: gone"));
  }
}

}  // namespace
}  // namespace zerobox
