// SPDX-License-Identifier: Apache-2.0
//
// What the tests of collectives by NCCL share: ranks in threads, each with a fake GPU of its own.
#ifndef ZEROBOX_TESTS_EMULATION_NCCL_WORLD_H_
#define ZEROBOX_TESTS_EMULATION_NCCL_WORLD_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/cuda/cuda_device.h"
#include "ops/cuda/nccl_group.h"
#include "tests/emulation/fake_nccl.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox {

inline constexpr auto kCompute = StreamId::kCompute;
inline constexpr auto kCommunication = StreamId::kCommunication;
inline constexpr CallLabel kGradients{Purpose::kGradients, 5};
inline constexpr Collective kAllCollectives[] = {Collective::kAllGather, Collective::kReduceScatter,
                                                 Collective::kAllReduce, Collective::kBroadcast};

struct Rank {
  int rank, size;
  cuda::CudaDevice& device;
  Communicator& communicator;
};

struct RunOptions {
  int size = 2;
  int gpus = 0;  // 0: as many as ranks
  int64_t largest_call_bytes = 4096;
  int64_t workspace_bytes = 64 << 10;
  CallHook hook;
  std::string drop_wait;
  // On the thread of each rank before it joins; false: it ends there.
  std::function<bool(int rank)> before;
};

// What a run came to.
struct Outcome {
  absl::Status status;
  std::vector<Waiting> waiting;  // by rank, in what its communication stream was when it ended
  fake_nccl::Counts counts;
};

// One thread a rank, as in training.
class World {
 public:
  explicit World(RunOptions options) : options_(std::move(options)), devices_(options_.size) {}

  Outcome operator()(const std::function<void(Rank)>& body) {
    auto group = cuda::MakeNcclGroup({.size = options_.size,
                                      .largest_call_bytes = options_.largest_call_bytes,
                                      .hook = options_.hook},
                                     abort_);
    if (!group.ok()) return {group.status(), {}, fake_nccl::CountsNow()};
    Outcome outcome;
    outcome.waiting.resize(options_.size);
    std::vector<std::thread> threads;
    for (int r = 0; r < options_.size; ++r) {
      threads.emplace_back([&, r] { outcome.waiting[r] = Work(r, **group, body); });
    }
    for (std::thread& thread : threads) thread.join();
    outcome.status = abort_.status();
    outcome.counts = fake_nccl::CountsNow();
    return outcome;
  }

  // Returns when these ranks are known to be waiting for this, and have been for so long, or the
  // run has failed. (For a moment a rank also says so while it enqueues a call.)
  void Await(const std::map<int, std::string>& waiting, StreamId stream = kCommunication,
             std::chrono::milliseconds for_so_long = {}) const {
    for (const auto& [rank, what] : waiting) {
      const auto arrived = [&] {
        const cuda::CudaDevice* device = devices_[rank];
        if (device == nullptr) return false;
        const Waiting wait = device->CurrentWait(stream);
        return wait.what == what && std::chrono::steady_clock::now() - wait.since >= for_so_long;
      };
      while (!arrived() && !abort_.failed()) std::this_thread::yield();
    }
  }
  Abort& abort() { return abort_; }

 private:
  Waiting Work(int r, Group& group, const std::function<void(Rank)>& body) {
    if (options_.before && !options_.before(r)) return {};
    CudaDeviceOptions options;
    options.rank = r;
    options.gpu = options_.gpus == 0 ? r : r % options_.gpus;
    options.regions = {1 << 20, 0, 0, 0};
    options.workspace_bytes = options_.workspace_bytes;
    options.drop_wait = options_.drop_wait;
    auto made = cuda::CudaDevice::Make(options, abort_);
    if (!made.ok()) {
      abort_.Fail(made.status());
      return {};
    }
    const std::unique_ptr<cuda::CudaDevice> device = *std::move(made);
    devices_[r] = device.get();
    const std::unique_ptr<Communicator> communicator = group.Join(r, *device);
    EXPECT_EQ(communicator->rank(), r);
    EXPECT_EQ(communicator->size(), options_.size);
    if (!abort_.failed()) body({r, options_.size, *device, *communicator});
    communicator->Stop();
    device->StopStreams();
    devices_[r] = nullptr;
    return device->CurrentWait(kCommunication);
  }

  const RunOptions options_;
  Abort abort_;
  std::vector<std::atomic<cuda::CudaDevice*>> devices_;
};

inline Buffer Allocate(Device& device, DType dtype, int64_t elements) {
  return device.Allocate(Region::kPersistent, Category::kWorkspace, dtype, elements, "test");
}

// Waits for the end of what is in the communication stream.
inline absl::Status Finish(Rank rank) {
  const auto done = rank.device.MakeEvent("all is done");
  rank.device.Record(*done, kCommunication);
  return rank.device.HostWait(*done);
}

// An all-reduce of zeros, as many times as there are units.
inline void ReduceZeros(Rank rank, int units, int64_t elements = 8) {
  const Buffer buffer = Allocate(rank.device, DType::kFloat32, elements);
  rank.device.Zero(kCommunication, buffer);
  for (int unit = 0; unit < units; ++unit) {
    rank.communicator.AllReduceSum(buffer, {Purpose::kGradients, unit});
  }
}

class NcclTest : public testing::TestWithParam<std::tuple<fake_cuda::Policy, int>> {
 protected:
  void SetUp() override { Reset(); }
  void TearDown() override { EXPECT_THAT(fake_cuda::TakeReports(), testing::IsEmpty()); }
  void Reset(bool may_stall = false) const {
    fake_cuda::Reset({.devices = size(),
                      .policy = std::get<fake_cuda::Policy>(GetParam()),
                      .seed = 3,
                      .workers = size(),
                      .may_stall = may_stall});
  }
  int size() const { return std::get<int>(GetParam()); }
};
inline std::string NameOf(const testing::TestParamInfo<std::tuple<fake_cuda::Policy, int>>& info) {
  std::string name = fake_cuda::Name(std::get<fake_cuda::Policy>(info.param));
  std::erase(name, ' ');
  return name + "_" + std::to_string(std::get<int>(info.param));
}

// Several ranks.
class NcclRanks : public NcclTest {};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_EMULATION_NCCL_WORLD_H_
