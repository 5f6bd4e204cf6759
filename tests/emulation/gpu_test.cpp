// SPDX-License-Identifier: Apache-2.0
//
// The primitives of ops/cuda/gpu.cuh, one small kernel each.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/bfloat16.h"
#include "tests/emulation/gpu_kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using gpu_kernels::Fragments;

class Gpu : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(Gpu);

TEST_P(Gpu, ReducesOverABlock) {
  constexpr int kRows = 5, kColumns = 331;
  const auto x = Floats::Random(kRows * kColumns, 1);
  const DeviceArray<float> in(x);
  DeviceArray<float> sums(kRows), maxima(kRows);
  ASSERT_EQ(gpu_kernels::ReduceRows(sums.data(), maxima.data(), in.data(), kRows, kColumns),
            cudaSuccess);
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    float most = -INFINITY;
    for (int i = 0; i < kColumns; ++i) {
      sum += x[row * kColumns + i];
      most = std::max(most, x[row * kColumns + i]);
    }
    EXPECT_TRUE(std::abs(sums[row] - sum) <= 1e-4) << sums[row] << " is not " << sum;
    EXPECT_EQ(maxima[row], most);
  }
}

TEST_P(Gpu, ShufflesBetweenLanes) {
  DeviceArray<int> out(std::vector<int>(32 * 32, -1));
  ASSERT_EQ(gpu_kernels::Shuffles(out.data()), cudaSuccess);
  for (int lane = 0; lane < 32; ++lane) {
    const int first = lane / 4 * 4;
    EXPECT_EQ(out[32 * lane], 4 * first + 0 + 1 + 2 + 3);
    EXPECT_EQ(out[32 * lane + 1], lane ^ 5);
    EXPECT_EQ(out[32 * lane + 2], 7);
    EXPECT_EQ(static_cast<uint32_t>(out[32 * lane + 3]), 0xaaaaaaaau);
    EXPECT_EQ(out[32 * lane + 4], 1);
    EXPECT_EQ(out[32 * lane + 5], 0);
  }
}

TEST_P(Gpu, CopiesAsynchronouslyAndFillsUpWithZeros) {
  for (const auto& [n, valid] :
       {std::pair(256, 256), std::pair(1000, 1000), std::pair(1000, 520)}) {
    const auto x = Values<BFloat16>::Random(n, 2);
    const DeviceArray<BFloat16> from(x);
    DeviceArray<BFloat16> to(n);
    ASSERT_EQ(gpu_kernels::CopyAsync(to.data(), from.data(), n, valid), cudaSuccess);
    for (int i = 0; i < n; ++i) ASSERT_EQ(to[i].bits, i < valid ? x[i].bits : 0) << i;
  }
}

// The same product from fragments that are put together by hand, and from each way to load them.
TEST_P(Gpu, MultipliesOnTensorCores) {
  const auto a = Values<BFloat16>::Random(16 * 16, 3);
  const auto b = Values<BFloat16>::Random(16 * 8, 4);
  const auto c = Floats::Random(16 * 8, 5);
  Values<BFloat16> b_by_n(8 * 16);
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 8; ++n) b_by_n[n * 16 + k] = b[k * 8 + n];
  }
  const reference::Array expected =
      reference::Product(a.Doubles(), false, b.Doubles(), false, 16, 8, 16) + c.Doubles();
  const DeviceArray<BFloat16> device_a(a), by_k(b), by_n(b_by_n);
  const DeviceArray<float> device_c(c);
  for (const Fragments how : {Fragments::kByHand, Fragments::kLdMatrix, Fragments::kLdMatrixBy4,
                              Fragments::kTransposed, Fragments::kTransposedBy4}) {
    const bool transposed = how == Fragments::kTransposed || how == Fragments::kTransposedBy4;
    DeviceArray<float> d(16 * 8);
    ASSERT_EQ(gpu_kernels::MatrixProduct(d.data(), device_a.data(),
                                         (transposed ? by_k : by_n).data(), device_c.data(), how),
              cudaSuccess);
    ExpectClose(d, expected, 1e-6, "d");
  }
}

TEST_P(Gpu, RoundsToTheNearestEven) {
  const float largest = ToFloat(BFloat16{0x7f7f});
  // 1, a tie down to even, a tie up to even, just above a tie, and what overflows.
  std::vector<float> x = {1,     1 + 0x1p-8f, 1 + 0x3p-8f,     1 + 0x1.0002p-8f,
                          -0.0f, largest,     largest * 1.01f, 0x1p-130f};
  const std::vector<float> expected = {1,     1,       1 + 0x1p-6f, 1 + 0x1p-7f,
                                       -0.0f, largest, INFINITY,    0x1p-130f};
  const DeviceArray<float> in(x);
  DeviceArray<BFloat16> rounded(8);
  DeviceArray<float> same(8);
  ASSERT_EQ(gpu_kernels::RoundTrip(rounded.data(), in.data(), 8), cudaSuccess);
  ASSERT_EQ(gpu_kernels::RoundTrip(same.data(), in.data(), 8), cudaSuccess);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(rounded[i].bits, ToBFloat16(expected[i]).bits) << i;
    EXPECT_EQ(ToFloat(rounded[i]), expected[i]) << i;
    EXPECT_EQ(same[i], x[i]) << i;
  }
}

TEST_P(Gpu, ApproximatesPowersAndReciprocals) {
  const std::vector<float> x = {0, 1, -3.5f, 20, -120, -INFINITY, INFINITY, 0.1f};
  const DeviceArray<float> in(x);
  DeviceArray<float> powers(8), reciprocals(8);
  ASSERT_EQ(gpu_kernels::Approximate(powers.data(), reciprocals.data(), in.data(), 8), cudaSuccess);
  for (int i = 0; i < 8; ++i) {
    const double power = std::exp2(static_cast<double>(x[i])), reciprocal = 1.0 / x[i];
    EXPECT_TRUE(powers[i] == power || std::abs(powers[i] - power) <= 0x1p-22 * power) << i;
    EXPECT_TRUE(reciprocals[i] == reciprocal ||
                std::abs(reciprocals[i] - reciprocal) <= 0x1p-22 * std::abs(reciprocal))
        << i;
  }
}

}  // namespace
}  // namespace zerobox
