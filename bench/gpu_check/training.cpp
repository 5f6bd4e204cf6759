// SPDX-License-Identifier: Apache-2.0
//
// MFU: model operations a second, over the nominal peak of bf16. A token is 6 P + 6 L C T
// operations, forward and backward: 2 for each parameter and pass (P with all of them, though
// positions are only looked up), and causal attention's products, half of all pairs (PaLM's
// formula, arXiv:2204.02311, appendix B, has 12 L C T: all pairs). What is computed twice does not
// count.
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/kernel_bench.h"
#include "bench/gpu_check/step_profile.h"
#include "bench/gpu_check/timer.h"
#include "data/dataset.h"
#include "trainer/command_line.h"
#include "trainer/fit.h"
#include "trainer/resolve.h"
#include "trainer/train.h"

namespace zerobox::gpu_check {
namespace {

namespace fs = std::filesystem;

// What a run may not have of the GPU's memory: the context, cuBLASLt, the ops' workspace.
constexpr int64_t kReserve = int64_t{2} << 30;

// A file of tokens, gone when this is.
class TokenData {
 public:
  static absl::StatusOr<std::unique_ptr<TokenData>> Make() {
    std::string folder = (fs::temp_directory_path() / "gpu_check_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot make a folder ", folder));
    }
    return std::unique_ptr<TokenData>(new TokenData(folder));
  }
  ~TokenData() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  TokenData(const TokenData&) = delete;
  TokenData& operator=(const TokenData&) = delete;
  std::string path() const { return (folder_ / "tokens.bin").string(); }

  // As data/dataset.h has token files.
  absl::Status Write(int64_t tokens, int64_t vocabulary) const {
    const std::vector<int32_t> values = RandomTokens(tokens, vocabulary, /*seed=*/7);
    const std::vector<uint16_t> words(values.begin(), values.end());
    std::vector<int32_t> header(256);
    header[0] = 20240520;
    header[1] = 1;
    header[2] = static_cast<int32_t>(tokens);
    std::ofstream file(path(), std::ios::binary);
    const auto write = [&file](const auto& numbers) {
      file.write(reinterpret_cast<const char*>(numbers.data()),
                 static_cast<std::streamsize>(numbers.size() * sizeof(numbers[0])));
    };
    write(header);
    write(words);
    file.close();
    return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path()));
  }

 private:
  explicit TokenData(const std::string& folder) : folder_(folder) {}
  const fs::path folder_;
};

std::vector<std::string> Flags(const TrainingSizes& sizes, int64_t micro_batch, int64_t steps,
                               const Gpu& gpu) {
  const ModelConfig& m = sizes.model;
  // Few chunks of logits: each reads and writes the gradient of the token embedding.
  const int64_t logits_bytes = 8192 * m.vocab_size * SizeOf(DType::kBFloat16);
  return {
      "--device=cuda",
      "--devices=1",
      absl::StrCat("--device_memory=", gpu.memory_bytes - std::min(kReserve, gpu.memory_bytes / 8)),
      "--zero_stage=0",
      "--dtype=bf16",
      absl::StrCat("--n_layer=", m.n_layer),
      absl::StrCat("--n_head=", m.n_head),
      absl::StrCat("--n_embd=", m.n_embd),
      absl::StrCat("--seq_len=", m.seq_len),
      absl::StrCat("--vocab_size=", m.vocab_size),
      absl::StrCat("--logits_bytes=", logits_bytes),
      "--dropout=0",
      absl::StrCat("--micro_batch=", micro_batch),
      absl::StrCat("--steps=", steps),
      "--lr=3e-4",
      "--eval_interval=0"};
}

double Operations(const ModelConfig& m, int64_t parameters) {
  return 6 * static_cast<double>(parameters) +
         6 * static_cast<double>(m.n_layer * m.n_embd * m.seq_len);
}

struct Outcome {
  RunPlan plan;
  RunResult result;
  std::vector<StepProfile::Op> profile;
};

// `flags` as `zerobox train` has them, the same ones in each call. Nothing is saved.
absl::StatusOr<Outcome> TrainWith(std::vector<std::string> flags, int64_t profiled_step) {
  const auto data = TokenData::Make();
  if (!data.ok()) return data.status();
  flags.push_back(absl::StrCat("--data=", (*data)->path()));
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, flags);
  if (!line.ok()) return line.status();
  const Machine machine = ThisMachine();
  const absl::StatusOr<ResolvedTrain> resolved = ResolveTrain(*line, machine);
  if (!resolved.ok()) return resolved.status();
  const TrainSettings& settings = resolved->settings;
  Outcome outcome;
  absl::StatusOr<RunPlan> plan = PlanRun(settings);
  if (!plan.ok()) return plan.status();
  outcome.plan = *std::move(plan);
  if (absl::Status fit = CheckFit(settings, outcome.plan, machine); !fit.ok()) return fit;
  // A tenth is held out.
  const int64_t sequences = settings.steps * settings.global_batch() * 9 / 8 + 8;
  absl::Status written =
      (*data)->Write(sequences * settings.model.seq_len + 1, settings.model.vocab_size);
  if (!written.ok()) return written;
  const auto dataset = Dataset::Open({.train = settings.data,
                                      .validation = "",
                                      .sequence_length = settings.model.seq_len,
                                      .vocabulary = settings.model.vocab_size,
                                      .seed = settings.seed});
  if (!dataset.ok()) return dataset.status();
  StepProfile profile(profiled_step);
  outcome.result =
      Train(settings, outcome.plan, **dataset, nullptr, /*stop_signal=*/nullptr, profile.Hooks());
  if (!outcome.result.status.ok()) return outcome.result.status;
  absl::StatusOr<std::vector<StepProfile::Op>> ops = profile.Take();
  if (!ops.ok()) return ops.status();
  outcome.profile = *std::move(ops);
  return outcome;
}

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

double Show(const TrainingSizes& sizes, int64_t micro_batch, const Outcome& outcome, const Gpu& gpu,
            Report& report) {
  std::vector<double> speeds;
  for (int64_t step = sizes.warm_up; step < sizes.warm_up + sizes.steps; ++step) {
    speeds.push_back(outcome.result.step_metrics[static_cast<size_t>(step)].tokens_per_second);
  }
  const double speed = Median(speeds);
  const double flops = speed * Operations(sizes.model, outcome.plan.parameters);
  report.Measure(
      {.name = absl::StrCat(sizes.name, ", micro-batch ", micro_batch, ": model operations"),
       .time = TimeText(static_cast<double>(micro_batch * sizes.model.seq_len) / speed),
       .measured = FlopsText(flops),
       .bound = gpu.nominal_flops > 0 ? FlopsText(gpu.nominal_flops) : "",
       .share = gpu.nominal_flops > 0 ? flops / gpu.nominal_flops : 0,
       .target = gpu.nominal_flops > 0 ? sizes.target : 0});
  report.Say(absl::StrFormat(
      "  %.0f tokens/s; device memory at its peak %s, planned %s; %d parameters", speed,
      BytesText(static_cast<double>(outcome.result.ranks[0].memory.peak_bytes)),
      BytesText(static_cast<double>(outcome.plan.ranks[0].memory.peak_bytes)),
      outcome.plan.parameters));
  CheckLosses(sizes, outcome.result, report);
  ShowProfile(outcome.profile, report);
  return speed;
}

std::optional<Trained> MeasureModel(const Gpu& gpu, const TrainingSizes& sizes, Report& report) {
  const int64_t profiled = sizes.warm_up + sizes.steps + 1;
  const int64_t steps = profiled + 1;
  for (const int64_t micro_batch : sizes.micro_batches) {
    const std::vector<std::string> flags = Flags(sizes, micro_batch, steps, gpu);
    const absl::StatusOr<Outcome> outcome = TrainWith(flags, profiled);
    if (absl::IsResourceExhausted(outcome.status())) {
      report.Say(absl::StrCat(sizes.name, ", micro-batch ", micro_batch, ": too large (",
                              outcome.status().message(), ")"));
      continue;
    }
    if (!outcome.ok()) {
      report.Fail(outcome.status(), sizes.name);
      return std::nullopt;
    }
    report.Say(absl::StrCat("zerobox train ", absl::StrJoin(flags, " ")));
    return Trained{&sizes, micro_batch, Show(sizes, micro_batch, *outcome, gpu, report)};
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
