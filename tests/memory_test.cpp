// SPDX-License-Identifier: Apache-2.0
#include "ops/device/memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/device/recorder.h"

namespace zerobox {
namespace {

constexpr auto kPersistent = Region::kPersistent;
constexpr auto kCheckpoints = Region::kCheckpoints;
constexpr auto kActivations = Region::kActivations;
constexpr auto kTransient = Region::kTransient;

// A real pool with memory of its own.
struct RealPool {
  explicit RealPool(const RegionBytes& regions)
      : bytes(std::accumulate(regions.begin(), regions.end(), int64_t{0})),
        memory(static_cast<std::byte*>(
                   std::aligned_alloc(kAllocationAlignment, static_cast<size_t>(bytes))),
               &std::free),
        pool(memory.get(), regions) {}
  int64_t offset(const Buffer& buffer) const { return buffer.data - memory.get(); }

  int64_t bytes;
  std::unique_ptr<std::byte, void (*)(void*)> memory;
  MemoryPool pool;
};

Buffer Floats(MemoryPool& pool, Region region, int64_t elements,
              Category category = Category::kActivations, std::string_view label = "test") {
  absl::StatusOr<Buffer> buffer = pool.Allocate(region, category, DType::kFloat32, elements, label);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return buffer.value_or(Buffer{});
}

TEST(MemoryPool, LaysOutTheRegionsOneBehindTheOther) {
  RealPool real({256, 512, 1024, 2048});
  EXPECT_EQ(real.offset(Floats(real.pool, kPersistent, 1)), 0);
  EXPECT_EQ(real.offset(Floats(real.pool, kTransient, 1)), 256 + 512 + 1024);
  EXPECT_EQ(real.offset(Floats(real.pool, kCheckpoints, 1)), 256);
  EXPECT_EQ(real.offset(Floats(real.pool, kActivations, 1)), 256 + 512);
  EXPECT_EQ(real.offset(Floats(real.pool, kPersistent, 1)), 128);
  EXPECT_EQ(real.offset(Floats(real.pool, kActivations, 1)), 256 + 512 + 128);
}

TEST(MemoryPool, CountsTheAlignmentInTheCategoryThatCausedIt) {
  MemoryPool pool;
  Floats(pool, kPersistent, 1, Category::kParameters);
  Floats(pool, kPersistent, 33, Category::kGradients);
  Floats(pool, kTransient, 32, Category::kWorkspace);
  EXPECT_EQ(pool.ledger().live, (PerCategory<int64_t>{128, 256, 0, 0, 0, 0, 128}));
  EXPECT_EQ(pool.ledger().live_bytes, 512);
  EXPECT_EQ(pool.high_water(), (RegionBytes{384, 0, 0, 128}));
}

TEST(MemoryPool, GivesTransientMemoryTheFirstHoleThatFits) {
  RealPool real({0, 0, 0, 1024});
  const Buffer a = Floats(real.pool, kTransient, 32);  // [0, 128)
  const Buffer b = Floats(real.pool, kTransient, 64);  // [128, 384)
  const Buffer c = Floats(real.pool, kTransient, 32);  // [384, 512)
  EXPECT_EQ(real.offset(c), 384);
  real.pool.Free(a);
  real.pool.Free(b);
  const Buffer whole = Floats(real.pool, kTransient, 96);  // the joined hole
  EXPECT_EQ(real.offset(whole), 0);
  real.pool.Free(whole);
  EXPECT_EQ(real.offset(Floats(real.pool, kTransient, 97)), 512);
  EXPECT_EQ(real.offset(Floats(real.pool, kTransient, 64)), 0);
  EXPECT_EQ(real.offset(Floats(real.pool, kTransient, 32)), 256);
  EXPECT_EQ(real.pool.high_water()[3], 1024);
}

TEST(MemoryPool, ReusesAStackFromItsTop) {
  for (const Region region : {kCheckpoints, kActivations}) {
    RealPool real({128, 1024, 1024, 128});
    const Buffer a = Floats(real.pool, region, 32);
    const Buffer b = Floats(real.pool, region, 64);
    EXPECT_EQ(real.offset(b) - real.offset(a), 128);
    real.pool.Free(b);
    const Buffer c = Floats(real.pool, region, 1);
    EXPECT_EQ(c.data, b.data);
    real.pool.Free(c);
    real.pool.Free(a);
    EXPECT_EQ(Floats(real.pool, region, 256).data, a.data);
    EXPECT_EQ(real.pool.high_water()[static_cast<size_t>(region)], 1024);
  }
}

TEST(MemoryPoolDeathTest, RefusesToFreeAnythingButTheNewestOfAStack) {
  MemoryPool pool;
  const Buffer a = Floats(pool, kActivations, 1);
  Floats(pool, kActivations, 1);
  EXPECT_DEBUG_DEATH(pool.Free(a), "newest of a stack");
}

TEST(MemoryPoolDeathTest, RefusesToFreeTwice) {
  MemoryPool pool;
  const Buffer a = Floats(pool, kTransient, 1);
  pool.Free(a);
  EXPECT_DEBUG_DEATH(pool.Free(a), "not allocated");
}

TEST(MemoryPool, SaysWhatDidNotFitWhere) {
  RealPool real({128, 128, 128, 512});
  Floats(real.pool, kTransient, 32);
  const Buffer hole = Floats(real.pool, kTransient, 32);
  Floats(real.pool, kTransient, 32);
  real.pool.Free(hole);  // two holes of 128 bytes
  const absl::Status full =
      real.pool
          .Allocate(kTransient, Category::kCommunicationBuffers, DType::kFloat32, 64, "bucket 1")
          .status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(full.message());
  for (const char* part : {"\"bucket 1\"", "communication_buffers", "wanted 64 fp32 elements",
                           "256 bytes", "transient region", "found 128 bytes free"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(real.pool.ledger().live_bytes, 256);
  EXPECT_EQ(real.offset(Floats(real.pool, kTransient, 32)), 384 + 128);
}

TEST(MemoryPool, RefusesAbsurdSizesWithoutOverflow) {
  MemoryPool pool;
  for (const int64_t elements :
       {int64_t{1} << 59, int64_t{1} << 61, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(pool.Allocate(kPersistent, Category::kParameters, DType::kFloat32, elements, "absurd")
                  .status()
                  .code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(pool.ledger().live_bytes, 0);
}

TEST(MemoryPool, HoldsNothingForAnEmptyBuffer) {
  RealPool real({128, 0, 0, 0});
  const Buffer empty = Floats(real.pool, kTransient, 0);
  EXPECT_TRUE(empty.empty());
  real.pool.Free(empty);
  EXPECT_EQ(real.pool.ledger().peak_bytes, 0);
}

TEST(Ledger, SumsToTheTotalAtEveryMomentAndAtThePeak) {
  MemoryPool pool;
  std::mt19937 random(7);
  std::vector<Buffer> live;
  int64_t peak = 0;
  for (int i = 0; i < 2000; ++i) {
    if (!live.empty() && random() % 2 == 0) {
      const size_t victim = random() % live.size();
      pool.Free(live[victim]);
      live.erase(live.begin() + static_cast<ptrdiff_t>(victim));
    } else {
      live.push_back(Floats(pool, kTransient, 1 + random() % 500,
                            static_cast<Category>(random() % kCategories)));
    }
    int64_t bytes = 0;
    for (const Buffer& buffer : live) bytes += (buffer.bytes() + 127) / 128 * 128;
    peak = std::max(peak, bytes);
    const Ledger& ledger = pool.ledger();
    ASSERT_EQ(ledger.live_bytes, bytes);
    ASSERT_EQ(std::accumulate(ledger.live.begin(), ledger.live.end(), int64_t{0}), bytes);
    ASSERT_EQ(ledger.peak_bytes, peak);
    ASSERT_EQ(std::accumulate(ledger.at_peak.begin(), ledger.at_peak.end(), int64_t{0}), peak);
  }
}

TEST(Ledger, KeepsEachCategorysOwnPeakApartFromTheTotals) {
  Ledger ledger;
  ledger.Add(Category::kParameters, 300);
  ledger.Add(Category::kParameters, -200);
  ledger.Add(Category::kGradients, 250);
  ledger.Add(Category::kGradients, -50);
  EXPECT_EQ(ledger.live, (PerCategory<int64_t>{100, 200, 0, 0, 0, 0, 0}));
  EXPECT_EQ(ledger.peak, (PerCategory<int64_t>{300, 250, 0, 0, 0, 0, 0}));
  EXPECT_EQ(ledger.at_peak, (PerCategory<int64_t>{100, 250, 0, 0, 0, 0, 0}));
  EXPECT_EQ(ledger.peak_bytes, 350);
}

// A sequence of calls that uses all regions; returns the addresses.
std::vector<uintptr_t> Walk(MemoryPool& pool) {
  std::mt19937 random(11);
  std::vector<uintptr_t> addresses;
  std::vector<Buffer> transient;
  std::array<std::vector<Buffer>, 2> stacks;
  const auto keep = [&](const Buffer& buffer) {
    addresses.push_back(reinterpret_cast<uintptr_t>(buffer.data));
    return buffer;
  };
  for (int i = 0; i < 500; ++i) {
    const auto elements = static_cast<int64_t>(1 + random() % 1000);
    const size_t s = random() % 2;
    switch (random() % 6) {
      case 0:
        keep(Floats(pool, kPersistent, elements));
        break;
      case 1:
        transient.push_back(keep(Floats(pool, kTransient, elements)));
        break;
      case 2:
        if (transient.empty()) break;
        pool.Free(transient[elements % transient.size()]);
        transient.erase(transient.begin() + static_cast<ptrdiff_t>(elements % transient.size()));
        break;
      case 3:
      case 4:
        stacks[s].push_back(keep(Floats(pool, s == 0 ? kCheckpoints : kActivations, elements)));
        break;
      default:
        if (stacks[s].empty()) break;
        pool.Free(stacks[s].back());
        stacks[s].pop_back();
    }
  }
  return addresses;
}

TEST(MemoryPool, CountingPredictsTheRealPoolToTheByte) {
  MemoryPool plan;
  const std::vector<uintptr_t> planned = Walk(plan);
  RealPool real(plan.high_water());
  const std::vector<uintptr_t> addresses = Walk(real.pool);
  EXPECT_EQ(real.pool.high_water(), plan.high_water());
  EXPECT_EQ(real.pool.ledger().at_peak, plan.ledger().at_peak);
  EXPECT_EQ(real.pool.ledger().peak, plan.ledger().peak);
  EXPECT_EQ(real.pool.ledger().live, plan.ledger().live);

  // The same offset in the same region: planned regions are 2^60 apart.
  ASSERT_EQ(addresses.size(), planned.size());
  RegionBytes begin{};
  for (size_t r = 1; r < kRegions; ++r) begin[r] = begin[r - 1] + plan.high_water()[r - 1];
  for (size_t i = 0; i < addresses.size(); ++i) {
    const size_t region = (planned[i] >> 60) - 1;
    const auto offset = static_cast<int64_t>(planned[i] & ((uintptr_t{1} << 60) - 1));
    ASSERT_EQ(addresses[i] - reinterpret_cast<uintptr_t>(real.memory.get()),
              static_cast<uintptr_t>(begin[region] + offset));
  }

  // One allocation unit less in any region is not enough.
  for (size_t r = 0; r < kRegions; ++r) {
    RegionBytes regions = plan.high_water();
    ASSERT_GT(regions[r], 0);
    regions[r] -= kAllocationAlignment;
    RealPool small(regions);
    EXPECT_FALSE(small.pool
                     .Allocate(static_cast<Region>(r), Category::kWorkspace, DType::kFloat32,
                               plan.high_water()[r] / 4, "high water")
                     .ok());
  }
}

TEST(MemoryPool, PoisonReadsAsNanInEveryFloatType) {
  RealPool real({0, 0, 0, 1024});
  const Buffer before = Floats(real.pool, kTransient, 1);
  std::memset(before.data, 0, 128);
  real.pool.PoisonFreshMemory();
  EXPECT_EQ(before.As<float>()[0], 0.0f);
  const Buffer floats = Floats(real.pool, kTransient, 33);
  EXPECT_EQ(real.pool.poisoned_bytes(), 256);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(floats.As<float>()[i]));
  const absl::StatusOr<Buffer> doubles =
      real.pool.Allocate(kTransient, Category::kWorkspace, DType::kFloat64, 1, "fp64");
  ASSERT_TRUE(doubles.ok());
  EXPECT_TRUE(std::isnan(doubles->As<double>()[0]));
  const absl::StatusOr<Buffer> halves =
      real.pool.Allocate(kTransient, Category::kWorkspace, DType::kBFloat16, 1, "bf16");
  ASSERT_TRUE(halves.ok());
  const uint32_t widened = uint32_t{halves->As<uint16_t>()[0]} << 16;
  float half = 0;
  std::memcpy(&half, &widened, sizeof(half));
  EXPECT_TRUE(std::isnan(half));
  EXPECT_EQ(real.pool.poisoned_bytes(), 512);
  // Memory that is used again is poisoned again.
  floats.As<float>()[0] = 1;
  real.pool.Free(floats);
  EXPECT_TRUE(std::isnan(Floats(real.pool, kTransient, 1).As<float>()[0]));
}

class Lives final : public Recorder {
 public:
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int rank, Region, Category category, std::string_view label,
                  const Buffer& buffer) override {
    seen += "+" + std::to_string(rank) + " " + std::string(Name(category)) + " " +
            std::string(label) + " " + std::to_string(buffer.elements) + "\n";
  }
  void OnFree(int rank, const Buffer& buffer) override {
    seen += "-" + std::to_string(rank) + " " + std::to_string(buffer.elements) + "\n";
  }
  std::string seen;
};

TEST(MemoryPool, TellsTheRecorderTheLifeOfEveryAllocation) {
  Lives lives;
  MemoryPool pool;
  pool.set_recorder(&lives, 3);
  const Buffer a = Floats(pool, kTransient, 5, Category::kGradients, "bucket 0");
  const Buffer b = Floats(pool, kActivations, 7, Category::kActivations, "qkv");
  pool.Free(a);
  pool.Free(b);
  EXPECT_EQ(lives.seen, "+3 gradients bucket 0 5\n+3 activations qkv 7\n-3 5\n-3 7\n");
}

}  // namespace
}  // namespace zerobox
