// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_runs.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr auto kNone = ActivationCheckpointing::kNone;
constexpr auto kSelective = ActivationCheckpointing::kSelective;
constexpr auto kFull = ActivationCheckpointing::kFull;

constexpr CudaRunKind kKinds[] = {
    {.name = "stage0"},
    {.name = "stage1", .stage = 1},
    {.name = "stage2", .stage = 2},
    {.name = "stage3", .stage = 3},
    {.name = "odd_width", .odd_width = true},
    {.name = "selective", .checkpointing = kSelective},
    {.name = "full", .stage = 3, .checkpointing = kFull},
    {.name = "optimizer_offloaded", .offload_optimizer = true},
    {.name = "selective_offloaded", .checkpointing = kSelective, .offload_activations = true},
    {.name = "full_all_offloaded",
     .stage = 2,
     .checkpointing = kFull,
     .offload_optimizer = true,
     .offload_activations = true},
};

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
  const char* where = kind.devices == 1 ? "" : kind.on_one_gpu ? "_on_one_gpu" : "_devices";
  return absl::StrCat(std::string(Name(kind.dtype)), "_", kind.name,
                      kind.devices == 1 ? "" : absl::StrCat("_", kind.devices), where);
}

std::vector<CudaRunKind> CudaRunKinds() {
  std::vector<CudaRunKind> kinds;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (CudaRunKind kind : kKinds) {
      kind.dtype = dtype;
      kinds.push_back(kind);
    }
  }
  return kinds;
}

std::vector<CudaRunKind> SeveralDevicesKinds(int devices, bool on_one_gpu) {
  std::vector<CudaRunKind> kinds;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (CudaRunKind kind : kKinds) {
      if (kind.odd_width) continue;
      kind.dtype = dtype;
      kind.devices = devices;
      kind.on_one_gpu = on_one_gpu;
      kinds.push_back(kind);
    }
  }
  return kinds;
}

TrainSettings SettingsOf(const CudaRunKind& kind, const char* device) {
  TrainSettings settings = SmallSettings();
  settings.device = device;
  settings.devices = kind.devices;
  settings.virtual_devices = kind.on_one_gpu && settings.device == "cuda";
  settings.threads = 2;
  settings.model = {.n_layer = 2, .n_head = 2, .n_embd = 24, .seq_len = 11, .vocab_size = 61};
  if (kind.odd_width) settings.model.n_head = 3, settings.model.n_embd = 21;
  if (kind.offload_activations) settings.model.n_layer = 3;  // of which one checkpoint leaves
  settings.steps = 10;
  // Two sequences a step: as two micro-batches, or as one with gradients of the parameters' type.
  const bool whole = kind.checkpointing != kNone || kind.offload_optimizer;
  settings.micro_batch = whole ? 2 : 1;
  settings.grad_accum = whole ? 1 : 2;
  settings.grad_accum_dtype = whole ? kind.dtype : DType::kFloat32;
  settings.eval_interval = 5;
  settings.eval_batches = 1;
  settings.bucket_bytes = 4 << 10;
  settings.dtype = kind.dtype;
  settings.zero_stage = kind.stage;
  settings.activation_checkpointing = kind.checkpointing;
  settings.offload_optimizer = kind.offload_optimizer;
  settings.offload_activations = kind.offload_activations;
  settings.trace_step = kTraceLast;
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
