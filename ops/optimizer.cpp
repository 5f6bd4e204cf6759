// SPDX-License-Identifier: Apache-2.0
#include "ops/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace zerobox {

double LearningRate(const OptimizerSettings& settings, int64_t applied) {
  if (applied < settings.warmup_steps) {
    return settings.learning_rate * static_cast<double>(applied + 1) /
           static_cast<double>(settings.warmup_steps);
  }
  if (applied >= settings.total_steps) return settings.min_learning_rate;
  const double progress = static_cast<double>(applied - settings.warmup_steps) /
                          static_cast<double>(settings.total_steps - settings.warmup_steps);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return settings.min_learning_rate +
         cosine * (settings.learning_rate - settings.min_learning_rate);
}

void PrepareStep(StepState& state, const double* sums, int64_t n,
                 const OptimizerSettings& settings) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += sums[i];
  const float norm = static_cast<float>(std::sqrt(sum));
  state.gradient_norm = norm;
  state.clip_scale = 1;
  state.skip = std::isfinite(norm) ? 0 : 1;
  if (state.skip) return;
  if (settings.clip_norm > 0) {
    state.clip_scale =
        static_cast<float>(std::min(1.0, settings.clip_norm / (state.gradient_norm + 1e-6)));
  }
  state.learning_rate = LearningRate(settings, state.applied);
  ++state.applied;
  state.bias_correction1 = 1 - std::pow(settings.beta1, static_cast<double>(state.applied));
  state.bias_correction2 = 1 - std::pow(settings.beta2, static_cast<double>(state.applied));
}

}  // namespace zerobox
