// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

#include "ops/philox.h"

namespace zerobox {
namespace {

TEST(Philox, GivesThePublishedVectors) {
  // The known answers for philox4x32, 10 rounds, of the authors' library Random123.
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CountersOfDifferentUsesDiffer) {
  std::set<PhiloxBlock> counters;
  int count = 0;
  for (const uint64_t number : {0, 1, 2}) {
    for (const RandomUse use : {RandomUse::kNormal, RandomUse::kUniform}) {
      for (const uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
        counters.insert(RandomCounter(use, number, position));
        ++count;
      }
    }
    for (const uint32_t layer : {0, 1, 65535}) {
      for (const uint32_t site : {0, 3}) {
        for (const uint64_t block : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << 44) - 1}) {
          counters.insert(DropoutCounter(number, layer, site, block));
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int>(counters.size()), count);
}

TEST(Philox, UniformNumbersFillTheUnitInterval) {
  constexpr int kCount = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = UniformAt(3, 4, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    squares += u * u;
  }
  // Four standard deviations: of u 1/sqrt(12), of u^2 sqrt(4/45).
  EXPECT_TRUE(std::abs(sum / kCount - 0.5) <= 4 * 0.2887 / std::sqrt(kCount));
  EXPECT_TRUE(std::abs(squares / kCount - 1.0 / 3) <= 4 * 0.2982 / std::sqrt(kCount));
  EXPECT_NE(UniformAt(3, 4, 0), UniformAt(3, 5, 0));
  EXPECT_NE(UniformAt(3, 4, 0), UniformAt(2, 4, 0));
}

TEST(Philox, NormalNumbersHaveTheMomentsOfTheNormalDistribution) {
  constexpr int kCount = 200000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0, previous = 0;
  for (int i = 0; i < kCount; ++i) {
    const double z = NormalAt(3, 4, i);
    ASSERT_TRUE(std::isfinite(z));
    m1 += z / kCount;
    m2 += z * z / kCount;
    m3 += z * z * z / kCount;
    m4 += z * z * z * z / kCount;
    neighbours += z * previous / kCount;
    previous = z;
  }
  // Four standard deviations of z, z^2, z^3, z^4: 1, sqrt 2, sqrt 15, sqrt 96.
  const double four = 4 / std::sqrt(kCount);
  EXPECT_TRUE(std::abs(m1) <= four);
  EXPECT_TRUE(std::abs(m2 - 1) <= 1.4143 * four);
  EXPECT_TRUE(std::abs(m3) <= 3.873 * four);
  EXPECT_TRUE(std::abs(m4 - 3) <= 9.798 * four);
  EXPECT_TRUE(std::abs(neighbours) <= four);
  EXPECT_EQ(NormalPairAt(3, 4, 10)[0], NormalAt(3, 4, 20));
  EXPECT_EQ(NormalPairAt(3, 4, 10)[1], NormalAt(3, 4, 21));
}

TEST(Philox, NoUniformNumberHasAnInfiniteLogarithm) {
  EXPECT_EQ(ToUniformAboveZero(0, 0), 0x1p-53);
  EXPECT_EQ(ToUniformAboveZero(0xffffffff, 0xffffffff), 1.0);
  EXPECT_EQ(ToUniform(0xffffffff, 0xffffffff), 1 - 0x1p-53);
}

TEST(Philox, DropoutThresholdAndScale) {
  EXPECT_EQ(DropoutThreshold(0.0f), 0u);
  EXPECT_EQ(DropoutThreshold(0.5f), 0x80000000u);
  EXPECT_EQ(DropoutThreshold(0.25f), 0x40000000u);
  EXPECT_EQ(DropoutThreshold(0.99999999f), 0xffffffffu);  // rounds to 1
  EXPECT_EQ(DropoutScale(0.5f), 2.0f);
  EXPECT_EQ(DropoutScale(0.0f), 1.0f);
}

}  // namespace
}  // namespace zerobox
