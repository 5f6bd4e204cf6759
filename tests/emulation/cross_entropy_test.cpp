// SPDX-License-Identifier: Apache-2.0
//
// ops/cuda/cross_entropy.cu against the reference in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using reference::Tokens;

struct Case {
  int64_t rows, vocabulary, shift;
};
// Two logits; odd vocabularies, whose rows begin anywhere; more than one pack a thread; unaligned;
// the last and the first size for blocks of 128 and of 1024 threads.
constexpr Case kCases[] = {{1, 2, 0},  {7, 101, 0},   {3, 256, 0}, {2, 9001, 0}, {9, 33, 0},
                           {2, 64, 3}, {2, 16403, 1}, {3, 1, 0},   {2, 1016, 7}, {2, 1017, 1}};

class CrossEntropyKernels : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(CrossEntropyKernels);

template <typename T>
void TestCase(const Case& c) {
  SCOPED_TRACE(c.vocabulary);
  const int64_t n = c.rows * c.vocabulary;
  auto values = Values<T>::Random(n, 1, 4);
  values[0] = FromFloat<T>(200);
  Tokens targets = RandomTokens(c.rows, c.vocabulary);
  if (c.rows > 2) targets[1] = targets[c.rows - 1] = -1;
  const DeviceArray<int32_t> device_targets(targets);
  DeviceArray<T> logits(values, c.shift);
  DeviceArray<float> losses(c.rows);
  ASSERT_EQ(cuda::CrossEntropyForward(nullptr, losses.data(), static_cast<const T*>(logits.data()),
                                      device_targets.data(), c.rows, c.vocabulary),
            cudaSuccess);
  ExpectClose(losses, reference::CrossEntropy(values.Doubles(), targets), 1e-6, "losses");
  for (int64_t row = 0; row < c.rows; ++row) EXPECT_TRUE(targets[row] >= 0 || losses[row] == 0);
  ASSERT_EQ(cuda::CrossEntropyBackward(nullptr, logits.data(), device_targets.data(), c.rows,
                                       c.vocabulary, 0.125f),
            cudaSuccess);
  ExpectClose(logits, reference::CrossEntropyGradient(values.Doubles(), targets, 0.125),
              std::is_same_v<T, float> ? 2e-6 : 0x1p-8 + 1e-5, "dlogits");
}

TEST_P(CrossEntropyKernels, EqualTheReference) {
  for (const Case& c : kCases) {
    TestCase<float>(c);
    TestCase<BFloat16>(c);
  }
}

TEST_P(CrossEntropyKernels, LogitsOfMinusInfinityHaveNoProbability) {
  constexpr int kVocabulary = 20000;
  Floats values(reference::Array(kVocabulary, -INFINITY));
  values[3] = values[15000] = 7;
  const DeviceArray<int32_t> target(Tokens{3});
  DeviceArray<float> logits(values), losses(1);
  ASSERT_EQ(
      cuda::CrossEntropyForward(nullptr, losses.data(), static_cast<const float*>(logits.data()),
                                target.data(), 1, kVocabulary),
      cudaSuccess);
  EXPECT_TRUE(std::abs(losses[0] - std::log(2)) <= 1e-6) << losses[0];
  ASSERT_EQ(cuda::CrossEntropyBackward(nullptr, logits.data(), target.data(), 1, kVocabulary, 2),
            cudaSuccess);
  reference::Array expected(kVocabulary, 0);
  expected[3] = -1;
  expected[15000] = 1;
  ExpectClose(logits, expected, 1e-6, "dlogits");
}

// Wherever it is, so that the step is skipped.
TEST_P(CrossEntropyKernels, NanReachesTheLoss) {
  for (const int i : {0, 5, 36}) {
    Floats values = Floats::Random(37, 1);
    values[i] = std::numeric_limits<float>::quiet_NaN();
    const DeviceArray<int32_t> target(Tokens{2});
    DeviceArray<float> logits(values), losses(1);
    ASSERT_EQ(
        cuda::CrossEntropyForward(nullptr, losses.data(), static_cast<const float*>(logits.data()),
                                  target.data(), 1, 37),
        cudaSuccess);
    EXPECT_TRUE(std::isnan(losses[0])) << i;
    ASSERT_EQ(cuda::CrossEntropyBackward(nullptr, logits.data(), target.data(), 1, 37, 1),
              cudaSuccess);
    EXPECT_TRUE(std::isnan(logits[11])) << i;
  }
}

TEST(CrossEntropyLaunchers, LaunchNothingForNoRows) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::CrossEntropyForward(nullptr, none, nothing, nullptr, 0, 9), cudaSuccess);
  EXPECT_EQ(cuda::CrossEntropyBackward(nullptr, none, nullptr, 0, 9, 1), cudaSuccess);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
