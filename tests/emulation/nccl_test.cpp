// SPDX-License-Identifier: Apache-2.0
//
// Collectives between GPUs by NCCL, on an NCCL that is an adversary (tests/emulation/fake_nccl.h),
// under every order of the streams.
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
  rank.communicator.MakeCall(collective, buffer, root, kGradients);
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
        rank.communicator.MakeCall(collective, buffer, 0, kGradients);
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

TEST(Nccl, SaysThatTheWorkerWaitsInACallThatOtherRanksHaveToMakeFirst) {
  fake_cuda::Reset({.devices = 2, .workers = 2});
  World world({});
  const Outcome outcome = world([&](Rank rank) {
    // Of a type that is not warm: the call is in progress until both have made it.
    const Buffer buffer = Allocate(rank.device, DType::kInt64, 2);
    rank.device.Zero(kCommunication, buffer);
    if (rank.rank == 1) world.Await({{0, "ncclAllReduce"}}, StreamId::kCompute);
    rank.communicator.AllReduceSum(buffer, kGradients);
    EXPECT_EQ(rank.device.WaitingFor(StreamId::kCompute), "");
    EXPECT_TRUE(Finish(rank).ok());
  });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
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
    EXPECT_EQ(rank.device.WaitingFor(StreamId::kCompute), "");
    const Buffer buffer = Allocate(rank.device, DType::kFloat32, 200'000);
    const Buffer scalars = Allocate(rank.device, DType::kFloat64, 2);
    rank.device.Zero(kCommunication, buffer);
    rank.device.Zero(kCommunication, scalars);
    EXPECT_TRUE(Finish(rank).ok());
    for (int step = 0; step < 6; ++step) {
      if (rank.rank == 0 && step == 3) {
        connected = fake_nccl::CountsNow().connected;
        events = fake_cuda::Calls(0)["cudaEventCreateWithFlags"];
      }
      const auto done = rank.device.MakeEvent("done");
      for (const int64_t elements : {64, 30'000, 200'000}) {
        for (const Collective collective : kAllCollectives) {
          rank.communicator.MakeCall(collective, buffer.Slice(0, elements), 0, kGradients);
        }
      }
      rank.communicator.AllReduceSum(scalars, {Purpose::kScalars});
      rank.device.Record(*done, kCommunication);
      EXPECT_TRUE(rank.device.HostWait(*done).ok());
    }
  });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_EQ(called.size(), 78u);
  EXPECT_EQ(called[0], "all-gather number 0 (gradients, unit 5)");
  EXPECT_EQ(called[76], "broadcast number 76 (gradients, unit 5)");
  EXPECT_EQ(connected, 2 * (4 * 2 + 1) * 3) << "four kinds in two types, sums in a third; three "
                                               "classes of size";
  EXPECT_EQ(outcome.counts.connected, connected);
  // "done" of three steps.
  EXPECT_EQ(fake_cuda::Calls(0)["cudaEventCreateWithFlags"], events + 3);
  EXPECT_EQ(fake_cuda::LiveNow().events, 0);
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

}  // namespace
}  // namespace zerobox
