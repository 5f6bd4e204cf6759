// SPDX-License-Identifier: Apache-2.0
//
// ops/cuda/layernorm.cu against the reference in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

// fp32: rounding errors of sums of hundreds of terms. bf16: half a unit in the last of 8 bits, of
// the largest element.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;

struct Shape {
  int64_t rows, channels;
  int64_t shift = 0;  // of all arrays, in elements
  std::string Name() const {
    return std::to_string(rows) + " x " + std::to_string(channels) + " + " + std::to_string(shift);
  }
};
// One row; channels that fill no lane, no pack, exactly one instance, a bit of the next; odd ones,
// and more than the registers hold (the plain kernels); GPT-2's; and unaligned arrays.
constexpr Shape kShapes[] = {{1, 8},    {3, 1},     {5, 50},   {17, 256}, {9, 264},
                             {10, 768}, {2, 1024},  {1, 1280}, {9, 1600}, {2, 1800},
                             {33, 37},  {4, 64, 1}, {9, 96, 4}};

template <typename T>
class LayerNorm {
 public:
  explicit LayerNorm(const Shape& shape)
      : shape_(shape),
        x_(Values<T>::Random(shape.rows * shape.channels, 1)),
        weight_(Values<T>::Random(shape.channels, 2)),
        bias_(Values<T>::Random(shape.channels, 3)),
        dout_(Values<T>::Random(shape.rows * shape.channels, 4)),
        dx_(Values<T>::Random(shape.rows * shape.channels, 5)) {
    // Rows whose mean is large beside their deviation.
    for (int64_t c = 0; c < shape.channels; ++c) x_[c] = FromFloat<T>(ToFloat(x_[c]) + 20);
  }

  void TestForward() const {
    const DeviceArray<T> x(x_, shape_.shift), weight(weight_, shape_.shift),
        bias(bias_, shape_.shift);
    DeviceArray<T> out(x_.size(), shape_.shift);
    DeviceArray<float> mean(shape_.rows), rstd(shape_.rows);
    ASSERT_EQ(cuda::LayerNormForward(nullptr, out.data(), mean.data(), rstd.data(), x.data(),
                                     weight.data(), bias.data(), shape_.rows, shape_.channels),
              cudaSuccess);
    const auto expected =
        reference::LayerNorm(x_.Doubles(), weight_.Doubles(), bias_.Doubles(), shape_.rows);
    ExpectClose(out, expected.out, kTolerance<T>, "out");
    ExpectClose(mean, expected.mean, 1e-6, "mean");
    ExpectClose(rstd, expected.rstd, 1e-5, "rstd");
  }

  template <typename G>
  void TestBackward(int multiprocessors) const {
    const auto statistics =
        reference::LayerNorm(x_.Doubles(), weight_.Doubles(), bias_.Doubles(), shape_.rows);
    const auto before_weight = Values<G>::Random(shape_.channels, 6);
    const auto before_bias = Values<G>::Random(shape_.channels, 7);
    const DeviceArray<T> x(x_, shape_.shift), weight(weight_, shape_.shift),
        dout(dout_, shape_.shift);
    const DeviceArray<float> mean{Floats(statistics.mean)}, rstd{Floats(statistics.rstd)};
    DeviceArray<T> dx(dx_, shape_.shift);
    DeviceArray<G> dweight(before_weight, shape_.shift), dbias(before_bias, shape_.shift);
    DeviceArray<float> workspace(
        cuda::LayerNormBackwardWorkspace(shape_.rows, shape_.channels, multiprocessors));
    ASSERT_EQ(
        cuda::LayerNormBackward(nullptr, dx.data(), dweight.data(), dbias.data(), dout.data(),
                                x.data(), mean.data(), rstd.data(), weight.data(), shape_.rows,
                                shape_.channels, workspace.data(), multiprocessors),
        cudaSuccess);
    const auto expected =
        reference::LayerNormGradient(dout_.Doubles(), x_.Doubles(), weight_.Doubles(), shape_.rows);
    ExpectClose(dx, dx_.Doubles() + expected.dx, 2 * kTolerance<T>, "dx");
    ExpectClose(dweight, before_weight.Doubles() + expected.dweight, 5 * kTolerance<G>, "dweight");
    ExpectClose(dbias, before_bias.Doubles() + expected.dbias, 5 * kTolerance<G>, "dbias");
  }

 private:
  Shape shape_;
  Values<T> x_, weight_, bias_, dout_, dx_;
};

class LayerNormKernels : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(LayerNormKernels);

TEST_P(LayerNormKernels, ForwardEqualsTheReference) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.Name());
    LayerNorm<float>(shape).TestForward();
    LayerNorm<BFloat16>(shape).TestForward();
  }
}

// On one multiprocessor a warp takes several rows, and on many there are more partial sums.
TEST_P(LayerNormKernels, BackwardEqualsTheReference) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.Name());
    LayerNorm<float>(shape).TestBackward<float>(1);
    LayerNorm<float>(shape).TestBackward<float>(7);
    LayerNorm<BFloat16>(shape).TestBackward<BFloat16>(1);
    LayerNorm<BFloat16>(shape).TestBackward<float>(7);
  }
}

TEST(LayerNormLaunchers, LaunchNothingForNoRows) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::LayerNormForward(nullptr, none, none, none, nothing, nothing, nothing, 0, 64),
            cudaSuccess);
  EXPECT_EQ(cuda::LayerNormBackward(nullptr, none, none, none, nothing, nothing, nothing, nothing,
                                    nothing, 0, 64, none, 4),
            cudaSuccess);
  EXPECT_TRUE(simt::TakeReports().empty());
}

TEST(LayerNormLaunchers, NeedAWorkspaceOfPartialSums) {
  EXPECT_EQ(cuda::LayerNormBackwardWorkspace(0, 64, 4), 0);
  // A block takes 8 rows at a time, and there are at most 2 a multiprocessor, of long rows 1.
  EXPECT_EQ(cuda::LayerNormBackwardWorkspace(17, 64, 4), 3 * 2 * 64);
  EXPECT_EQ(cuda::LayerNormBackwardWorkspace(1000, 64, 4), 8 * 2 * 64);
  EXPECT_EQ(cuda::LayerNormBackwardWorkspace(1000, 1600, 4), 4 * 2 * 1600);
}

// The same bits in every order of threads and blocks.
TEST(LayerNormLaunchers, DoNotDependOnTheOrderOfThreads) {
  constexpr int64_t kRows = 40, kChannels = 72;
  const auto x = Floats::Random(kRows * kChannels, 1), dout = Floats::Random(kRows * kChannels, 2);
  const auto weight = Floats::Random(kChannels, 3), mean = Floats::Random(kRows, 4),
             rstd = Floats::Random(kRows, 5);
  const Floats zeros(reference::Array(kChannels, 0.0));
  const auto backward = [&](simt::Order order) {
    simt::options().order = order;
    const DeviceArray<float> device_x(x), device_dout(dout), device_weight(weight),
        device_mean(mean), device_rstd(rstd);
    DeviceArray<float> dx(x), dweight(zeros), dbias(zeros);
    DeviceArray<float> workspace(cuda::LayerNormBackwardWorkspace(kRows, kChannels, 2));
    EXPECT_EQ(cuda::LayerNormBackward(nullptr, dx.data(), dweight.data(), dbias.data(),
                                      device_dout.data(), device_x.data(), device_mean.data(),
                                      device_rstd.data(), device_weight.data(), kRows, kChannels,
                                      workspace.data(), 2),
              cudaSuccess);
    return std::vector<Floats>{OnHost(dx), OnHost(dweight), OnHost(dbias)};
  };
  const auto forward = backward(simt::Order::kForward);
  for (const simt::Order order : {simt::Order::kReverse, simt::Order::kRandom}) {
    const auto other = backward(order);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(other[i].HasTheBitsOf(forward[i])) << i;
  }
  simt::options() = {};
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
