// SPDX-License-Identifier: Apache-2.0
//
// MFU: model operations a second, over the nominal peak of bf16. A token is 6 P + 6 L C T
// operations, forward and backward: 2 for each parameter and pass (P with all of them, though
// positions are only looked up), and causal attention's products, half of all pairs (PaLM's
// formula, arXiv:2204.02311, appendix B, has 12 L C T: all pairs). What is computed twice does not
// count.
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/step_profile.h"
#include "bench/gpu_check/trial.h"

namespace zerobox::gpu_check {
namespace {

// Of tokens that are noise little can be learned: the loss begins near log V, and does not grow.
void CheckLosses(const TrainingSizes& sizes, const RunResult& result, Report& report) {
  const double expected = std::log(static_cast<double>(sizes.model.vocab_size));
  const double first = result.step_metrics.front().loss, last = result.step_metrics.back().loss;
  const std::string where =
      absl::StrFormat("first %.3f, last %.3f, log V %.3f", first, last, expected);
  report.Check(absl::StrCat(sizes.name, ": first loss beside log V"),
               std::abs(first / expected - 1), 0.1, where);
  report.Check(absl::StrCat(sizes.name, ": last loss over the first"), last / first, 1.02, where);
}

void ShowProfile(const std::vector<StepProfile::Op>& profile, Report& report) {
  double all = 0;
  for (const StepProfile::Op& op : profile) all += op.seconds;
  report.BeginTable("  one step, by op");
  for (const StepProfile::Op& op : profile) {
    report.Measure({.name = absl::StrCat("  ", op.count, " x ", op.name),
                    .time = TimeText(op.seconds),
                    .measured = "",
                    .bound = "",
                    .share = op.seconds / all});
  }
}

double Show(const TrainingSizes& sizes, int64_t micro_batch, const Trial& trial, const Gpu& gpu,
            Report& report) {
  const double speed = MedianOf(sizes, trial.result, &StepMetrics::tokens_per_second);
  const double flops = speed * Operations(sizes.model, trial.plan.parameters);
  report.Measure(
      {.name = absl::StrCat(sizes.name, ", micro-batch ", micro_batch, ": model operations"),
       .time = TimeText(static_cast<double>(micro_batch * sizes.model.seq_len) / speed),
       .measured = FlopsText(flops),
       .bound = gpu.nominal_flops > 0 ? FlopsText(gpu.nominal_flops) : "",
       .share = gpu.nominal_flops > 0 ? flops / gpu.nominal_flops : 0,
       .target = gpu.nominal_flops > 0 ? sizes.target : 0});
  report.Say(absl::StrFormat(
      "  %.0f tokens/s; device memory at its peak %s, planned %s; %d parameters", speed,
      BytesText(static_cast<double>(trial.result.ranks[0].memory.peak_bytes)),
      BytesText(static_cast<double>(trial.plan.ranks[0].memory.peak_bytes)),
      trial.plan.parameters));
  CheckLosses(sizes, trial.result, report);
  return speed;
}

std::optional<Trained> MeasureModel(const Gpu& gpu, const TrainingSizes& sizes, Report& report) {
  const int64_t profiled = sizes.warm_up + sizes.steps + 1;
  const int64_t steps = profiled + 1;
  for (const int64_t micro_batch : sizes.micro_batches) {
    const std::vector<std::string> flags =
        TrialFlags(sizes, /*devices=*/1, /*stage=*/0, micro_batch, steps, gpu);
    StepProfile profile(profiled);
    const absl::StatusOr<Trial> trial = TrainWith(flags, profile.Hooks());
    if (absl::IsResourceExhausted(trial.status())) {
      report.Say(absl::StrCat(sizes.name, ", micro-batch ", micro_batch, ": too large (",
                              trial.status().message(), ")"));
      continue;
    }
    const absl::StatusOr<std::vector<StepProfile::Op>> ops = profile.Take();
    if (const absl::Status status = trial.ok() ? ops.status() : trial.status(); !status.ok()) {
      report.Fail(status, sizes.name);
      return std::nullopt;
    }
    report.Say(absl::StrCat("zerobox train ", absl::StrJoin(flags, " ")));
    const double speed = Show(sizes, micro_batch, *trial, gpu, report);
    ShowProfile(*ops, report);
    return Trained{&sizes, micro_batch, speed};
  }
  report.Fail(absl::ResourceExhaustedError("no micro-batch fits this GPU"), sizes.name);
  return std::nullopt;
}

}  // namespace

std::vector<Trained> MeasureTraining(const Gpu& gpu, const Sizes& sizes, Report& report) {
  report.Say("MFU = tokens/s x (6 P + 6 L C T) / peak");
  std::vector<Trained> all;
  for (const TrainingSizes& model : sizes.training) {
    report.BeginTable("model");
    const std::optional<Trained> trained = MeasureModel(gpu, model, report);
    if (trained) all.push_back(*trained);
  }
  return all;
}

}  // namespace zerobox::gpu_check
