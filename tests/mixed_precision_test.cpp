// SPDX-License-Identifier: Apache-2.0
//
// What mixed precision promises of training: small steps are not lost, and long sums keep their
// digits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/philox.h"
#include "tests/model_gradient.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"

namespace zerobox {
namespace {

using reference::Array;

// AdamW's steps are about lr = 2e-5 long. A bf16 of at least 2^-7 has neighbours at 2^-14 or more,
// so half the way to them is 2^-15 = 3.1e-5: each step alone would round to nothing.
TEST(MixedPrecision, TrainsOnWhereAStepIsLessThanHalfABf16Step) {
  TrainSettings settings = SmallSettings();
  settings.dtype = DType::kBFloat16;
  settings.grad_accum_dtype = DType::kBFloat16;
  settings.dropout = 0;
  settings.steps = 100;
  settings.eval_interval = 100;
  settings.optimizer = {.learning_rate = 2e-5,
                        .min_learning_rate = 2e-5,
                        .total_steps = 100,
                        .weight_decay = 0,
                        .clip_norm = 0};
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  TrainSettings untrained = settings;
  untrained.steps = 1;
  const SmallRun initial =
      RunSmall(untrained, {.loss_scale = [](int, int64_t) { return std::nan(""); }});
  ASSERT_EQ(initial.result.skipped, 1);
  TrainSettings in_fp32 = settings;
  in_fp32.dtype = in_fp32.grad_accum_dtype = DType::kFloat32;
  const SmallRun reference = RunSmall(in_fp32);

  const auto gained = [&](const SmallRun& r) {
    return initial.result.eval_metrics.back().val_loss - r.result.eval_metrics.back().val_loss;
  };
  EXPECT_GT(gained(reference), 0.05);
  EXPECT_TRUE(std::abs(gained(run) - gained(reference)) <= 0.2 * gained(reference))
      << gained(run) << ", in fp32 " << gained(reference);

  const std::vector<float>& before = initial.parameters.at("wte.weight");
  const std::vector<float>& after = run.parameters.at("wte.weight");
  int64_t large = 0, moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!(std::abs(before[i]) >= 0x1p-7F)) continue;
    ++large;
    moved += after[i] != before[i];
  }
  EXPECT_GT(large, std::ssize(before) / 2);
  EXPECT_GT(moved, large / 2);
}

double Norm(const Array& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// How far the gradient of 512 equal micro-batches is from 512 times that of one, in norms, for the
// worst parameter.
double ErrorOf512(DType gradients) {
  TrainSettings settings = SmallSettings();
  settings.dtype = DType::kBFloat16;
  settings.grad_accum_dtype = gradients;
  settings.dropout = 0;
  const ModelConfig& model = settings.model;
  std::vector<Array> weights;
  ParameterId id = 0;
  for (const ParameterSpec& spec : GptParameters(model)) {
    const InitialValue initial = InitialValueOf(model, id);
    Array values(spec.elements(), initial.constant);
    for (size_t i = 0; initial.stddev > 0 && i < values.size(); ++i) {
      values[i] = initial.stddev * NormalAt(1, id, i);
    }
    weights.push_back(std::move(values));
    ++id;
  }
  HostBatch batch;
  batch.positions = model.seq_len;
  batch.samples = {0};
  for (int64_t t = 0; t < model.seq_len; ++t) {
    batch.inputs.push_back(static_cast<int32_t>(t * 7 % model.vocab_size));
    batch.targets.push_back(static_cast<int32_t>((t * 7 + 3) % model.vocab_size));
  }
  const ModelGradient one = ComputeModelGradient(settings, weights, {batch}, 1);
  const ModelGradient all =
      ComputeModelGradient(settings, weights, std::vector<HostBatch>(512, batch), 1);
  double worst = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    Array difference = all.gradients[p];
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= 512 * one.gradients[p][i];
    const double norm = 512 * Norm(one.gradients[p]);
    EXPECT_GT(norm, 1e-6);
    worst = std::max(worst, Norm(difference) / norm);
  }
  return worst;
}

TEST(MixedPrecision, AddsUp512MicroBatchesInFp32) {
  const double error = ErrorOf512(DType::kFloat32);
  EXPECT_TRUE(error <= 1e-5) << error;
  // In bf16 a sum stops growing at 256 times what is added.
  EXPECT_GT(ErrorOf512(DType::kBFloat16), 0.1);
}

}  // namespace
}  // namespace zerobox
