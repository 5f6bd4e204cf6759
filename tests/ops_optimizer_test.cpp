// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/optimizer.h"

namespace zerobox {
namespace {

void ExpectNear(double actual, double expected) {
  EXPECT_TRUE(std::abs(actual - expected) <= 1e-15 + 1e-13 * std::abs(expected))
      << actual << " is not " << expected;
}

TEST(LearningRate, WarmsUpLinearlyAndFallsAlongACosine) {
  OptimizerSettings settings;
  settings.learning_rate = 1e-3;
  settings.min_learning_rate = 1e-4;
  settings.warmup_steps = 4;
  settings.total_steps = 16;
  ExpectNear(LearningRate(settings, 0), 0.00025);
  ExpectNear(LearningRate(settings, 1), 0.0005);
  ExpectNear(LearningRate(settings, 3), 0.001);
  ExpectNear(LearningRate(settings, 4), 0.001);
  ExpectNear(LearningRate(settings, 7), 0.0008681980515339464);  // 1/4 of the way
  ExpectNear(LearningRate(settings, 8), 0.000775);               // 1/3: cos(pi/3) = 1/2
  ExpectNear(LearningRate(settings, 10), 0.00055);               // half way
  ExpectNear(LearningRate(settings, 13), 0.0002318019484660536);
  ExpectNear(LearningRate(settings, 16), 0.0001);
  ExpectNear(LearningRate(settings, 1000), 0.0001);
}

TEST(LearningRate, NeedsNoWarmUpAndNoDecay) {
  OptimizerSettings settings;  // no warm-up, one step
  ExpectNear(LearningRate(settings, 0), 1e-3);
  settings.warmup_steps = settings.total_steps = 2;
  ExpectNear(LearningRate(settings, 0), 0.5e-3);
  ExpectNear(LearningRate(settings, 1), 1e-3);
  ExpectNear(LearningRate(settings, 2), 1e-4);
}

TEST(PrepareStep, ClipsByTheNormAndCorrectsTheBias) {
  OptimizerSettings settings;
  settings.clip_norm = 1;
  settings.beta1 = 0.5;
  settings.beta2 = 0.75;
  settings.total_steps = 100;
  StepState state;
  const double sums[] = {7, 2, 16};
  PrepareStep(state, sums, 3, settings);
  EXPECT_EQ(state.skip, 0);
  EXPECT_EQ(state.applied, 1);
  EXPECT_EQ(state.gradient_norm, 5);
  EXPECT_EQ(state.clip_scale, static_cast<double>(static_cast<float>(1 / 5.000001)));
  EXPECT_EQ(state.learning_rate, 1e-3);
  EXPECT_EQ(state.bias_correction1, 0.5);
  EXPECT_EQ(state.bias_correction2, 0.25);
  PrepareStep(state, sums, 1, settings);
  EXPECT_EQ(state.applied, 2);
  EXPECT_EQ(state.gradient_norm, static_cast<double>(std::sqrt(7.0f)));  // rounded to fp32
  EXPECT_EQ(state.bias_correction1, 0.75);
  EXPECT_EQ(state.bias_correction2, 0.4375);
  EXPECT_EQ(state.learning_rate, LearningRate(settings, 1));
}

TEST(PrepareStep, LeavesSmallGradientsAloneAndAllWithoutClipping) {
  OptimizerSettings settings;
  StepState state;
  const double small = 0.25, large = 1e6;
  PrepareStep(state, &small, 1, settings);
  EXPECT_EQ(state.clip_scale, 1);
  settings.clip_norm = 0;
  PrepareStep(state, &large, 1, settings);
  EXPECT_EQ(state.clip_scale, 1);
  EXPECT_EQ(state.gradient_norm, 1000);
}

TEST(PrepareStep, SkipsAStepWhoseNormIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {infinity, nan, 1e80 /* its root does not fit fp32 */}) {
    OptimizerSettings settings;
    settings.total_steps = 10;
    StepState state;
    const double good = 100;
    PrepareStep(state, &good, 1, settings);
    const StepState before = state;
    const double sums[] = {1, bad};
    PrepareStep(state, sums, 2, settings);
    EXPECT_EQ(state.skip, 1);
    EXPECT_FALSE(std::isfinite(state.gradient_norm));
    EXPECT_EQ(state.clip_scale, 1);
    EXPECT_EQ(state.applied, before.applied);
    EXPECT_EQ(state.learning_rate, before.learning_rate);
    EXPECT_EQ(state.bias_correction1, before.bias_correction1);
    EXPECT_EQ(state.bias_correction2, before.bias_correction2);
    PrepareStep(state, &good, 1, settings);  // and goes on
    EXPECT_EQ(state.skip, 0);
    EXPECT_EQ(state.applied, 2);
  }
}

}  // namespace
}  // namespace zerobox
