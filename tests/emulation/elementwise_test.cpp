// SPDX-License-Identifier: Apache-2.0
//
// The element-wise kernels and column sums of ops/cuda against references in double precision, and
// bit by bit against the host where the arithmetic is the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/cuda/kernels.h"
#include "ops/host/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using reference::Array;

// fp32: a few roundings. bf16: half a unit in the last of 8 bits. Of the largest element.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-6 : 0x1p-8 + 1e-5;

// Calls test<T>() for both types.
template <typename Test>
void ForEachType(const Test& test) {
  test.template operator()<float>();
  test.template operator()<BFloat16>();
}
// Calls test<T, G>() for the types of activations and gradients that there are.
template <typename Test>
void ForEachGradient(const Test& test) {
  test.template operator()<float, float>();
  test.template operator()<BFloat16, BFloat16>();
  test.template operator()<BFloat16, float>();
}

// One element; less than a pack; exactly one, and one more; a block and a bit; and how far all
// arrays are from an aligned address, in elements.
struct Size {
  int64_t n, shift;
};
constexpr Size kSizes[] = {{1, 0},    {7, 0},    {8, 0},    {9, 0},
                           {2048, 0}, {2053, 0}, {2061, 1}, {16, 3}};

class Elementwise : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(Elementwise);

TEST_P(Elementwise, GeluEqualsTheReference) {
  ForEachType([]<typename T>() {
    for (const auto& [n, shift] : kSizes) {
      const auto x_values = Values<T>::Random(n, 1, 3), dout_values = Values<T>::Random(n, 2);
      const DeviceArray<T> x(x_values, shift), dout(dout_values, shift);
      DeviceArray<T> out(n, shift), dx(n, shift), in_place(dout_values, shift);
      ASSERT_EQ(cuda::GeluForward(nullptr, out.data(), x.data(), n), cudaSuccess);
      ExpectClose(out, reference::Gelu(x_values.Doubles()), kTolerance<T>, "out");
      ASSERT_EQ(cuda::GeluBackward(nullptr, dx.data(), x.data(), dout.data(), n), cudaSuccess);
      ExpectClose(dx, reference::GeluGradient(x_values.Doubles(), dout_values.Doubles()),
                  kTolerance<T>, "dx");
      ASSERT_EQ(cuda::GeluBackward(nullptr, in_place.data(), x.data(), in_place.data(), n),
                cudaSuccess);
      EXPECT_TRUE(OnHost(in_place).HasTheBitsOf(OnHost(dx)));
    }
  });
}

TEST_P(Elementwise, GeluIsAccurateInItsTailsAndKeepsNan) {
  const std::vector<float> x = {-5, -8, -100, -1e30f, 12, 100, 1e30f, NAN};
  const DeviceArray<float> in(x), ones(std::vector<float>(8, 1.0f));
  DeviceArray<float> out(8), dx(8);
  ASSERT_EQ(cuda::GeluForward(nullptr, out.data(), in.data(), 8), cudaSuccess);
  ASSERT_EQ(cuda::GeluBackward(nullptr, dx.data(), in.data(), ones.data(), 8), cudaSuccess);
  const double exact = reference::Gelu({-5})[0];
  EXPECT_TRUE(std::abs(out[0] - exact) <= 1e-4 * std::abs(exact)) << out[0];
  for (const int i : {1, 2}) EXPECT_TRUE(std::abs(out[i]) <= 1e-12 && std::abs(dx[i]) <= 1e-12);
  EXPECT_TRUE(std::abs(out[3]) <= 1e-4);
  for (const int i : {4, 5, 6}) EXPECT_TRUE(out[i] == x[i] && dx[i] == 1) << i;
  EXPECT_TRUE(std::isnan(out[7]) && std::isnan(dx[7]));
}

struct Matrix {
  int64_t rows, columns, shift;
};
constexpr Matrix kMatrices[] = {{1, 8, 0},  {3, 1, 0},   {9, 264, 0}, {17, 37, 0},
                                {5, 64, 1}, {70, 24, 0}, {2, 512, 4}};

TEST_P(Elementwise, BiasIsAddedAndGeluTakesWhatIsStored) {
  ForEachType([]<typename T>() {
    for (const auto& [rows, columns, shift] : kMatrices) {
      const auto y_values = Values<T>::Random(rows * columns, 1);
      const auto bias_values = Values<T>::Random(columns, 2);
      Array sums = y_values.Doubles();
      for (int64_t i = 0; i < rows * columns; ++i) sums[i] += ToFloat(bias_values[i % columns]);
      const DeviceArray<T> bias(bias_values, shift);
      DeviceArray<T> y(y_values, shift), fused(y_values, shift), out(rows * columns, shift);
      ASSERT_EQ(cuda::AddBias(nullptr, y.data(), bias.data(), rows, columns), cudaSuccess);
      ExpectClose(y, sums, kTolerance<T>, "y");
      ASSERT_EQ(cuda::AddBiasGelu(nullptr, out.data(), fused.data(), bias.data(), rows, columns),
                cudaSuccess);
      EXPECT_TRUE(OnHost(fused).HasTheBitsOf(OnHost(y)));
      DeviceArray<T> separate(rows * columns, shift);
      ASSERT_EQ(cuda::GeluForward(nullptr, separate.data(), y.data(), rows * columns), cudaSuccess);
      EXPECT_TRUE(OnHost(out).HasTheBitsOf(OnHost(separate)));
    }
  });
}

// Samples whose size is a multiple of a pack, of 4 alone, odd, or more than a block; and arrays
// that are not aligned.
struct Samples {
  SequenceShape shape;
  int64_t shift;
};
constexpr Samples kSamples[] = {{{1, 7, 33}, 0},  {{3, 5, 16}, 0}, {{2, 3, 12}, 0},
                                {{2, 9, 296}, 0}, {{3, 5, 16}, 2}, {{2, 1, 1}, 0}};

TEST_P(Elementwise, ResidualAndDropoutHaveTheBitsOfTheHost) {
  TestThreads threads(1);
  ForEachType([&]<typename T>() {
    for (const auto& [shape, shift] : kSamples) {
      const int64_t n = shape.elements();
      auto x_values = Values<T>::Random(n, 1), branch_values = Values<T>::Random(n, 2);
      for (const float p : {0.0f, 0.1f, 0.5f}) {
        TestDropout host_dropout(p, shape.batch, DropoutSite::kMlpOutput,
                                 shape.positions * shape.channels);
        host_dropout.samples.back() = (int64_t{1} << 45) + 9;  // more than 32 bits
        const DeviceArray<int64_t> samples(host_dropout.samples);
        const cuda::DropoutMask dropout = {.p = p,
                                           .seed = 42,
                                           .samples = samples.data(),
                                           .site = DropoutSite::kMlpOutput,
                                           .layer = 3};
        const DeviceArray<T> x(x_values, shift), branch(branch_values, shift);
        DeviceArray<T> out(n, shift), over_x(x_values, shift), dbranch(n, shift),
            in_place(branch_values, shift);
        Values<T> expected(n), expected_gradient(n);
        ASSERT_EQ(
            cuda::ResidualForward(nullptr, out.data(), x.data(), branch.data(), shape, dropout),
            cudaSuccess);
        host::ResidualForward(threads, expected.data(), x_values.data(), branch_values.data(),
                              shape, host_dropout.mask);
        EXPECT_TRUE(OnHost(out).HasTheBitsOf(expected)) << n << " " << p;
        ASSERT_EQ(cuda::ResidualForward(nullptr, over_x.data(), over_x.data(), branch.data(), shape,
                                        dropout),
                  cudaSuccess);
        EXPECT_TRUE(OnHost(over_x).HasTheBitsOf(expected));
        ASSERT_EQ(cuda::DropoutBackward(nullptr, dbranch.data(), branch.data(), shape, dropout),
                  cudaSuccess);
        host::DropoutBackward(threads, expected_gradient.data(), branch_values.data(), shape,
                              host_dropout.mask);
        EXPECT_TRUE(OnHost(dbranch).HasTheBitsOf(expected_gradient)) << n << " " << p;
        ASSERT_EQ(cuda::DropoutBackward(nullptr, in_place.data(), in_place.data(), shape, dropout),
                  cudaSuccess);
        EXPECT_TRUE(OnHost(in_place).HasTheBitsOf(expected_gradient));
      }
    }
  });
}

TEST_P(Elementwise, DropoutEqualsTheReference) {
  ForEachType([]<typename T>() {
    const SequenceShape shape = {2, 3, 40};
    const auto dout_values = Values<T>::Random(shape.elements(), 1);
    const TestDropout host_dropout(0.3f, 2, DropoutSite::kMlpOutput, 120);
    const DeviceArray<int64_t> samples(host_dropout.samples);
    const DeviceArray<T> dout(dout_values);
    DeviceArray<T> dbranch(shape.elements());
    ASSERT_EQ(cuda::DropoutBackward(nullptr, dbranch.data(), dout.data(), shape,
                                    {.p = 0.3f,
                                     .seed = 42,
                                     .samples = samples.data(),
                                     .site = DropoutSite::kMlpOutput,
                                     .layer = 3}),
              cudaSuccess);
    Array expected = dout_values.Doubles();
    for (size_t i = 0; i < expected.size(); ++i) expected[i] *= host_dropout.factors[i];
    ExpectClose(dbranch, expected, kTolerance<T>, "dbranch");
  });
}

TEST_P(Elementwise, AddsAndConverts) {
  for (const auto& [n, shift] : kSizes) {
    const auto a = Floats::Random(n, 1), b = Floats::Random(n, 2);
    const auto a16 = a.As<BFloat16>(), b16 = b.As<BFloat16>();
    Floats sum(n), wide_sum(n);
    Values<BFloat16> sum16(n);
    for (int64_t i = 0; i < n; ++i) {
      sum[i] = a[i] + b[i];
      wide_sum[i] = a[i] + ToFloat(b16[i]);
      sum16[i] = ToBFloat16(ToFloat(a16[i]) + ToFloat(b16[i]));
    }
    const DeviceArray<float> from(b, shift);
    const DeviceArray<BFloat16> from16(b16, shift);
    DeviceArray<float> to(a, shift), wide(a, shift), widened(n, shift);
    DeviceArray<BFloat16> to16(a16, shift), rounded(n, shift);
    ASSERT_EQ(cuda::Add(nullptr, to.data(), from.data(), n), cudaSuccess);
    ASSERT_EQ(cuda::Add(nullptr, wide.data(), from16.data(), n), cudaSuccess);
    ASSERT_EQ(cuda::Add(nullptr, to16.data(), from16.data(), n), cudaSuccess);
    ASSERT_EQ(cuda::Convert(nullptr, widened.data(), from16.data(), n), cudaSuccess);
    ASSERT_EQ(cuda::Convert(nullptr, rounded.data(), from.data(), n), cudaSuccess);
    EXPECT_TRUE(OnHost(to).HasTheBitsOf(sum) && OnHost(wide).HasTheBitsOf(wide_sum));
    EXPECT_TRUE(OnHost(to16).HasTheBitsOf(sum16) && OnHost(rounded).HasTheBitsOf(b16));
    EXPECT_TRUE(OnHost(widened).HasTheBitsOf(b16.As<float>()));
  }
}

TEST_P(Elementwise, Fills) {
  for (const auto& [n, shift] : kSizes) {
    DeviceArray<float> f(n, shift);
    DeviceArray<BFloat16> h(n, shift);
    DeviceArray<double> d(n);
    ASSERT_EQ(cuda::Fill(nullptr, f.data(), n, 0.3f), cudaSuccess);
    ASSERT_EQ(cuda::Fill(nullptr, h.data(), n, 0.3f), cudaSuccess);
    ASSERT_EQ(cuda::Fill(nullptr, d.data(), n, 0.0f), cudaSuccess);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(f[i] == 0.3f && h[i].bits == 0x3E9A && d[i] == 0) << i;
    }
  }
}

TEST_P(Elementwise, FillsWithTheNormalNumbersOfTheHost) {
  for (const int64_t first : {int64_t{0}, int64_t{17}, (int64_t{1} << 34) + 1}) {
    for (const int64_t n : {1, 2, 5, 600}) {
      const uint64_t stream = (uint64_t{7} << 33) + 4;
      DeviceArray<float> f(n, 1);
      DeviceArray<BFloat16> h(n);
      ASSERT_EQ(cuda::FillNormal(nullptr, f.data(), n, 9, stream, first, 0.02f), cudaSuccess);
      ASSERT_EQ(cuda::FillNormal(nullptr, h.data(), n, 9, stream, first, 0.02f), cudaSuccess);
      Array expected(n);
      for (int64_t i = 0; i < n; ++i) {
        expected[i] = 0.02f * NormalAt(9, stream, static_cast<uint64_t>(first + i));
      }
      ExpectClose(f, expected, 1e-7, "fp32");
      EXPECT_TRUE(OnHost(h).HasTheBitsOf(OnHost(f).template As<BFloat16>()));
    }
  }
}

TEST_P(Elementwise, ColumnSumsEqualTheReference) {
  ForEachGradient([]<typename T, typename G>() {
    for (const auto& [rows, columns, shift] : kMatrices) {
      for (const int multiprocessors : {1, 3, 132}) {
        const auto x_values = Values<T>::Random(rows * columns, 1);
        const auto before = Values<G>::Random(columns, 2);
        const DeviceArray<T> x(x_values, shift);
        DeviceArray<G> sums(before, shift);
        DeviceArray<float> workspace(cuda::AddColumnSumsWorkspace(rows, columns, multiprocessors));
        ASSERT_EQ(cuda::AddColumnSums(nullptr, sums.data(), x.data(), rows, columns,
                                      workspace.data(), multiprocessors),
                  cudaSuccess);
        ExpectClose(sums, before.Doubles() + reference::ColumnSums(x_values.Doubles(), rows),
                    kTolerance<G>, "sums");
      }
    }
  });
}

TEST_P(Elementwise, ColumnSumsOfManyRowsAreRoundedOnce) {
  // 512 rows of 2^-9 are 1. Added to 1 row by row they would vanish, as bf16 numbers above 1 are
  // 2^-7 apart.
  const DeviceArray<BFloat16> small(Values<BFloat16>(Array(512 * 9, 0x1p-9)));
  DeviceArray<BFloat16> sums(Values<BFloat16>(Array(9, 1)));
  DeviceArray<float> workspace(cuda::AddColumnSumsWorkspace(512, 9, 4));
  ASSERT_EQ(cuda::AddColumnSums(nullptr, sums.data(), small.data(), 512, 9, workspace.data(), 4),
            cudaSuccess);
  EXPECT_TRUE(OnHost(sums).HasTheBitsOf(Values<BFloat16>(Array(9, 2))));
}

TEST(ElementwiseLaunchers, LaunchNothingForNoElements) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::GeluForward(nullptr, none, nothing, 0), cudaSuccess);
  EXPECT_EQ(cuda::AddBias(nullptr, none, nothing, 0, 8), cudaSuccess);
  EXPECT_EQ(cuda::Fill(nullptr, none, 0, 1), cudaSuccess);
  EXPECT_EQ(cuda::FillNormal(nullptr, none, 0, 1, 1, 1, 1), cudaSuccess);
  EXPECT_EQ(cuda::ResidualForward(nullptr, none, nothing, nothing, {0, 8, 8}, {}), cudaSuccess);
  EXPECT_EQ(cuda::AddColumnSums(nullptr, none, nothing, 0, 8, none, 4), cudaSuccess);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
