// SPDX-License-Identifier: Apache-2.0
//
// The attention kernels of ops/cuda against the reference in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "ops/cuda/cuda.h"
#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using reference::Array;

struct Case {
  SequenceShape shape;
  int64_t heads;
  float p = 0;
  int64_t shift = 0;
  double scale = 1;  // of qkv
};

// The distance over all elements, relative to the length of the expected: bf16 rounds P and dS too.
template <typename T>
void ExpectNear(const DeviceArray<T>& actual, const Array& expected, double tolerance,
                const char* what) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size()));
  double difference = 0, length = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double error = ToFloat(actual[i]) - expected[i];
    difference += error * error;
    length += expected[i] * expected[i];
  }
  EXPECT_TRUE(std::sqrt(difference) <= tolerance * std::sqrt(length) + 1e-12)
      << what << ": " << std::sqrt(difference / length);
}

template <typename T>
struct Results {
  Values<T> out, dqkv;
  Floats logsumexp;
};

// Both passes, and their results against the reference's.
template <typename T>
Results<T> TestCase(const Case& c) {
  SCOPED_TRACE(std::to_string(c.shape.positions) + " positions, " +
               std::to_string(c.shape.channels / c.heads) + " channels, p " + std::to_string(c.p) +
               ", shift " + std::to_string(c.shift));
  constexpr bool kFp32 = std::is_same_v<T, float>;
  const int64_t n = c.shape.elements(), positions = c.shape.positions;
  const auto qkv_values = Values<T>::Random(3 * n, 1, c.scale);
  const auto dout_values = Values<T>::Random(n, 2);
  const TestDropout dropout(c.p, c.shape.batch, DropoutSite::kAttention,
                            c.heads * positions * positions);
  const DeviceArray<int64_t> samples(dropout.samples);
  const cuda::DropoutMask mask = {
      .p = c.p, .seed = 42, .samples = samples.data(), .site = DropoutSite::kAttention, .layer = 3};
  const DeviceArray<T> qkv(qkv_values, c.shift), dout(dout_values, c.shift);
  DeviceArray<T> out(n, c.shift), dqkv(3 * n, c.shift);
  DeviceArray<float> logsumexp(c.shape.rows() * c.heads);
  DeviceArray<float> workspace(cuda::AttentionBackwardWorkspace(c.shape, c.heads));
  EXPECT_EQ(cuda::AttentionForward(nullptr, out.data(), logsumexp.data(), qkv.data(), c.shape,
                                   c.heads, mask),
            cudaSuccess);
  const auto expected =
      reference::Attention(qkv_values.Doubles(), c.shape, c.heads, dropout.factors);
  ExpectNear(out, expected.out, kFp32 ? 1e-6 : 4e-3, "out");
  ExpectClose(logsumexp, expected.logsumexp, 5e-6, "logsumexp");
  EXPECT_EQ(cuda::AttentionBackward(nullptr, dqkv.data(), dout.data(), qkv.data(),
                                    static_cast<const T*>(out.data()),
                                    static_cast<const float*>(logsumexp.data()), c.shape, c.heads,
                                    mask, workspace.data()),
            cudaSuccess);
  // Large scores make P almost one-hot, and dP - D cancels.
  ExpectNear(dqkv,
             reference::AttentionGradient(dout_values.Doubles(), qkv_values.Doubles(), c.shape,
                                          c.heads, dropout.factors),
             (kFp32 ? 2e-6 : 6e-3) * (c.scale > 1 ? 2.5 : 1), "dqkv");
  return {OnHost(out), OnHost(dqkv), OnHost(logsumexp)};
}

template <typename T>
void TestOrders(const Case& c) {
  simt::options().order = simt::Order::kForward;
  const Results<T> first = TestCase<T>(c);
  for (const simt::Order order : {simt::Order::kReverse, simt::Order::kRandom}) {
    simt::options().order = order;
    const Results<T> other = TestCase<T>(c);
    EXPECT_TRUE(other.out.HasTheBitsOf(first.out));
    EXPECT_TRUE(other.dqkv.HasTheBitsOf(first.dqkv));
    EXPECT_TRUE(other.logsumexp.HasTheBitsOf(first.logsumexp));
  }
  simt::options() = {};
}

// One position; less than a tile; all tiles of all kernels ending in the middle; each size of head,
// some between them, and odd ones; arrays that are not aligned; large scores.
constexpr Case kCases[] = {
    {{1, 1, 32}, 1},   {{2, 33, 64}, 2},  {{1, 77, 64}, 1},       {{1, 197, 64}, 1},
    {{1, 133, 48}, 2}, {{1, 70, 128}, 1}, {{1, 37, 80}, 1},       {{2, 45, 40}, 1},
    {{1, 41, 33}, 3},  {{1, 130, 20}, 1}, {{1, 35, 64}, 2, 0, 1}, {{1, 72, 64}, 1, 0, 0, 6},
};
constexpr Case kDropoutCases[] = {{{2, 33, 32}, 1, 0.3f},
                                  {{1, 77, 64}, 1, 0.1f},
                                  {{1, 68, 128}, 1, 0.5f},
                                  {{1, 35, 34}, 2, 0.2f, 1}};

class Attention : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(Attention);

TEST_P(Attention, Fp32EqualsTheReference) {
  for (const Case& c : kCases) TestCase<float>(c);
}

TEST_P(Attention, Fp32DropsAsTheReference) {
  for (const Case& c : kDropoutCases) TestCase<float>(c);
}

TEST_P(Attention, Bf16EqualsTheReference) {
  for (const Case& c : kCases) TestCase<BFloat16>(c);
}

TEST_P(Attention, Bf16DropsAsTheReference) {
  for (const Case& c : kDropoutCases) TestCase<BFloat16>(c);
}

TEST(AttentionLaunchers, DoNotDependOnTheOrderOfThreads) {
  for (const Case& c : {Case{{1, 150, 64}, 2}, Case{{2, 70, 32}, 1, 0.2f}}) {
    TestOrders<float>(c);
    TestOrders<BFloat16>(c);
  }
  EXPECT_TRUE(simt::TakeReports().empty());
}

TEST(AttentionLaunchers, LaunchNothingForNoSequencesAndRefuseLargeHeads) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::AttentionForward(nullptr, none, none, nothing, {0, 4, 32}, 1, {}), cudaSuccess);
  EXPECT_EQ(
      cuda::AttentionForward(nullptr, none, none, nothing, {1, 4, kMostGpuHeadChannels + 1}, 1, {}),
      cudaErrorInvalidValue);
  EXPECT_EQ(cuda::AttentionBackward(nullptr, none, nothing, nothing, nothing, nothing, {0, 4, 32},
                                    1, {}, none),
            cudaSuccess);
  EXPECT_EQ(cuda::AttentionBackwardWorkspace({2, 5, 32}, 4), 40);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
