// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/trial.h"
#include "ops/cuda/cuda.h"

namespace zerobox::gpu_check {
namespace {

void CheckRuns(const Sizes& sizes, int devices, bool on_one_gpu, Report& report) {
  for (CudaRunKind kind : sizes.several_runs) {
    kind.devices = devices;
    kind.on_one_gpu = on_one_gpu;
    CheckRun(kind, report);
  }
}

void ShowLinks(int gpus, Report& report) {
  const absl::StatusOr<GpuLinks> links = FindGpuLinks(gpus);
  if (!links.ok()) return report.Fail(links.status(), "how the GPUs reach each other");
  report.Say(absl::StrFormat("%d pairs of GPUs: %d reach each other's memory, %d over NVLink",
                             links->pairs, links->peers, links->nvlinks));
}

// 1, 2, 4, ... and all.
std::vector<int> Counts(int gpus) {
  std::vector<int> counts;
  for (int count = 1; count < gpus; count *= 2) counts.push_back(count);
  counts.push_back(gpus);
  return counts;
}

void ShowScaling(const TrainingSizes& sizes, int count, int stage, const Trial& trial, double alone,
                 const Gpu& gpu, Report& report) {
  const double speed = MedianOf(sizes, trial.result, &StepMetrics::tokens_per_second);
  const double flops = speed * Operations(sizes.model, trial.plan.parameters) / count;
  const int64_t batch =
      trial.result.step_metrics.back().tokens / static_cast<int64_t>(trial.result.steps);
  const double step = static_cast<double>(batch) / speed;
  const double exposed = MedianOf(sizes, trial.result, &StepMetrics::exposed_seconds);
  report.Measure(
      {.name = absl::StrFormat("%d x GPU, ZeRO-%d: %.0f tokens/s, exposed %s (%.0f%%)", count,
                               stage, speed, TimeText(exposed), 100 * exposed / step),
       .time = TimeText(step),
       .measured = FlopsText(flops),
       .bound = gpu.nominal_flops > 0 ? FlopsText(gpu.nominal_flops) : "",
       .share = gpu.nominal_flops > 0 ? flops / gpu.nominal_flops : 0});
  if (count > 1) {
    report.Say(absl::StrFormat("  %.0f%% of %d times as fast as one GPU",
                               100 * speed / (count * alone), count));
  }
}

absl::StatusOr<Trial> Run(const TrainingSizes& sizes, int count, int stage, int64_t micro_batch,
                          const Gpu& gpu) {
  return TrainWith(TrialFlags(sizes, count, stage, micro_batch, sizes.warm_up + sizes.steps, gpu),
                   {});
}

// Every number of GPUs and stage, at the largest micro-batch that fits one GPU.
void MeasureScaling(const TrainingSizes& sizes, const Gpu& gpu, Report& report) {
  absl::StatusOr<Trial> trial = absl::ResourceExhaustedError("no micro-batch fits this GPU");
  int64_t micro_batch = 0;
  for (size_t i = 0; i < sizes.micro_batches.size() && absl::IsResourceExhausted(trial.status());
       ++i) {
    micro_batch = sizes.micro_batches[i];
    trial = Run(sizes, /*count=*/1, /*stage=*/0, micro_batch, gpu);
  }
  if (!trial.ok()) return report.Fail(trial.status(), sizes.name);
  report.Say(absl::StrCat(sizes.name, ", micro-batch ", micro_batch, " on each GPU"));
  const double alone = MedianOf(sizes, trial->result, &StepMetrics::tokens_per_second);
  ShowScaling(sizes, /*count=*/1, /*stage=*/0, *trial, alone, gpu, report);
  for (const int count : Counts(gpu.count)) {
    for (int stage = 0; stage <= 3 && count > 1; ++stage) {
      trial = Run(sizes, count, stage, micro_batch, gpu);
      if (!trial.ok()) return report.Fail(trial.status(), sizes.name);
      ShowScaling(sizes, count, stage, *trial, alone, gpu, report);
    }
  }
}

}  // namespace

void CheckSeveral(const Gpu& gpu, const Sizes& sizes, Report& report) {
  report.BeginTable("largest relative difference of losses");
  for (const int ranks : sizes.virtual_ranks) CheckRuns(sizes, ranks, /*on_one_gpu=*/true, report);
  if (gpu.count < 2) {
    return report.Say("skipped: several GPUs; there is one, which was several ranks' above");
  }
  ShowLinks(gpu.count, report);
  if (const absl::Status nccl = CheckNccl(); !nccl.ok()) return report.Fail(nccl, "NCCL");
  for (const int count : Counts(gpu.count)) {
    if (count > 1) CheckRuns(sizes, count, /*on_one_gpu=*/false, report);
  }
  report.BeginTable("step, operations a second of each GPU");
  MeasureScaling(sizes.training.front(), gpu, report);
}

}  // namespace zerobox::gpu_check
