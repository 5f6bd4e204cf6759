// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/trial.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "bench/gpu_check/kernel_bench.h"
#include "bench/gpu_check/timer.h"
#include "data/dataset.h"
#include "trainer/command_line.h"
#include "trainer/fit.h"
#include "trainer/resolve.h"

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

}  // namespace

std::vector<std::string> TrialFlags(const TrainingSizes& sizes, int devices, int stage,
                                    int64_t micro_batch, int64_t steps, const Gpu& gpu) {
  const ModelConfig& m = sizes.model;
  // Few chunks of logits: each reads and writes the gradient of the token embedding.
  const int64_t logits_bytes = 8192 * m.vocab_size * SizeOf(DType::kBFloat16);
  return {
      "--device=cuda",
      absl::StrCat("--devices=", devices),
      absl::StrCat("--device_memory=", gpu.memory_bytes - std::min(kReserve, gpu.memory_bytes / 8)),
      absl::StrCat("--zero_stage=", stage),
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

double Operations(const ModelConfig& model, int64_t parameters) {
  return 6 * static_cast<double>(parameters) +
         6 * static_cast<double>(model.n_layer * model.n_embd * model.seq_len);
}

absl::StatusOr<Trial> TrainWith(std::vector<std::string> flags, const TrainHooks& hooks) {
  const auto data = TokenData::Make();
  if (!data.ok()) return data.status();
  flags.push_back(absl::StrCat("--data=", (*data)->path()));
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, flags);
  if (!line.ok()) return line.status();
  const Machine machine = ThisMachine();
  const absl::StatusOr<ResolvedTrain> resolved = ResolveTrain(*line, machine);
  if (!resolved.ok()) return resolved.status();
  const TrainSettings& settings = resolved->settings;
  Trial trial;
  absl::StatusOr<RunPlan> plan = PlanRun(settings);
  if (!plan.ok()) return plan.status();
  trial.plan = *std::move(plan);
  if (absl::Status fit = CheckFit(settings, trial.plan, machine); !fit.ok()) return fit;
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
  trial.result = Train(settings, trial.plan, **dataset, nullptr, /*stop_signal=*/nullptr, hooks);
  if (!trial.result.status.ok()) return trial.result.status;
  return trial;
}

double MedianOf(const TrainingSizes& sizes, const RunResult& result, double StepMetrics::*metric) {
  std::vector<double> values;
  for (int64_t step = sizes.warm_up; step < sizes.warm_up + sizes.steps; ++step) {
    values.push_back(result.step_metrics[static_cast<size_t>(step)].*metric);
  }
  return Median(values);
}

}  // namespace zerobox::gpu_check
