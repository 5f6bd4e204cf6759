// SPDX-License-Identifier: Apache-2.0
//
// A gradient that is not finite, on one rank alone, skips the step on all ranks: parameters,
// moments, applied steps and schedule stay as they were; the data goes on, and so does training.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/optimizer.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// No dropout, whose masks are of a sample's position: runs that shift the data must draw none.
TrainSettings Settings(int stage, int64_t steps) {
  TrainSettings settings = SmallSettings();
  settings.zero_stage = stage;
  settings.steps = steps;
  settings.dropout = 0;
  return settings;
}

// Scales the loss of `rank` by `scale` in `steps`.
TrainHooks Spoil(int rank, std::set<int64_t> steps, double scale) {
  TrainHooks hooks;
  hooks.loss_scale = [=](int r, int64_t step) {
    return r == rank && steps.count(step) > 0 ? scale : 1.0;
  };
  return hooks;
}

// The synthetic data without some global batches.
class WithoutBatches final : public Dataset {
 public:
  WithoutBatches(const TrainSettings& settings, std::set<int64_t> left_out_steps)
      : data_(settings.model.seq_len, settings.model.vocab_size),
        batch_(settings.global_batch()),
        left_out_(std::move(left_out_steps)) {}
  int64_t train_tokens() const override { return data_.train_tokens(); }
  int64_t train_sequences() const override { return data_.train_sequences(); }
  int64_t validation_sequences() const override { return data_.validation_sequences(); }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    data_.Train(Shifted(position), inputs, targets);
  }
  int64_t TrainTargets(int64_t position) const override {
    return data_.TrainTargets(Shifted(position));
  }
  int64_t Epoch(int64_t position) const override { return data_.Epoch(position); }
  int64_t TrainSequence(int64_t position) const override {
    return data_.TrainSequence(Shifted(position));
  }
  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override {
    data_.Validation(sequence, inputs, targets);
  }

 private:
  int64_t Shifted(int64_t position) const {
    int64_t step = position / batch_ + 1;
    for (const int64_t left_out : left_out_) step += step >= left_out ? 1 : 0;
    return (step - 1) * batch_ + position % batch_;
  }
  SyntheticDataset data_;
  int64_t batch_;
  std::set<int64_t> left_out_;
};

uint64_t Bits(double x) { return std::bit_cast<uint64_t>(x); }

// The applied steps of `run` are, bit by bit, all the steps of `reference`.
void ExpectAppliedStepsAre(const RunResult& reference, const RunResult& run) {
  std::vector<StepMetrics> applied;
  for (const StepMetrics& step : run.step_metrics) {
    if (!step.skipped) applied.push_back(step);
  }
  ASSERT_EQ(applied.size(), reference.step_metrics.size());
  for (size_t i = 0; i < applied.size(); ++i) {
    EXPECT_EQ(Bits(applied[i].loss), Bits(reference.step_metrics[i].loss)) << applied[i].step;
    EXPECT_EQ(Bits(applied[i].grad_norm), Bits(reference.step_metrics[i].grad_norm));
    EXPECT_EQ(Bits(applied[i].clip), Bits(reference.step_metrics[i].clip));
    EXPECT_EQ(Bits(applied[i].lr), Bits(reference.step_metrics[i].lr)) << "the schedule waits";
  }
}

struct Case {
  int stage;
  int rank;
  double scale;
  int64_t micro_batches;
};
std::string Describe(const Case& c) {
  return "Stage" + std::to_string(c.stage) + "Rank" + std::to_string(c.rank) +
         (std::isnan(c.scale) ? "NaN" : "Infinity") + "MicroBatches" +
         std::to_string(c.micro_batches);
}
void PrintTo(const Case& c, std::ostream* out) { *out << Describe(c); }

class Skip : public testing::TestWithParam<Case> {};

TEST_P(Skip, OfTheLastStepChangesNoParameter) {
  TrainSettings settings = Settings(GetParam().stage, 5);
  settings.grad_accum = GetParam().micro_batches;
  const SmallRun reference = RunSmall(settings);
  ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
  settings.steps = 6;
  const SmallRun run = RunSmall(settings, Spoil(GetParam().rank, {6}, GetParam().scale));
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_EQ(run.parameters, reference.parameters);
  ASSERT_EQ(run.result.step_metrics.size(), 6u);
  const StepMetrics& skipped = run.result.step_metrics[5];
  EXPECT_TRUE(skipped.skipped);
  EXPECT_FALSE(std::isfinite(skipped.grad_norm));
  EXPECT_TRUE(std::isfinite(skipped.loss)) << "only the gradient was spoiled";
  EXPECT_EQ(skipped.clip, 1);
  EXPECT_EQ(run.result.skipped, 1);
  // And without the spoiled gradient the sixth step does change something.
  EXPECT_NE(RunSmall(settings).parameters, reference.parameters);
}

TEST_P(Skip, LeavesTheRestOfTheRunAsIfTheStepHadNotBeen) {
  const std::set<int64_t> spoiled = {1, 4, 5};
  TrainSettings settings = Settings(GetParam().stage, 10);
  settings.grad_accum = GetParam().micro_batches;
  settings.optimizer.warmup_steps = 3;  // the schedule moves in every step, before and after
  settings.optimizer.total_steps = 10;
  const SmallRun run = RunSmall(settings, Spoil(GetParam().rank, spoiled, GetParam().scale));
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_EQ(run.result.steps, 10);
  EXPECT_EQ(run.result.skipped, 3);

  const WithoutBatches dataset(settings, spoiled);
  settings.steps = 7;
  const SmallRun reference = RunSmall(settings, dataset, {});
  ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
  EXPECT_EQ(reference.result.skipped, 0);
  ExpectAppliedStepsAre(reference.result, run.result);
  EXPECT_EQ(run.parameters, reference.parameters);

  int64_t applied = 0;
  for (const StepMetrics& step : run.result.step_metrics) {
    const bool skipped = spoiled.count(step.step) > 0;
    EXPECT_EQ(step.skipped, skipped) << step.step;
    // The data advances in a skipped step too.
    EXPECT_EQ(step.position, step.step * settings.global_batch());
    EXPECT_EQ(step.tokens, step.position * settings.model.seq_len);
    if (!skipped) {
      EXPECT_EQ(step.lr, LearningRate(settings.optimizer, applied++));
      EXPECT_TRUE(std::isfinite(step.grad_norm));
    }
  }
  EXPECT_EQ(applied, 7);
}

TEST_P(Skip, IsTheSameInEveryStage) {
  if (GetParam().stage == 0) return;
  TrainSettings settings = Settings(0, 8);
  settings.dropout = 0.1;
  const SmallRun reference = RunSmall(settings, Spoil(GetParam().rank, {3, 8}, GetParam().scale));
  settings.zero_stage = GetParam().stage;
  const SmallRun run = RunSmall(settings, Spoil(GetParam().rank, {3, 8}, GetParam().scale));
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_EQ(run.parameters, reference.parameters);
  EXPECT_EQ(run.result.skipped, 2);
  for (size_t i = 0; i < 8; ++i) {
    const StepMetrics& step = run.result.step_metrics[i];
    EXPECT_EQ(step.skipped, i == 2 || i == 7);
    EXPECT_EQ(Bits(step.loss), Bits(reference.result.step_metrics[i].loss)) << i;
    EXPECT_EQ(Bits(step.lr), Bits(reference.result.step_metrics[i].lr)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Skip,
                         testing::Values(Case{0, 2, kNaN, 1}, Case{1, 2, kNaN, 1},
                                         Case{2, 2, kNaN, 1}, Case{3, 2, kNaN, 1},
                                         Case{0, 0, kInfinity, 1}, Case{1, 3, kInfinity, 1},
                                         Case{2, 0, kInfinity, 1}, Case{3, 3, -kInfinity, 1},
                                         Case{0, 1, kNaN, 2}, Case{1, 1, kNaN, 2},
                                         Case{2, 1, kNaN, 2}, Case{3, 1, kNaN, 2}),
                         [](const auto& info) { return Describe(info.param); });

TEST(Skip, OnOneDeviceSkipsToo) {
  TrainSettings settings = Settings(0, 4);
  settings.devices = 1;
  const SmallRun reference = RunSmall(settings);
  settings.steps = 5;
  const SmallRun run = RunSmall(settings, Spoil(0, {5}, kNaN));
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_TRUE(run.result.step_metrics[4].skipped);
  EXPECT_EQ(run.parameters, reference.parameters);
}

TEST(Skip, OfEveryStepLeavesTheInitialWeights) {
  TrainSettings settings = Settings(3, 1);
  const SmallRun one = RunSmall(settings, Spoil(1, {1}, kNaN));
  settings.steps = 4;
  const SmallRun four = RunSmall(settings, Spoil(1, {1, 2, 3, 4}, kNaN));
  ASSERT_TRUE(four.result.status.ok()) << four.result.status;
  EXPECT_EQ(four.result.skipped, 4);
  EXPECT_EQ(four.parameters, one.parameters);
  EXPECT_EQ(four.parameters.at("ln_f.weight"), std::vector<float>(33, 1.0F));
}

}  // namespace
}  // namespace zerobox
