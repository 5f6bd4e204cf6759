// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_runs.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using Variant = CudaRunKind::Variant;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Takes what is further apart.
void Compare(double found, double expected, const std::string& what, LossDifference& largest) {
  double difference = std::abs(found - expected) / std::abs(expected);
  if (!(difference <= kInfinite)) difference = kInfinite;
  if (difference <= largest.value) return;
  largest = {difference, absl::StrCat(what, " ", found, " is not ", expected)};
}

}  // namespace

std::string NameOf(const CudaRunKind& kind) {
  const char* const variants[] = {"", "_checkpoints", "_optimizer_offloaded",
                                  "_checkpoints_offloaded"};
  return std::string(Name(kind.dtype)) + "_stage" + std::to_string(kind.stage) +
         variants[static_cast<int>(kind.variant)];
}

std::vector<CudaRunKind> CudaRunKinds() {
  std::vector<CudaRunKind> kinds;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int stage = 0; stage < 4; ++stage) kinds.push_back({dtype, stage, Variant::kPlain});
    for (const Variant variant :
         {Variant::kCheckpoints, Variant::kOffloadedStates, Variant::kOffloadedCheckpoints}) {
      kinds.push_back({dtype, 3, variant});
    }
  }
  return kinds;
}

TrainSettings SettingsOf(const CudaRunKind& kind, const char* device) {
  TrainSettings settings = SmallSettings();
  settings.device = device;
  settings.devices = 1;
  settings.steps = 10;
  settings.micro_batch = 2;
  settings.grad_accum = 2;
  settings.eval_interval = 5;
  settings.dtype = kind.dtype;
  settings.zero_stage = kind.stage;
  if (kind.variant == Variant::kCheckpoints || kind.variant == Variant::kOffloadedCheckpoints) {
    settings.model.n_layer = 4;
    settings.activation_checkpointing = ActivationCheckpointing::kSelective;
  }
  settings.offload_activations = kind.variant == Variant::kOffloadedCheckpoints;
  settings.offload_optimizer = kind.variant == Variant::kOffloadedStates;
  return settings;
}

LossDifference Difference(const RunResult& found, const RunResult& expected) {
  if (found.step_metrics.size() != expected.step_metrics.size()) {
    return {kInfinite, "the number of steps"};
  }
  if (found.eval_metrics.size() != expected.eval_metrics.size()) {
    return {kInfinite, "the number of evaluations"};
  }
  LossDifference largest;
  for (size_t i = 0; i < expected.step_metrics.size(); ++i) {
    Compare(found.step_metrics[i].loss, expected.step_metrics[i].loss,
            absl::StrCat("step ", i + 1, ": loss"), largest);
  }
  for (size_t i = 0; i < expected.eval_metrics.size(); ++i) {
    Compare(found.eval_metrics[i].val_loss, expected.eval_metrics[i].val_loss,
            absl::StrCat("evaluation ", i + 1, ": loss"), largest);
  }
  return largest;
}

}  // namespace zerobox
