// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one optimizer step that is decided on the device: learning rate, clipping,
// skipping, bias corrections. AdamW: arXiv:1711.05101, algorithm 2.
#ifndef ZEROBOX_OPS_OPTIMIZER_H_
#define ZEROBOX_OPS_OPTIMIZER_H_

#include <cstdint>

namespace zerobox {

struct OptimizerSettings {
  double learning_rate = 1e-3;      // at the end of the warm-up
  double min_learning_rate = 1e-4;  // at the end of the run
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  double weight_decay = 0.1;  // on matrices only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip_norm = 1.0;  // 0: no clipping
};

// Lives in device memory, because the host does not wait for a step before it enqueues the next.
struct StepState {
  int64_t applied = 0;          // optimizer steps applied so far, this one included
  int64_t skip = 0;             // 1: this step's gradient norm is not finite; nothing is changed
  double gradient_norm = 0;     // before clipping, rounded to fp32
  double clip_scale = 1;        // min(1, clip_norm / (norm + 1e-6)), rounded to fp32
  double learning_rate = 0;     // of this step
  double bias_correction1 = 1;  // 1 - beta1^applied
  double bias_correction2 = 1;
};

// Linear warm-up, then cosine decay to the minimum. `applied` steps have been applied before:
// applied 0 is the first step. With W warm-up steps of S in all,
//   learning_rate (applied + 1) / W                                             while applied < W,
//   min + (learning_rate - min) (1 + cos(pi (applied - W) / (S - W))) / 2       while applied < S,
//   min                                                                         from then on.
double LearningRate(const OptimizerSettings& settings, int64_t applied);

// Updates `state` for the step whose gradient has sqrt(sum of the n partial `sums`) as its norm. A
// skipped step leaves applied, learning_rate and the corrections as they were, and its clip_scale
// is 1.
void PrepareStep(StepState& state, const double* sums, int64_t n,
                 const OptimizerSettings& settings);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_OPTIMIZER_H_
