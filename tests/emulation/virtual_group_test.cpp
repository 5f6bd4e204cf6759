// SPDX-License-Identifier: Apache-2.0
//
// Several ranks on one GPU: their collectives have the bits and the traffic of host devices', under
// every order of all streams; and whatever a rank does wrong ends the run of all.
#include "ops/cuda/virtual_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/bfloat16.h"
#include "ops/collectives/host_communicator.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/status.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox {
namespace {

using cuda::CudaDevice;
using fake_cuda::Policy;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr auto kCompute = StreamId::kCompute;
constexpr auto kCommunication = StreamId::kCommunication;
constexpr auto kToHost = StreamId::kToHost;
constexpr auto kFromHost = StreamId::kFromHost;

// ---- ranks in threads, on one GPU or on host devices ----

using RankProgram = std::function<void(Device& device, Communicator& communicator)>;

// What came of a run, by rank.
struct Ranks {
  std::vector<absl::Status> statuses;
  std::vector<std::string> waiting_for;  // the communication stream
  std::vector<Traffic> traffic;
};

// Calls program(device, communicator) on each rank's thread. `make` gives rank r its device.
template <typename Make>
Ranks RunRanks(int size, Group& group, const Make& make, const RankProgram& program) {
  Ranks ranks;
  ranks.statuses.resize(static_cast<size_t>(size));
  ranks.waiting_for.resize(static_cast<size_t>(size));
  ranks.traffic.resize(static_cast<size_t>(size));
  // Until all threads have ended: others use this rank's memory.
  std::vector<std::unique_ptr<Device>> devices(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, r = static_cast<size_t>(rank)] {
      auto device = make(rank);
      ASSERT_TRUE(device.ok()) << device.status();
      devices[r] = *std::move(device);
      const std::unique_ptr<Communicator> communicator = group.Join(rank, *devices[r]);
      EXPECT_EQ(communicator->rank(), rank);
      EXPECT_EQ(communicator->size(), size);
      program(*devices[r], *communicator);
      communicator->Stop();
      devices[r]->StopStreams();
      ranks.statuses[r] = devices[r]->status();
      ranks.waiting_for[r] = devices[r]->WaitingFor(kCommunication);
      ranks.traffic[r] = communicator->traffic();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

struct GpuOptions {
  Policy policy = Policy::kRandom;
  uint64_t seed = 1;
  CallHook hook = {};
  std::string drop_wait = {};
};

Ranks RunOnGpu(int size, const GpuOptions& options, const RankProgram& program) {
  // A rank that is slow to enqueue is waited for: the others' order is the policy's.
  fake_cuda::Reset({.policy = options.policy,
                    .seed = options.seed,
                    .workers = size,
                    .patience = std::chrono::seconds(10)});
  Abort abort;
  const std::unique_ptr<Group> group = cuda::MakeVirtualGroup(size, options.hook, abort);
  const auto make = [&](int rank) {
    return CudaDevice::Make({.rank = rank,
                             .regions = {4096, 0, 0, 1 << 20},
                             .workspace_bytes = 1024,
                             .drop_wait = options.drop_wait},
                            abort);
  };
  return RunRanks(size, *group, make, program);
}

Ranks RunOnHost(int size, const RankProgram& program) {
  Abort abort;
  HostGroup group(size, abort);
  const auto make = [&](int rank) {
    return HostDevice::Make({.rank = rank, .regions = {4096, 0, 0, 1 << 20}}, abort);
  };
  return RunRanks(size, group, make, program);
}

class VirtualGroupTest : public testing::TestWithParam<Policy> {
 protected:
  void TearDown() override { EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()); }
};
INSTANTIATE_TEST_SUITE_P(, VirtualGroupTest, testing::ValuesIn(fake_cuda::kPolicies),
                         [](const testing::TestParamInfo<Policy>& policy) {
                           std::string name = fake_cuda::Name(policy.param);
                           std::erase(name, ' ');
                           return name;
                         });

// ---- equal bits ----

struct Call {
  Collective collective;
  DType dtype;
  int64_t elements;
  int root = 0;
};

std::vector<Call> EveryCall(int size) {
  std::vector<Call> calls;
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    // One a rank, packs and their ends.
    for (const int64_t part : {1, 11, 104}) {
      for (const auto collective : {Collective::kAllGather, Collective::kReduceScatter}) {
        calls.push_back({collective, dtype, part * size});
      }
    }
    // Not a multiple of the ranks either.
    for (const int64_t elements : {1, 7, 261}) {
      calls.push_back({Collective::kAllReduce, dtype, elements});
      calls.push_back({Collective::kBroadcast, dtype, elements, static_cast<int>(elements) % size});
    }
  }
  return calls;
}

// The first number of SplitMix64 from this seed.
uint64_t Hash(uint64_t seed) {
  uint64_t z = seed + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Numbers of different sizes, whose sums are rounded; integers whose sums wrap.
std::vector<std::byte> Values(const Call& call, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(call.elements * SizeOf(call.dtype)));
  const auto fill = [&]<typename T>(T, const auto& value) {
    for (int64_t i = 0; i < call.elements; ++i) {
      const T element = value(Hash(seed * 1000003 + static_cast<uint64_t>(i)));
      std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
    }
  };
  const auto real = [](uint64_t hash) {
    return (static_cast<double>(hash >> 11) * 0x1p-53 - 0.5) * static_cast<double>(1 << hash % 8);
  };
  switch (call.dtype) {
    case DType::kFloat32:
      fill(float{}, [&](uint64_t hash) { return static_cast<float>(real(hash)); });
      break;
    case DType::kBFloat16:
      fill(BFloat16{}, [&](uint64_t hash) { return ToBFloat16(static_cast<float>(real(hash))); });
      break;
    case DType::kFloat64:
      fill(double{}, real);
      break;
    case DType::kInt32:
      fill(uint32_t{}, [](uint64_t hash) { return static_cast<uint32_t>(hash); });
      break;
    case DType::kInt64:
      fill(uint64_t{}, [](uint64_t hash) { return hash; });
      break;
  }
  return bytes;
}

// What `calls` leave in each rank's buffers: results[rank][call]. Enqueues all and waits once.
using Results = std::vector<std::vector<std::vector<std::byte>>>;
RankProgram MakeCalls(const std::vector<Call>& calls, Results& results) {
  return [&calls, &results](Device& device, Communicator& communicator) {
    const auto filled = device.MakeEvent("filled");
    const auto sent = device.MakeEvent("sent");
    const auto read = device.MakeEvent("read");
    const auto rank = static_cast<uint64_t>(communicator.rank());
    std::vector<std::vector<std::byte>> values;
    std::vector<std::vector<std::byte>>& left = results[rank];
    for (const Call& call : calls) {
      values.push_back(Values(call, values.size() * 8 + rank));
      left.emplace_back(values.back().size());
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      const Buffer buffer = device.Allocate(Region::kTransient, Category::kWorkspace,
                                            calls[i].dtype, calls[i].elements, "test");
      device.CopyFromHost(kFromHost, buffer, values[i].data());
      device.Record(*filled, kFromHost);
      device.Wait(kCommunication, *filled);
      communicator.MakeCall(calls[i].collective, buffer, calls[i].root,
                            {static_cast<Purpose>(i % 3), static_cast<int>(i) / 3 - 1});
      device.Record(*sent, kCommunication);
      device.Wait(kToHost, *sent);
      device.CopyToHost(kToHost, left[i].data(), buffer);
    }
    device.Record(*read, kToHost);
    EXPECT_TRUE(device.HostWait(*read).ok()) << device.status();
  };
}

TEST_P(VirtualGroupTest, GivesTheBitsAndTheTrafficOfHostDevices) {
  for (const int size : {1, 2, 3, 4}) {
    SCOPED_TRACE(size);
    const std::vector<Call> calls = EveryCall(size);
    Results expected(static_cast<size_t>(size)), found(static_cast<size_t>(size));
    const Ranks host = RunOnHost(size, MakeCalls(calls, expected));
    const Ranks gpu = RunOnGpu(size, {.policy = GetParam(), .seed = 7}, MakeCalls(calls, found));
    for (size_t r = 0; r < expected.size(); ++r) {
      for (size_t i = 0; i < calls.size(); ++i) {
        EXPECT_TRUE(found[r][i] == expected[r][i])
            << "rank " << r << ": " << Name(calls[i].collective) << " of " << calls[i].elements
            << " " << Name(calls[i].dtype);
      }
      EXPECT_EQ(gpu.waiting_for[r], "");
    }
    EXPECT_EQ(gpu.traffic, host.traffic);
    if (size > 1) {
      // A reduce-scatter changes the own part alone, and every other call something.
      EXPECT_NE(found[0][2], Values(calls[2], 16));
      EXPECT_EQ(gpu.traffic[0].scalars.calls, static_cast<int64_t>(calls.size()) / 3);
    } else {
      EXPECT_EQ(gpu.traffic[0], Traffic{});
    }
  }
}

// ---- the order of events ----

// Puts `work` into a stream, as a kernel that reads and writes `buffer`.
void Launch(Device& device, StreamId stream, const Buffer& buffer, std::function<void()> work) {
  static_cast<CudaDevice&>(device).Enqueue(stream, "kernel", [&](cudaStream_t handle) {
    const auto bytes = static_cast<size_t>(buffer.bytes());
    return cuda::ToStatus(
        fake_cuda::Enqueue(handle, "kernel",
                           {{buffer.data, bytes, false}, {buffer.data, bytes, true}},
                           std::move(work)),
        "launch");
  });
}

constexpr int kRounds = 8;
constexpr int64_t kPart = 20;

// The buffers of all ranks go round: compute writes, a call sends, compute writes what came of it.
// The host waits once, at the end. `sums`: of the numbers that each rank ends with.
RankProgram GoRound(Collective collective, std::vector<double>& sums) {
  return [collective, &sums](Device& device, Communicator& communicator) {
    const int rank = communicator.rank();
    const Buffer buffer = device.Allocate(Region::kTransient, Category::kWorkspace, DType::kFloat64,
                                          kPart * communicator.size(), "test");
    const auto full = device.MakeEvent("full");
    const auto sent = device.MakeEvent("sent");
    device.Zero(kCompute, buffer);
    for (int round = 0; round < kRounds; ++round) {
      Launch(device, kCompute, buffer, [buffer, rank] {
        for (int64_t i = 0; i < buffer.elements; ++i) {
          buffer.As<double>()[i] = buffer.As<double>()[i] / 4 + rank + 1;
        }
      });
      device.Record(*full, kCompute);
      device.Wait(kCommunication, *full);
      communicator.MakeCall(collective, buffer, 0, {Purpose::kGradients});
      device.Record(*sent, kCommunication);
      device.Wait(kCompute, *sent);
    }
    double& sum = sums[static_cast<size_t>(rank)];
    Launch(device, kCompute, buffer, [buffer, &sum] {
      for (int64_t i = 0; i < buffer.elements; ++i) sum += buffer.As<double>()[i];
    });
    device.Record(*sent, kCompute);
    (void)device.HostWait(*sent);
  };
}

std::vector<double> SumsOf(Collective collective, const GpuOptions& options) {
  std::vector<double> sums(4);
  const Ranks ranks = RunOnGpu(4, options, GoRound(collective, sums));
  for (const absl::Status& status : ranks.statuses) EXPECT_TRUE(status.ok()) << status;
  return sums;
}

// Each rank's element is x / 4 + rank + 1 before a call.
double SumOfAll() {
  double x = 0;
  for (int round = 0; round < kRounds; ++round) x = 4 * (x / 4) + 1 + 2 + 3 + 4;
  return x;
}
double SumOfGathered() {
  std::array<double, 4> x{};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t r = 0; r < 4; ++r) x[r] = x[r] / 4 + static_cast<double>(r) + 1;
  }
  return x[0] + x[1] + x[2] + x[3];
}

TEST_P(VirtualGroupTest, OrdersComputeOfEachRankBeforeAndAfterACall) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    EXPECT_THAT(SumsOf(Collective::kAllReduce, {.policy = GetParam(), .seed = seed}),
                Each(4 * kPart * SumOfAll()));
    for (const double sum : SumsOf(Collective::kAllGather, {.policy = GetParam(), .seed = seed})) {
      EXPECT_TRUE(std::abs(sum - kPart * SumOfGathered()) <= 1e-9 * sum) << sum;
    }
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
  }
}

TEST(VirtualGroupEdges, AMissingWaitIsFound) {
  for (const char* edge : {"call ready -> communication", "call done -> communication"}) {
    SCOPED_TRACE(edge);
    bool sums_are_wrong = false;
    for (const Policy policy : fake_cuda::kPolicies) {
      (void)SumsOf(Collective::kAllGather, {.policy = policy, .drop_wait = edge});
      EXPECT_THAT(fake_cuda::TakeReports(), Not(IsEmpty()));
      // What kernels touch is not known to the fake runtime itself. Which rank comes last to a call
      // is the machine's affair, and now and then none reads too early.
      for (uint64_t seed = 1; seed <= 10 && !sums_are_wrong; ++seed) {
        const std::vector<double> sums =
            SumsOf(Collective::kAllReduce, {.policy = policy, .seed = seed, .drop_wait = edge});
        for (const double sum : sums) sums_are_wrong |= sum != 4 * kPart * SumOfAll();
        (void)fake_cuda::TakeReports();
      }
    }
    EXPECT_TRUE(sums_are_wrong);
  }
}

TEST_P(VirtualGroupTest, CreatesNoEventInACall) {
  std::vector<double> sums(4);
  (void)RunOnGpu(4, {.policy = GetParam()}, GoRound(Collective::kAllReduce, sums));
  // "full", "sent", "call ready" and "call done" of each rank, and pairs that take times for as
  // many waits as are enqueued before the host waits.
  EXPECT_EQ(fake_cuda::Calls()["cudaEventCreateWithFlags"], 4 * (4 + 2 * kRounds));
  EXPECT_EQ(fake_cuda::LiveNow().events, 0);
}

// ---- failures ----

// Rank r's calls: gradients of units 0, 1, ..., until the run fails, or `last`.
void ReduceUnits(Device& device, Communicator& communicator, const Buffer& buffer, int first,
                 int last) {
  for (int unit = first; unit <= last && device.status().ok(); ++unit) {
    communicator.AllReduceSum(buffer, {Purpose::kGradients, unit});
  }
}
Buffer Zeros(Device& device, int64_t elements, DType dtype = DType::kFloat32) {
  const Buffer buffer =
      device.Allocate(Region::kTransient, Category::kWorkspace, dtype, elements, "test");
  device.Zero(kCommunication, buffer);
  return buffer;
}

TEST_P(VirtualGroupTest, AFailingRankEndsTheWaitsOfAllAndTheyKeepTheirNames) {
  constexpr int kSize = 3;
  std::atomic<Device*> devices[kSize] = {};
  const Ranks ranks = RunOnGpu(kSize, {.policy = GetParam()}, [&](Device& device, Communicator& c) {
    devices[c.rank()] = &device;
    const Buffer buffer = Zeros(device, 12);
    if (c.rank() != 1) return ReduceUnits(device, c, buffer, 0, 9);
    ReduceUnits(device, c, buffer, 0, 4);
    for (const int other : {0, 2}) {
      while (devices[other].load()->WaitingFor(kCommunication) !=
             "all-reduce number 5 (gradients, unit 5)") {
        std::this_thread::yield();
      }
    }
    device.Fail(absl::DataLossError("gone"));
    ReduceUnits(device, c, buffer, 5, 9);
  });
  EXPECT_THAT(ranks.statuses, Each(absl::DataLossError("rank 1: gone")));
  EXPECT_EQ(ranks.waiting_for,
            (std::vector<std::string>{"all-reduce number 5 (gradients, unit 5)", "",
                                      "all-reduce number 5 (gradients, unit 5)"}));
}

TEST_P(VirtualGroupTest, AHookThatFailsIsTheDevicesFailureWithTheCallsName) {
  std::array<std::atomic<int>, 3> calls{};
  const CallHook hook = [&](const CallInfo& call) {
    ++calls[static_cast<size_t>(call.rank)];
    EXPECT_EQ(call.label.unit, call.number);
    if (call.rank != 2 || call.number != 3) return absl::OkStatus();
    return absl::ResourceExhaustedError("pulled the plug");
  };
  const Ranks ranks = RunOnGpu(3, {.policy = GetParam(), .hook = hook},
                               [&](Device& device, Communicator& communicator) {
                                 const Buffer buffer = Zeros(device, 5);
                                 ReduceUnits(device, communicator, buffer, 0, 9);
                               });
  EXPECT_THAT(ranks.statuses,
              Each(absl::ResourceExhaustedError(
                  "rank 2: all-reduce number 3 (gradients, unit 3): pulled the plug")));
  // The others may see the failure before they begin the call, and nobody begins the next.
  EXPECT_EQ(calls[2], 4);
  for (const size_t r : {0, 1}) EXPECT_TRUE(calls[r] == 3 || calls[r] == 4) << calls[r];
}

// All make three calls; then rank 1 makes another than the others.
absl::Status Mismatch(Policy policy, const RankProgram& others, const RankProgram& wrong) {
  const Ranks ranks = RunOnGpu(3, {.policy = policy}, [&](Device& device, Communicator& c) {
    const Buffer buffer = Zeros(device, 12);
    ReduceUnits(device, c, buffer, 0, 2);
    (c.rank() == 1 ? wrong : others)(device, c);
    // It ends though some ranks go on.
    ReduceUnits(device, c, buffer, 4, 100);
  });
  for (const absl::Status& status : ranks.statuses) EXPECT_EQ(status, ranks.statuses[0]);
  for (const std::string& what : ranks.waiting_for) EXPECT_THAT(what, HasSubstr(" number 3 ("));
  return ranks.statuses[0];
}

TEST_P(VirtualGroupTest, RanksThatDoNotMakeTheSameCallAreReported) {
  const auto reduce = [](Device& device, Communicator& communicator) {
    communicator.AllReduceSum(Zeros(device, 12), {Purpose::kGradients, 3});
  };
  const auto expect = [&](const RankProgram& wrong, const std::string& difference) {
    const std::string message(Mismatch(GetParam(), reduce, wrong).message());
    EXPECT_THAT(
        message,
        HasSubstr(": the ranks of a group do not make the same call: rank 0 is in all-reduce "
                  "number 3 (gradients, unit 3) of 12 fp32 elements, but rank 1 is in " +
                  difference + ". All ranks must make the same calls in the same order"));
  };
  expect(
      [](Device& d, Communicator& c) {
        c.AllReduceSum(Zeros(d, 12), {Purpose::kGradients, 4});
      },
      "all-reduce number 3 (gradients, unit 4) of 12 fp32 elements");  // skipped one
  expect(
      [](Device& d, Communicator& c) {
        c.AllReduceSum(Zeros(d, 13), {Purpose::kGradients, 3});
      },
      "all-reduce number 3 (gradients, unit 3) of 13 fp32 elements");
  expect(
      [](Device& d, Communicator& c) {
        c.AllReduceSum(Zeros(d, 12, DType::kBFloat16), {Purpose::kGradients, 3});
      },
      "all-reduce number 3 (gradients, unit 3) of 12 bf16 elements");
  expect(
      [](Device& d, Communicator& c) {
        c.AllGather(Zeros(d, 12), {Purpose::kGradients, 3});
      },
      "all-gather number 3 (gradients, unit 3) of 12 fp32 elements");
  expect([](Device& d, Communicator& c) { c.Broadcast(Zeros(d, 12), 2, {Purpose::kScalars}); },
         "broadcast number 3 (scalars) of 12 fp32 elements from rank 2");
}

TEST_P(VirtualGroupTest, AnErrorOfAnyCallOfTheRuntimeEndsAll) {
  std::vector<double> sums(2);
  const RankProgram reduce = GoRound(Collective::kAllReduce, sums);
  const RankProgram gather = GoRound(Collective::kAllGather, sums);
  struct Failing {
    const char* function;
    const char* name;  // in the message
    const RankProgram& program;
  };
  for (const Failing& failing : {Failing{"cudaLaunchKernelExC", "cudaLaunchKernelExC: ", reduce},
                                 {"cudaMemcpyAsync", "cudaMemcpyAsync: ", gather},
                                 {"cudaEventCreateWithFlags", "cudaEventCreateWithFlags: ", reduce},
                                 {"cudaEventRecord", "cudaEventRecord: ", reduce},
                                 {"cudaStreamWaitEvent", "cudaStreamWaitEvent: ", reduce}}) {
    for (const int nth : {1, 2, 3, 4, kRounds}) {
      SCOPED_TRACE(absl::StrCat(failing.function, " ", nth));
      std::atomic<bool> armed = false;
      const Ranks ranks = RunOnGpu(2, {.policy = GetParam()}, [&](Device& d, Communicator& c) {
        if (!armed.exchange(true)) fake_cuda::FailCall(failing.function, nth);
        failing.program(d, c);
      });
      EXPECT_EQ(ranks.statuses[0].code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(ranks.statuses[0].message()), HasSubstr(failing.name));
      EXPECT_EQ(ranks.statuses[1], ranks.statuses[0]);
    }
  }
}

}  // namespace
}  // namespace zerobox
