// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ops/collectives/plan_communicator.h"
#include "ops/collectives/reduce.h"
#include "tests/collectives_world.h"

namespace zerobox {
namespace {
constexpr int kSizes[] = {1, 2, 3, 4, 7, 8};

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

}  // namespace
}  // namespace zerobox
