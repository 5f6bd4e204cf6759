// SPDX-License-Identifier: Apache-2.0
//
// Collectives between GPUs by NCCL, on an NCCL that is an adversary (tests/emulation/fake_nccl.h),
// under every order of the streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/nccl_group.h"
#include "tests/emulation/fake_nccl.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox {
namespace {

using cuda::CudaDevice;
using fake_cuda::Policy;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr auto kCompute = StreamId::kCompute;
constexpr auto kCommunication = StreamId::kCommunication;
constexpr CallLabel kGradients{Purpose::kGradients, 5};
constexpr Collective kAllCollectives[] = {Collective::kAllGather, Collective::kReduceScatter,
                                          Collective::kAllReduce, Collective::kBroadcast};

struct Rank {
  int rank, size;
  CudaDevice& device;
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

  // Returns when these ranks are known to be waiting for this, or the run has failed.
  void Await(const std::map<int, std::string>& waiting, StreamId stream = kCommunication,
             std::chrono::milliseconds for_so_long = {}) const {
    for (const auto& [rank, what] : waiting) {
      const auto arrived = [&] {
        const CudaDevice* device = devices_[rank];
        if (device == nullptr) return false;
        const Waiting wait = device->CurrentWait(stream);
        return wait.what == what && std::chrono::steady_clock::now() - wait.since >= for_so_long;
      };
      while (!arrived() && !abort_.failed()) std::this_thread::yield();
    }
  }
  // Until each waits for its GPU, and was then found to be in this call: it also says so while it
  // enqueues the call.
  void AwaitOnTheGpu(const std::map<int, std::string>& waiting) const {
    for (const auto& [rank, what] : waiting) {
      const auto arrived = [&] {
        const CudaDevice* device = devices_[rank];
        if (device == nullptr) return false;
        const Waiting call = device->CurrentWait(kCommunication);
        const Waiting worker = device->CurrentWait(kCompute);
        return call.what == what && !worker.what.empty() && call.since >= worker.since;
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
    auto made = CudaDevice::Make(options, abort_);
    if (!made.ok()) {
      abort_.Fail(made.status());
      return {};
    }
    const std::unique_ptr<CudaDevice> device = *std::move(made);
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
  std::vector<std::atomic<CudaDevice*>> devices_;
};

Buffer Allocate(Device& device, DType dtype, int64_t elements) {
  return device.Allocate(Region::kPersistent, Category::kWorkspace, dtype, elements, "test");
}

void Start(Communicator& communicator, Collective collective, Buffer buffer, CallLabel label,
           int root = 0) {
  switch (collective) {
    case Collective::kAllGather:
      return communicator.AllGather(buffer, label);
    case Collective::kReduceScatter:
      return communicator.ReduceScatterSum(buffer, label);
    case Collective::kAllReduce:
      return communicator.AllReduceSum(buffer, label);
    case Collective::kBroadcast:
      return communicator.Broadcast(buffer, root, label);
  }
}

// Waits for the end of what is in the communication stream.
absl::Status Finish(Rank rank) {
  const auto done = rank.device.MakeEvent("all is done");
  rank.device.Record(*done, kCommunication);
  return rank.device.HostWait(*done);
}

// An all-reduce of zeros, as many times as there are units.
void ReduceZeros(Rank rank, int units, int64_t elements = 8) {
  const Buffer buffer = Allocate(rank.device, DType::kFloat32, elements);
  rank.device.Zero(kCommunication, buffer);
  for (int unit = 0; unit < units; ++unit) {
    rank.communicator.AllReduceSum(buffer, {Purpose::kGradients, unit});
  }
}

class NcclTest : public testing::TestWithParam<std::tuple<Policy, int>> {
 protected:
  void SetUp() override { Reset(); }
  void TearDown() override { EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()); }
  void Reset(bool may_stall = false) const {
    fake_cuda::Reset({.devices = size(),
                      .policy = std::get<Policy>(GetParam()),
                      .seed = 3,
                      .workers = size(),
                      .may_stall = may_stall});
  }
  int size() const { return std::get<int>(GetParam()); }
};
std::string NameOf(const testing::TestParamInfo<std::tuple<Policy, int>>& info) {
  std::string name = fake_cuda::Name(std::get<Policy>(info.param));
  std::erase(name, ' ');
  return name + "_" + std::to_string(std::get<int>(info.param));
}
INSTANTIATE_TEST_SUITE_P(, NcclTest,
                         testing::Combine(testing::ValuesIn(fake_cuda::kPolicies),
                                          testing::Values(1, 2, 4)),
                         NameOf);

// Several ranks.
class NcclRanks : public NcclTest {};
INSTANTIATE_TEST_SUITE_P(, NcclRanks,
                         testing::Combine(testing::ValuesIn(fake_cuda::kPolicies),
                                          testing::Values(2, 4)),
                         NameOf);

// ---- what the calls do ----

template <typename T>
struct Values;
template <>
struct Values<float> {
  static constexpr DType kDType = DType::kFloat32;
  static float Of(double x) { return static_cast<float>(x / 7); }
  static double Wide(float x) { return x; }
  static constexpr double kRounding = 1.0 / (1 << 24);
};
template <>
struct Values<double> {
  static constexpr DType kDType = DType::kFloat64;
  static double Of(double x) { return x / 7; }
  static double Wide(double x) { return x; }
  static constexpr double kRounding = 1e-15;
};
template <>
struct Values<BFloat16> {
  static constexpr DType kDType = DType::kBFloat16;
  static BFloat16 Of(double x) { return ToBFloat16(static_cast<float>(x / 7)); }
  static double Wide(BFloat16 x) { return ToFloat(x); }
  static constexpr double kRounding = 1.0 / (1 << 8);
};
template <>
struct Values<int32_t> {
  static constexpr DType kDType = DType::kInt32;
  static int32_t Of(double x) { return static_cast<int32_t>(x); }
  static double Wide(int32_t x) { return x; }
  static constexpr double kRounding = 0;
};
template <>
struct Values<int64_t> {
  static constexpr DType kDType = DType::kInt64;
  static int64_t Of(double x) { return static_cast<int64_t>(x) * (int64_t{1} << 40); }
  static double Wide(int64_t x) { return static_cast<double>(x); }
  static constexpr double kRounding = 0;
};

// Different on every rank and element.
template <typename T>
T ValueOf(int rank, int64_t i) {
  return Values<T>::Of(static_cast<double>((rank * 37 + i * 11) % 101 - 50));
}

// What element i of rank `rank` is after the call, and how far from that it may be: by as many
// roundings as the sum has, whatever their order.
template <typename T>
std::pair<double, double> Expected(Collective collective, int rank, int size, int64_t elements,
                                   int64_t i, int root) {
  const int64_t owner = i / (elements / size);
  const auto value = [&](int64_t of) {
    return Values<T>::Wide(ValueOf<T>(static_cast<int>(of), i));
  };
  if (collective == Collective::kAllGather) return {value(owner), 0};
  if (collective == Collective::kBroadcast) return {value(root), 0};
  if (collective == Collective::kReduceScatter && owner != rank) return {value(rank), 0};
  double sum = 0;
  double magnitude = 0;
  for (int r = 0; r < size; ++r) {
    sum += value(r);
    magnitude += std::abs(value(r));
  }
  return {sum, (size - 1) * magnitude * Values<T>::kRounding};
}

// Uploads on the compute stream, calls, and downloads on the compute stream.
template <typename T>
void ExpectReference(Rank rank, Collective collective, int root) {
  const int64_t elements = 12 * rank.size;
  std::vector<T> values(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) values[static_cast<size_t>(i)] = ValueOf<T>(rank.rank, i);
  const Buffer buffer = Allocate(rank.device, Values<T>::kDType, elements);
  const auto full = rank.device.MakeEvent("full");
  const auto reduced = rank.device.MakeEvent("reduced");
  const auto read = rank.device.MakeEvent("read");
  rank.device.CopyFromHost(kCompute, buffer, values.data());
  rank.device.Record(*full, kCompute);
  rank.device.Wait(kCommunication, *full);
  Start(rank.communicator, collective, buffer, kGradients, root);
  rank.device.Record(*reduced, kCommunication);
  rank.device.Wait(kCompute, *reduced);
  rank.device.CopyToHost(kCompute, values.data(), buffer);
  rank.device.Record(*read, kCompute);
  ASSERT_TRUE(rank.device.HostWait(*read).ok());
  for (int64_t i = 0; i < elements; ++i) {
    const auto [expected, tolerance] =
        Expected<T>(collective, rank.rank, rank.size, elements, i, root);
    const double found = Values<T>::Wide(values[static_cast<size_t>(i)]);
    EXPECT_TRUE(std::abs(found - expected) <= tolerance)
        << Name(collective) << " of " << Name(Values<T>::kDType) << " on rank " << rank.rank
        << ", element " << i << ": " << found << " is not " << expected;
  }
  rank.device.Free(buffer);
}

TEST_P(NcclTest, EveryCollectiveOfEveryTypeGivesTheReference) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Reset();
    fake_nccl::SetSeed(seed);
    const Outcome outcome = World({.size = size()})([](Rank rank) {
      for (const Collective collective : kAllCollectives) {
        const int root = rank.size - 1;
        ExpectReference<float>(rank, collective, root);
        ExpectReference<BFloat16>(rank, collective, root);
        ExpectReference<double>(rank, collective, root);
        ExpectReference<int32_t>(rank, collective, root);
        ExpectReference<int64_t>(rank, collective, root);
      }
    });
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.counts.living, 0);
    EXPECT_EQ(outcome.counts.destroyed, size());
    EXPECT_GT(outcome.counts.in_progress, 20);
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
  }
}

TEST_P(NcclRanks, AMissingWaitIsReportedWithBothOperations) {
  for (const char* const edge : {"full -> communication", "reduced -> compute"}) {
    for (const Collective collective : kAllCollectives) {
      Reset();
      const Outcome outcome = World({.size = size(), .drop_wait = edge})([&](Rank rank) {
        const Buffer buffer = Allocate(rank.device, DType::kFloat32, 8 * rank.size);
        const auto full = rank.device.MakeEvent("full");
        const auto reduced = rank.device.MakeEvent("reduced");
        const auto zeroed = rank.device.MakeEvent("zeroed");
        rank.device.Zero(kCompute, buffer);
        rank.device.Record(*full, kCompute);
        rank.device.Wait(kCommunication, *full);
        Start(rank.communicator, collective, buffer, kGradients);
        rank.device.Record(*reduced, kCommunication);
        rank.device.Wait(kCompute, *reduced);
        rank.device.Zero(kCompute, buffer);
        rank.device.Record(*zeroed, kCompute);
        EXPECT_TRUE(rank.device.HostWait(*zeroed).ok());
        EXPECT_TRUE(Finish(rank).ok());
      });
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      const std::vector<std::string> reports = fake_cuda::TakeReports();
      EXPECT_FALSE(reports.empty()) << edge << ", " << Name(collective);
      EXPECT_THAT(reports, Each(HasSubstr("race: ")));
      EXPECT_THAT(reports, Each(HasSubstr("cudaMemsetAsync on stream compute of device")));
      EXPECT_THAT(reports, Each(HasSubstr(" on stream communication of device")));
    }
  }
}

TEST(Nccl, CountsWhatEachRankSends) {
  fake_cuda::Reset({.devices = 4, .workers = 4});
  std::array<Traffic, 4> traffic;
  const Outcome outcome = World({.size = 4})([&](Rank rank) {
    const Buffer whole = Allocate(rank.device, DType::kFloat32, 96);  // 384 bytes
    const Buffer scalar = Allocate(rank.device, DType::kFloat64, 1);
    rank.device.Zero(kCommunication, whole);
    rank.device.Zero(kCommunication, scalar);
    rank.communicator.AllGather(whole, kGradients);
    rank.communicator.AllGather(whole, kGradients);
    rank.communicator.ReduceScatterSum(whole, kGradients);
    rank.communicator.AllReduceSum(whole, kGradients);
    rank.communicator.Broadcast(whole, 2, kGradients);
    rank.communicator.AllReduceSum(scalar, {Purpose::kScalars});
    rank.communicator.AllReduceSum(whole.Slice(0, 0), kGradients);
    EXPECT_TRUE(Finish(rank).ok());
    traffic[rank.rank] = rank.communicator.traffic();
  });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  for (int r = 0; r < 4; ++r) {
    const Traffic expected = {
        .collectives = {{{2, 576}, {1, 288}, {2, 576}, {1, r == 2 ? 1152 : 0}}},
        .scalars = {1, r == 3 ? 24 : 8}};
    EXPECT_EQ(traffic[r], expected) << r;
  }
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(Nccl, IsWarmBeforeTheFirstCallAndMakesNothingInASteadyStep) {
  fake_cuda::Reset({.devices = 2, .workers = 2});
  std::vector<std::string> called;
  int connected = 0;
  int events = 0;
  const auto hook = [&](const CallInfo& call) {
    if (call.rank == 0) called.push_back(Describe(call));
    return absl::OkStatus();
  };
  const Outcome outcome = World(
      {.largest_call_bytes = 1 << 20, .workspace_bytes = 1 << 20, .hook = hook})([&](Rank rank) {
    EXPECT_EQ(rank.communicator.traffic(), Traffic());
    EXPECT_EQ(rank.device.WaitingFor(kCommunication), "");
    const Buffer buffer = Allocate(rank.device, DType::kFloat32, 200'000);
    rank.device.Zero(kCommunication, buffer);
    EXPECT_TRUE(Finish(rank).ok());
    for (int step = 0; step < 6; ++step) {
      if (rank.rank == 0 && step == 3) {
        connected = fake_nccl::CountsNow().connected;
        events = fake_cuda::Calls(0)["cudaEventCreateWithFlags"];
      }
      const auto done = rank.device.MakeEvent("done");
      for (const int64_t elements : {64, 30'000, 200'000}) {
        for (const Collective collective : kAllCollectives) {
          Start(rank.communicator, collective, buffer.Slice(0, elements), kGradients);
        }
      }
      rank.device.Record(*done, kCommunication);
      EXPECT_TRUE(rank.device.HostWait(*done).ok());
    }
  });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_EQ(called.size(), 72u);
  EXPECT_EQ(called[0], "all-gather number 0 (gradients, unit 5)");
  EXPECT_EQ(called[71], "broadcast number 71 (gradients, unit 5)");
  EXPECT_EQ(connected, 2 * 4 * 3) << "four kinds, three classes of size";
  EXPECT_EQ(outcome.counts.connected, connected);
  // "done" of three steps.
  EXPECT_EQ(fake_cuda::Calls(0)["cudaEventCreateWithFlags"], events + 3);
  EXPECT_EQ(fake_cuda::LiveNow().events, 0);
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

// ---- failures ----

TEST_P(NcclRanks, ARankThatFailsEndsTheRunAndTheOthersSayWhichCallTheyAreIn) {
  World* running = nullptr;
  std::map<int, std::string> others;
  for (int r = 0; r < size(); ++r) {
    if (r != 1) others[r] = "all-reduce number 3 (gradients, unit 0)";
  }
  const auto hook = [&](const CallInfo& call) {
    if (call.rank != 1 || call.number != 3) return absl::OkStatus();
    running->AwaitOnTheGpu(others);
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
// does: a rank also says so, for a moment, while it enqueues a call.
void RunAndWatch(World& world, const std::map<int, std::string>& waiting,
                 const std::function<void(Rank)>& body) {
  std::thread watch([&] {
    world.Await(waiting, kCommunication, std::chrono::milliseconds(200));
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
      Start(rank.communicator, mine.collective, buffer, kGradients, mine.root);
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
    Start(rank.communicator, collective, buffer, kGradients);
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

TEST_P(NcclTest, IsGoneThoughAnAbortFails) {
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
