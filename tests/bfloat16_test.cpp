// SPDX-License-Identifier: Apache-2.0
//
// bf16, one number at a time and in vectors: every upper half of an fp32 with the lower halves that
// decide about rounding, for every SIMD target of this CPU.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bfloat16_test.cpp"
#include "ops/bfloat16.h"

#include <cstddef>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

void Store(const float* from, BFloat16* to, size_t n) {
  const hn::ScalableTag<float> d;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, memory.Load(d, from + i), to + i);
  });
}

void Load(const BFloat16* from, float* to, size_t n) {
  const hn::ScalableTag<float> d;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, memory.Load(d, from + i), to + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/reference_arrays.h"

namespace zerobox::host {

HWY_EXPORT(Store);
HWY_EXPORT(Load);

namespace {

constexpr uint32_t kLowerHalves[] = {0, 1, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};

std::vector<float> DecidingNumbers() {
  std::vector<float> numbers;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : kLowerHalves) {
      numbers.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return numbers;
}

TEST(BFloat16, IsTheNearestToEveryNumberAndTheEvenOfTwo) {
  for (const float x : DecidingNumbers()) {
    const BFloat16 rounded = ToBFloat16(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(ToFloat(rounded)));
      ASSERT_EQ(std::signbit(ToFloat(rounded)), std::signbit(x));
      continue;
    }
    if (std::isinf(x)) {
      ASSERT_EQ(ToFloat(rounded), x);
      continue;
    }
    // The neighbours toward zero and away from it; behind the largest, 2^128 stands for infinity.
    const auto bits = std::bit_cast<uint32_t>(x);
    const BFloat16 inner{static_cast<uint16_t>(bits >> 16)};
    const BFloat16 outer{static_cast<uint16_t>((bits >> 16) + 1)};
    const double beyond = std::isinf(ToFloat(outer)) ? std::copysign(0x1p128, x) : ToFloat(outer);
    const double to_inner = std::abs(double{x} - ToFloat(inner));
    const double to_outer = std::abs(double{x} - beyond);
    const bool out = to_outer < to_inner || (to_outer == to_inner && inner.bits % 2 == 1);
    ASSERT_EQ(rounded.bits, out ? outer.bits : inner.bits) << x;
  }
}

TEST(BFloat16, KnowsTheseNumbers) {
  EXPECT_EQ(ToBFloat16(1).bits, 0x3F80);
  EXPECT_EQ(ToBFloat16(-2).bits, 0xC000);
  EXPECT_EQ(ToBFloat16(1.00390625f).bits, 0x3F80);   // 1 + 2^-8: half way, to the even below
  EXPECT_EQ(ToBFloat16(1.01171875f).bits, 0x3F82);   // 1 + 3 2^-8: half way, to the even above
  EXPECT_EQ(ToBFloat16(1.003906369f).bits, 0x3F81);  // the next after 1 + 2^-8
  EXPECT_EQ(ToBFloat16(3.3895314e38f).bits, 0x7F7F);
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(ToBFloat16(1e-40f).bits, 0x0001);  // denormal: 2^-133 is the smallest
  EXPECT_EQ(ToFloat(BFloat16{0x0001}), 0x1p-133f);
  EXPECT_EQ(ToFloat(BFloat16{0xC2F7}), -123.5f);
}

class BFloat16Test : public SimdTargetTest {};
ZEROBOX_FOR_EACH_SIMD_TARGET(BFloat16Test);

TEST_P(BFloat16Test, VectorsRoundAsOneNumberDoes) {
  const std::vector<float> numbers = DecidingNumbers();
  std::vector<BFloat16> rounded(numbers.size());
  HWY_DYNAMIC_DISPATCH(Store)(numbers.data(), rounded.data(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, ToBFloat16(numbers[i]).bits) << numbers[i];
  }
}

TEST_P(BFloat16Test, VectorsWidenAsOneNumberDoes) {
  std::vector<BFloat16> numbers;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    numbers.push_back({static_cast<uint16_t>(bits)});
  }
  std::vector<float> widened(numbers.size());
  HWY_DYNAMIC_DISPATCH(Load)(numbers.data(), widened.data(), numbers.size());
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    ASSERT_EQ(std::bit_cast<uint32_t>(widened[bits]), bits << 16);
  }
}

TEST_P(BFloat16Test, PartsOfVectorsTouchNothingBesideThem) {
  const Floats from = Floats::Random(64, 1);
  for (int64_t n = 0; n <= 40; ++n) {
    for (const int64_t shift : {0, 1, 5}) {
      Values<BFloat16> rounded(n, shift);
      Floats widened(n, shift);
      HWY_DYNAMIC_DISPATCH(Store)(from.data(), rounded.data(), static_cast<size_t>(n));
      HWY_DYNAMIC_DISPATCH(Load)(rounded.data(), widened.data(), static_cast<size_t>(n));
      EXPECT_TRUE(rounded.GuardsAreIntact() && widened.GuardsAreIntact()) << n;
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(rounded[i].bits, ToBFloat16(from[i]).bits);
        EXPECT_EQ(widened[i], ToFloat(rounded[i]));
      }
    }
  }
}

}  // namespace
}  // namespace zerobox::host
#endif  // HWY_ONCE
