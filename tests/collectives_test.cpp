// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <latch>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/collectives/host_communicator.h"
#include "ops/collectives/plan_communicator.h"
#include "ops/collectives/reduce.h"
#include "ops/device/host_device.h"

namespace zerobox {
namespace {

constexpr auto kCommunication = StreamId::kCommunication;
constexpr int kSizes[] = {1, 2, 3, 4, 7, 8};
constexpr CallLabel kParameters{Purpose::kParameters, 3};
constexpr CallLabel kGradients{Purpose::kGradients, 1};
constexpr CallLabel kScalar{Purpose::kScalars};

const CollectiveCount& Of(const Traffic& traffic, Collective collective) {
  return traffic.collectives[static_cast<size_t>(collective)];
}

// Ranks 0 .. size-1 whose one worker is the test's thread: no call blocks it.
struct World {
  explicit World(int size, CallHook hook = nullptr)
      : group(std::make_unique<HostGroup>(size, abort)) {
    if (hook) group->set_call_hook(std::move(hook));
    for (int r = 0; r < size; ++r) {
      HostDeviceOptions options;
      options.rank = r;
      options.regions = {0, 0, 0, 4 << 20};
      absl::StatusOr<std::unique_ptr<HostDevice>> device = HostDevice::Make(options, abort);
      EXPECT_TRUE(device.ok()) << device.status();
      devices.push_back(*std::move(device));
      ranks.push_back(group->Join(r, *devices.back()));
    }
  }

  int size() const { return static_cast<int>(ranks.size()); }
  HostDevice& device(int r) { return *devices[static_cast<size_t>(r)]; }
  Communicator& rank(int r) { return *ranks[static_cast<size_t>(r)]; }

  // A buffer on each rank, with what `value` (of rank and element) says.
  template <typename T, typename Value>
  std::vector<Buffer> Make(DType dtype, int64_t elements, const Value& value) {
    std::vector<Buffer> buffers;
    for (int r = 0; r < size(); ++r) {
      buffers.push_back(
          device(r).Allocate(Region::kTransient, Category::kWorkspace, dtype, elements, "test"));
      for (int64_t i = 0; i < elements; ++i) buffers.back().template As<T>()[i] = value(r, i);
    }
    return buffers;
  }

  // The ranks' statuses once all calls have ended.
  std::vector<absl::Status> Finish() {
    std::vector<absl::Status> statuses;
    for (auto& device : devices) {
      const std::unique_ptr<Event> end = device->MakeEvent("end");
      device->Record(*end, kCommunication);
      statuses.push_back(device->HostWait(*end));
    }
    return statuses;
  }
  void FinishOk() {
    for (const absl::Status& status : Finish()) ASSERT_TRUE(status.ok()) << status;
  }

  Abort abort;
  std::unique_ptr<HostGroup> group;
  std::vector<std::unique_ptr<HostDevice>> devices;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

template <typename T>
std::vector<T> Contents(const Buffer& buffer) {
  return std::vector<T>(buffer.As<T>(), buffer.As<T>() + buffer.elements);
}

// Numbers whose sums round, of both signs.
double RandomNumber(int rank, int64_t element) {
  std::minstd_rand random(static_cast<unsigned>(1 + element * 131 + rank * 7919));
  random.discard(3);
  const double uniform = static_cast<double>(random()) / 2147483647.0 - 0.5;
  return std::ldexp(uniform, static_cast<int>(random() % 9));
}
float RandomFloat(int rank, int64_t element) {
  return static_cast<float>(RandomNumber(rank, element));
}
uint16_t RandomBFloat16(int rank, int64_t element) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(RandomFloat(rank, element)) >> 16);
}
float Widened(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// The sum of all ranks' elements, in rank order in T, as the contract says.
template <typename T, typename Value>
T SumInRankOrder(int size, int64_t element, const Value& value) {
  T sum = value(0, element);
  for (int r = 1; r < size; ++r) sum = sum + value(r, element);
  return sum;
}

TEST(Collectives, ReduceScatterLeavesEachRankItsPartOfTheSumAndTheRestAsItWas) {
  for (const int size : kSizes) {
    World world(size);
    const int64_t part = 3001;  // neither a multiple of a vector nor of a chunk
    const std::vector<Buffer> buffers =
        world.Make<float>(DType::kFloat32, part * size, RandomFloat);
    for (int r = 0; r < size; ++r) {
      world.rank(r).ReduceScatterSum(buffers[static_cast<size_t>(r)], kGradients);
    }
    world.FinishOk();
    for (int r = 0; r < size; ++r) {
      const float* found = buffers[static_cast<size_t>(r)].As<float>();
      for (int64_t i = 0; i < part * size; ++i) {
        if (i / part != r) {
          ASSERT_EQ(found[i], RandomFloat(r, i));
          continue;
        }
        double exact = 0;
        double magnitude = 0;
        for (int q = 0; q < size; ++q) {
          exact += RandomFloat(q, i);
          magnitude += std::abs(RandomFloat(q, i));
        }
        ASSERT_EQ(found[i], SumInRankOrder<float>(size, i, RandomFloat));
        ASSERT_TRUE(std::abs(found[i] - exact) <= size * 6e-8 * magnitude);
      }
    }
  }
}

TEST(Collectives, SumsDoublesInDouble) {
  for (const int size : kSizes) {
    World world(size);
    const int64_t elements = 1009;
    const std::vector<Buffer> buffers = world.Make<double>(DType::kFloat64, elements, RandomNumber);
    for (int r = 0; r < size; ++r) {
      world.rank(r).AllReduceSum(buffers[static_cast<size_t>(r)], kScalar);
    }
    world.FinishOk();
    for (const Buffer& buffer : buffers) {
      for (int64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(buffer.As<double>()[i], SumInRankOrder<double>(size, i, RandomNumber));
      }
    }
  }
}

TEST(Collectives, SumsBFloat16InFloatAndRoundsOnceToNearestEven) {
  for (const int size : kSizes) {
    World world(size);
    const int64_t elements = 4099;
    const std::vector<Buffer> buffers =
        world.Make<uint16_t>(DType::kBFloat16, elements, RandomBFloat16);
    for (int r = 0; r < size; ++r) {
      world.rank(r).AllReduceSum(buffers[static_cast<size_t>(r)], kGradients);
    }
    world.FinishOk();
    for (int64_t i = 0; i < elements; ++i) {
      const float sum = SumInRankOrder<float>(
          size, i, [](int r, int64_t e) { return Widened(RandomBFloat16(r, e)); });
      // The nearer of the two neighbours; the even one of two that are equally near.
      const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) >> 16);
      const auto above = static_cast<uint16_t>(below + 1);
      const double to_below = std::abs(double{sum} - double{Widened(below)});
      const double to_above = std::abs(double{sum} - double{Widened(above)});
      const bool up = to_above < to_below || (to_above == to_below && below % 2 == 1);
      for (const Buffer& buffer : buffers) {
        ASSERT_EQ(buffer.As<uint16_t>()[i], up ? above : below);
      }
    }
  }
}

TEST(Reduce, KeepsNanAndInfinityInEveryType) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a = {nan, 1, inf, inf, -0.0f};
  std::vector<float> b = {1, nan, inf, -inf, -0.0f};
  const Buffer fa{reinterpret_cast<std::byte*>(a.data()), 5, DType::kFloat32};
  const Buffer fb{reinterpret_cast<std::byte*>(b.data()), 5, DType::kFloat32};
  SumInOrder(fb, std::array{fa, fb});
  EXPECT_TRUE(std::isnan(b[0]) && std::isnan(b[1]) && std::isnan(b[3]));
  EXPECT_EQ(b[2], inf);
  EXPECT_TRUE(b[4] == 0 && std::signbit(b[4]));

  // A signalling NaN whose payload is lost in the upper half; all ones; infinity; the largest
  // number.
  std::vector<uint16_t> h = {0x7F81, 0xFFFF, 0x7F80, 0x7F7F};
  std::vector<uint16_t> zero = {0, 0, 0, 0x7F7F};
  const Buffer ha{reinterpret_cast<std::byte*>(h.data()), 4, DType::kBFloat16};
  const Buffer hb{reinterpret_cast<std::byte*>(zero.data()), 4, DType::kBFloat16};
  SumInOrder(ha, std::array{ha, hb});
  EXPECT_TRUE(std::isnan(Widened(h[0])));
  EXPECT_TRUE(std::isnan(Widened(h[1])));
  EXPECT_EQ(Widened(h[2]), inf);
  EXPECT_EQ(Widened(h[3]), inf);
}

TEST(Collectives, SumsIntegersExactly) {
  World world(3);
  const std::vector<Buffer> wide =
      world.Make<int64_t>(DType::kInt64, 100, [](int r, int64_t i) { return (i << 40) + r - 50; });
  const std::vector<Buffer> narrow = world.Make<int32_t>(
      DType::kInt32, 100, [](int r, int64_t i) { return static_cast<int32_t>(r * i - 50); });
  for (int r = 0; r < 3; ++r) {
    world.rank(r).AllReduceSum(wide[static_cast<size_t>(r)], kScalar);
    world.rank(r).AllReduceSum(narrow[static_cast<size_t>(r)], kScalar);
  }
  world.FinishOk();
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(wide[1].As<int64_t>()[i], 3 * (i << 40) + 3 - 150);
    EXPECT_EQ(narrow[2].As<int32_t>()[i], 3 * i - 150);
  }
}

TEST(Collectives, AllGatherGivesEveryoneEveryPart) {
  for (const int size : kSizes) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt64}) {
      World world(size);
      const int64_t part = dtype == DType::kFloat32 ? 70001 : 5;  // more than one copy chunk, too
      // Bytes that name rank and place; outside of its own part a rank holds rubbish.
      const int64_t part_bytes = part * SizeOf(dtype);
      std::vector<Buffer> buffers;
      for (int r = 0; r < size; ++r) {
        buffers.push_back(world.device(r).Allocate(Region::kTransient, Category::kWorkspace, dtype,
                                                   part * size, "test"));
        std::memset(buffers.back().data, 0xEE, static_cast<size_t>(part_bytes * size));
        for (int64_t i = 0; i < part_bytes; ++i) {
          buffers.back().data[r * part_bytes + i] = static_cast<std::byte>(r * 31 + i % 101);
        }
      }
      for (int r = 0; r < size; ++r) {
        world.rank(r).AllGather(buffers[static_cast<size_t>(r)], kParameters);
      }
      world.FinishOk();
      for (const Buffer& buffer : buffers) {
        for (int64_t i = 0; i < part_bytes * size; ++i) {
          const int64_t owner = i / part_bytes;
          ASSERT_EQ(buffer.data[i], static_cast<std::byte>(owner * 31 + i % part_bytes % 101));
        }
      }
    }
  }
}

TEST(Collectives, BroadcastGivesEveryoneTheRootsBuffer) {
  for (const int size : kSizes) {
    for (const int root : {0, size - 1}) {
      World world(size);
      const std::vector<Buffer> buffers = world.Make<float>(DType::kFloat32, 1001, RandomFloat);
      for (int r = 0; r < size; ++r) {
        world.rank(r).Broadcast(buffers[static_cast<size_t>(r)], root, kParameters);
      }
      world.FinishOk();
      for (const Buffer& buffer : buffers) {
        for (int64_t i = 0; i < 1001; ++i) {
          ASSERT_EQ(buffer.As<float>()[i], RandomFloat(root, i));
        }
      }
    }
  }
}

TEST(Collectives, AllReduceTakesAnyNumberOfElements) {
  for (const int size : kSizes) {
    for (const int64_t elements : {0, 1, 2, 5, 8, 2049}) {
      World world(size);
      const std::vector<Buffer> buffers = world.Make<float>(DType::kFloat32, elements, RandomFloat);
      for (int r = 0; r < size; ++r) {
        world.rank(r).AllReduceSum(buffers[static_cast<size_t>(r)], kGradients);
      }
      world.FinishOk();
      int64_t sent = 0;
      for (int r = 0; r < size; ++r) {
        for (int64_t i = 0; i < elements; ++i) {
          ASSERT_EQ(buffers[static_cast<size_t>(r)].As<float>()[i],
                    SumInRankOrder<float>(size, i, RandomFloat));
        }
        sent += Of(world.rank(r).traffic(), Collective::kAllReduce).bytes_sent;
      }
      EXPECT_EQ(sent, 2 * (size - 1) * elements * 4);
    }
  }
}

TEST(Collectives, AllReduceEqualsReduceScatterAndAllGatherBitwise) {
  for (const int size : kSizes) {
    World world(size);
    const int64_t elements = 1000 * size;
    const auto at_once = world.Make<float>(DType::kFloat32, elements, RandomFloat);
    const auto in_two = world.Make<float>(DType::kFloat32, elements, RandomFloat);
    for (int r = 0; r < size; ++r) {
      world.rank(r).AllReduceSum(at_once[static_cast<size_t>(r)], kGradients);
      world.rank(r).ReduceScatterSum(in_two[static_cast<size_t>(r)], kGradients);
      world.rank(r).AllGather(in_two[static_cast<size_t>(r)], kGradients);
    }
    world.FinishOk();
    for (size_t r = 0; r < at_once.size(); ++r) {
      EXPECT_EQ(std::memcmp(at_once[r].data, in_two[r].data, static_cast<size_t>(elements * 4)), 0);
    }
  }
}

TEST(Collectives, TheOrderOfArrivalDoesNotChangeABit) {
  constexpr int kSize = 4;
  std::vector<std::vector<float>> results;
  for (const std::array<int, kSize> order : {std::array{0, 1, 2, 3}, std::array{3, 2, 1, 0},
                                             std::array{2, 0, 3, 1}, std::array{1, 3, 0, 2}}) {
    World* the_world = nullptr;
    std::latch made(1);
    // Each rank goes on once the one before it in the order stands in the collective.
    World world(kSize, [&](const CallInfo& call) {
      made.wait();
      const auto place = std::find(order.begin(), order.end(), call.rank);
      if (place != order.begin()) {
        while (the_world->device(*(place - 1)).WaitingFor(kCommunication).empty()) {
          std::this_thread::yield();
        }
      }
      return absl::OkStatus();
    });
    the_world = &world;
    const auto buffers = world.Make<float>(DType::kFloat32, 4096, RandomFloat);
    for (int r = 0; r < kSize; ++r) {
      world.rank(r).AllReduceSum(buffers[static_cast<size_t>(r)], kGradients);
    }
    made.count_down();
    world.FinishOk();
    for (const Buffer& buffer : buffers) results.push_back(Contents<float>(buffer));
  }
  ASSERT_EQ(results.size(), 16u);
  for (const std::vector<float>& result : results) {
    ASSERT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * 4), 0);
  }
}

TEST(Collectives, CountTheBytesThatEachRankSends) {
  World world(4);
  const auto buffers = world.Make<float>(DType::kFloat32, 1024, RandomFloat);  // 4096 bytes
  const auto scalars = world.Make<double>(DType::kFloat64, 1, RandomNumber);
  for (int r = 0; r < 4; ++r) {
    const Buffer buffer = buffers[static_cast<size_t>(r)];
    world.rank(r).AllGather(buffer, kParameters);
    world.rank(r).AllGather(buffer, kParameters);
    world.rank(r).ReduceScatterSum(buffer, kGradients);
    world.rank(r).AllReduceSum(buffer, kGradients);
    world.rank(r).Broadcast(buffer, 1, kParameters);
    world.rank(r).AllGather(buffer, kScalar);
    world.rank(r).AllReduceSum(scalars[static_cast<size_t>(r)], kScalar);
  }
  world.FinishOk();
  int64_t scalar_bytes = 0;
  for (int r = 0; r < 4; ++r) {
    const Traffic traffic = world.rank(r).traffic();
    EXPECT_EQ(Of(traffic, Collective::kAllGather), (CollectiveCount{2, 6144}));
    EXPECT_EQ(Of(traffic, Collective::kReduceScatter), (CollectiveCount{1, 3072}));
    EXPECT_EQ(Of(traffic, Collective::kAllReduce), (CollectiveCount{1, 6144}));
    EXPECT_EQ(Of(traffic, Collective::kBroadcast), (CollectiveCount{1, r == 1 ? 12288 : 0}));
    EXPECT_EQ(traffic.scalars.calls, 2);
    scalar_bytes += traffic.scalars.bytes_sent - 3072;
  }
  EXPECT_EQ(scalar_bytes, 2 * 3 * 8);
}

TEST(Traffic, IsSubtractedCountByCount) {
  Traffic a;
  Traffic b;
  a.collectives[1] = {5, 500};
  a.scalars = {3, 24};
  b.collectives[1] = {2, 100};
  b.scalars = {1, 8};
  const Traffic difference = a - b;
  EXPECT_EQ(difference.collectives[1], (CollectiveCount{3, 400}));
  EXPECT_EQ(difference.scalars, (CollectiveCount{2, 16}));
  EXPECT_EQ(difference.collectives[0], (CollectiveCount{0, 0}));
}

void CallEverything(Communicator& rank, const Buffer& buffer) {
  rank.AllGather(buffer, kParameters);
  rank.ReduceScatterSum(buffer, kGradients);
  rank.AllReduceSum(buffer, kGradients);
  rank.AllReduceSum(buffer.Slice(0, buffer.elements - 5), kGradients);
  rank.AllReduceSum(buffer.Slice(0, 1), kScalar);
  rank.Broadcast(buffer, rank.size() - 1, kParameters);
}

TEST(PlanCommunicator, CountsWhatTheHostCommunicatorSends) {
  for (const int size : kSizes) {
    World world(size);
    const auto buffers = world.Make<float>(DType::kFloat32, 64 * size, RandomFloat);
    for (int r = 0; r < size; ++r) {
      CallEverything(world.rank(r), buffers[static_cast<size_t>(r)]);
    }
    world.FinishOk();
    for (int r = 0; r < size; ++r) {
      PlanCommunicator plan(r, size);
      CallEverything(plan, Buffer{nullptr, 64 * size, DType::kFloat32});
      EXPECT_EQ(plan.traffic(), world.rank(r).traffic()) << "rank " << r << " of " << size;
      EXPECT_EQ(Of(plan.traffic(), Collective::kAllGather).calls, size == 1 ? 0 : 1);
    }
  }
}

TEST(Collectives, DoNothingOnOneRank) {
  std::atomic<int> calls{0};
  World world(1, [&](const CallInfo&) {
    ++calls;
    return absl::OkStatus();
  });
  const auto buffers = world.Make<float>(DType::kFloat32, 64, RandomFloat);
  CallEverything(world.rank(0), buffers[0]);
  world.FinishOk();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(world.rank(0).traffic(), Traffic{});
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(buffers[0].As<float>()[i], RandomFloat(0, i));
}

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
      switch (collective) {
        case Collective::kAllGather:
          world.rank(r).AllGather(buffer, kParameters);
          break;
        case Collective::kReduceScatter:
          world.rank(r).ReduceScatterSum(buffer, kParameters);
          break;
        case Collective::kAllReduce:
          world.rank(r).AllReduceSum(buffer, kParameters);
          break;
        case Collective::kBroadcast:
          world.rank(r).Broadcast(buffer, 0, kParameters);
          break;
      }
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
