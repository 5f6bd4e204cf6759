// SPDX-License-Identifier: Apache-2.0
//
// A trial: a training run by the flags that `zerobox train` has, on tokens that are noise.
#ifndef ZEROBOX_BENCH_GPU_CHECK_TRIAL_H_
#define ZEROBOX_BENCH_GPU_CHECK_TRIAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/check.h"
#include "trainer/results.h"
#include "trainer/train.h"

namespace zerobox::gpu_check {

struct Trial {
  RunPlan plan;
  RunResult result;
};
// Nothing is saved. ResourceExhausted where it does not fit.
absl::StatusOr<Trial> TrainWith(std::vector<std::string> flags, const TrainHooks& hooks);

// bf16 on `devices` GPUs, whose memory the run may have but for a reserve.
std::vector<std::string> TrialFlags(const TrainingSizes& sizes, int devices, int stage,
                                    int64_t micro_batch, int64_t steps, const Gpu& gpu);

// Of a model, forward and backward, for a token: 6 P + 6 L C T, see bench/gpu_check/training.cpp.
double Operations(const ModelConfig& model, int64_t parameters);

// The median over the steps that count.
double MedianOf(const TrainingSizes& sizes, const RunResult& result, double StepMetrics::*metric);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_TRIAL_H_
