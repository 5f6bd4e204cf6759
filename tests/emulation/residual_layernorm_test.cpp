// SPDX-License-Identifier: Apache-2.0
//
// ops/cuda/residual_layernorm.cu against the two kernels that it replaces, bit for bit; their own
// tests compare them with the reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

enum class Place { kOwn, kX, kBranch };  // where the sum goes

struct Case {
  SequenceShape shape;
  float p = 0;
  int64_t shift = 0;  // of all arrays, in elements
  Place place = Place::kOwn;
};
// One row; channels that fill no pack, exactly one instance, a bit of the next; odd ones, and more
// than the registers hold (the plain kernel); GPT-2's; arrays that are not aligned; in place.
constexpr Case kCases[] = {
    {{1, 1, 8}},
    {{3, 3, 50}},
    {{2, 9, 256}},
    {{1, 9, 264}, 0, 0, Place::kBranch},
    {{1, 3, 768}},
    {{2, 1, 1024}},
    {{1, 1, 1280}},
    {{1, 9, 1600}},
    {{1, 2, 1800}},
    {{2, 3, 37}, 0, 0, Place::kX},
    {{1, 4, 64}, 0, 1},
    {{2, 9, 40}, 0.3f},
    {{3, 1, 520}, 0.5f, 0, Place::kBranch},
    {{2, 5, 768}, 0.1f, 0, Place::kX},
    {{1, 2, 1600}, 0.1f},
    {{2, 3, 37}, 0.3f},
    {{2, 3, 64}, 0.3f, 3, Place::kBranch},
};

template <typename T>
struct Results {
  Values<T> sum, out;
  Floats mean, rstd;
};

template <typename T>
struct Arrays {
  explicit Arrays(const Case& c)
      : x(Values<T>::Random(c.shape.elements(), 1), c.shift),
        branch(Values<T>::Random(c.shape.elements(), 2), c.shift),
        sum(c.shape.elements(), c.shift),
        out(c.shape.elements(), c.shift),
        weight(Values<T>::Random(c.shape.channels, 3), c.shift),
        bias(Values<T>::Random(c.shape.channels, 4), c.shift),
        mean(c.shape.rows()),
        rstd(c.shape.rows()) {}

  DeviceArray<T> x, branch, sum, out, weight, bias;
  DeviceArray<float> mean, rstd;
};

cuda::DropoutMask Mask(const Case& c, const DeviceArray<int64_t>& samples) {
  return {.p = c.p,
          .seed = 42,
          .samples = samples.data(),
          .site = DropoutSite::kAttentionOutput,
          .layer = 3};
}

template <typename T>
Results<T> Fused(const Case& c, const DeviceArray<int64_t>& samples) {
  Arrays<T> a(c);
  DeviceArray<T>& sum = c.place == Place::kOwn ? a.sum : c.place == Place::kX ? a.x : a.branch;
  const T *x = a.x.data(), *branch = a.branch.data(), *weight = a.weight.data(),
          *bias = a.bias.data();
  EXPECT_EQ(cuda::ResidualLayerNormForward(nullptr, sum.data(), a.out.data(), a.mean.data(),
                                           a.rstd.data(), x, branch, weight, bias, c.shape,
                                           Mask(c, samples)),
            cudaSuccess);
  return {OnHost(sum), OnHost(a.out), OnHost(a.mean), OnHost(a.rstd)};
}

template <typename T>
Results<T> OneByOne(const Case& c, const DeviceArray<int64_t>& samples) {
  Arrays<T> a(c);
  const T *x = a.x.data(), *branch = a.branch.data(), *weight = a.weight.data(),
          *bias = a.bias.data(), *sum = a.sum.data();
  EXPECT_EQ(cuda::ResidualForward(nullptr, a.sum.data(), x, branch, c.shape, Mask(c, samples)),
            cudaSuccess);
  EXPECT_EQ(cuda::LayerNormForward(nullptr, a.out.data(), a.mean.data(), a.rstd.data(), sum, weight,
                                   bias, c.shape.rows(), c.shape.channels),
            cudaSuccess);
  return {OnHost(a.sum), OnHost(a.out), OnHost(a.mean), OnHost(a.rstd)};
}

template <typename T>
void TestCase(const Case& c) {
  SCOPED_TRACE(std::to_string(c.shape.rows()) + " x " + std::to_string(c.shape.channels) + ", p " +
               std::to_string(c.p) + ", shift " + std::to_string(c.shift));
  const TestDropout dropout(c.p, c.shape.batch, DropoutSite::kAttentionOutput, 1);
  const DeviceArray<int64_t> samples(dropout.samples);
  const Results<T> fused = Fused<T>(c, samples), expected = OneByOne<T>(c, samples);
  EXPECT_TRUE(fused.sum.HasTheBitsOf(expected.sum));
  EXPECT_TRUE(fused.mean.HasTheBitsOf(expected.mean));
  EXPECT_TRUE(fused.rstd.HasTheBitsOf(expected.rstd));
  EXPECT_TRUE(fused.out.HasTheBitsOf(expected.out));
}

class ResidualLayerNorm : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(ResidualLayerNorm);

TEST_P(ResidualLayerNorm, HasTheBitsOfTheTwoKernelsInFp32) {
  for (const Case& c : kCases) TestCase<float>(c);
}

TEST_P(ResidualLayerNorm, HasTheBitsOfTheTwoKernelsInBf16) {
  for (const Case& c : kCases) TestCase<BFloat16>(c);
}

TEST(ResidualLayerNormLauncher, LaunchesNothingForNoRows) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::ResidualLayerNormForward(nullptr, none, none, none, none, nothing, nothing,
                                           nothing, nothing, {0, 4, 64}, {}),
            cudaSuccess);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
