// SPDX-License-Identifier: Apache-2.0
//
// Whole training steps: tokens a second and the share of the machine's peak of multiply-adds in
// fp32, measured in the same run, before and after. (In bf16 it can be more than all of it, on a
// CPU with instructions for bf16.) `utilisation` counts the operations that causal attention needs:
// 6 N' + 6 L H Q T a token (N' parameters without the position embedding, H heads of Q channels, T
// positions), forward and backward.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/peak.h"
#include "data/dataset.h"
#include "trainer/train.h"

#if HWY_ONCE
namespace zerobox {
namespace {

// Tokens without meaning: a step costs the same whatever they are.
class Noise final : public Dataset {
 public:
  explicit Noise(int64_t vocabulary) : vocabulary_(vocabulary) {}
  int64_t train_tokens() const override { return 1 << 30; }
  int64_t train_sequences() const override { return 1 << 20; }
  int64_t validation_sequences() const override { return 1; }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    for (size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = Token(position, t);
      targets[t] = Token(position, t + 1);
    }
  }
  int64_t TrainTargets(int64_t) const override { return 1; }
  int64_t Epoch(int64_t) const override { return 0; }
  int64_t TrainSequence(int64_t position) const override { return position; }
  void Validation(int64_t, std::span<int32_t>, std::span<int32_t>) const override {}

 private:
  int32_t Token(int64_t position, size_t t) const {
    return static_cast<int32_t>((position * 131 + static_cast<int64_t>(t) * 71) % vocabulary_);
  }
  int64_t vocabulary_;
};

struct Case {
  const char* name;
  ModelConfig model;
  DType dtype;
  int devices;
  int stage;
  int64_t micro_batch;
  int64_t steps;
};

double OperationsPerToken(const ModelConfig& m) {
  const auto l = static_cast<double>(m.n_layer), c = static_cast<double>(m.n_embd);
  const double parameters = l * 12 * c * c + static_cast<double>(m.vocab_size) * c;
  return 6 * parameters + 6 * l * c * static_cast<double>(m.seq_len);
}

// The median step, after two to warm up.
double TokensPerSecond(const Case& c, int threads) {
  TrainSettings settings;
  settings.devices = c.devices;
  settings.threads = threads;
  settings.zero_stage = c.stage;
  settings.model = c.model;
  settings.dtype = settings.grad_accum_dtype = c.dtype;
  settings.micro_batch = c.micro_batch;
  settings.steps = c.steps + 2;
  settings.optimizer.total_steps = settings.steps;
  settings.eval_interval = 0;
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  if (!plan.ok()) return 0;
  const RunResult result = Train(settings, *plan, Noise(c.model.vocab_size), nullptr, nullptr);
  if (!result.status.ok()) {
    std::fprintf(stderr, "%s\n", result.status.ToString().c_str());
    return 0;
  }
  std::vector<double> speeds;
  for (size_t i = 2; i < result.step_metrics.size(); ++i) {
    speeds.push_back(result.step_metrics[i].tokens_per_second);
  }
  std::nth_element(speeds.begin(), speeds.begin() + speeds.size() / 2, speeds.end());
  return speeds[speeds.size() / 2];
}

int Main() {
  const int threads = std::max(1U, std::thread::hardware_concurrency());
  const ModelConfig tiny;
  const ModelConfig wide{
      .n_layer = 6, .n_head = 6, .n_embd = 384, .seq_len = 256, .vocab_size = 256};
  const ModelConfig gpt2{
      .n_layer = 12, .n_head = 12, .n_embd = 768, .seq_len = 256, .vocab_size = 50257};
  constexpr DType kFp32 = DType::kFloat32, kBf16 = DType::kBFloat16;
  const Case cases[] = {
      {"tiny, 4 devices, ZeRO-3, fp32", tiny, kFp32, 4, 3, 4, 30},
      {"tiny, 4 devices, ZeRO-3, bf16", tiny, kBf16, 4, 3, 4, 30},
      {"L6 C384 T256, 1 device, fp32", wide, kFp32, 1, 0, 8, 5},
      {"L6 C384 T256, 1 device, bf16", wide, kBf16, 1, 0, 8, 5},
      {"L6 C384 T256, 2 devices, ZeRO-0, fp32", wide, kFp32, 2, 0, 4, 5},
      {"L6 C384 T256, 2 devices, ZeRO-3, fp32", wide, kFp32, 2, 3, 4, 5},
      {"L6 C384 T256, 2 devices, ZeRO-3, bf16", wide, kBf16, 2, 3, 4, 5},
      {"GPT-2 124M T256, 2 devices, ZeRO-3, fp32", gpt2, kFp32, 2, 3, 2, 3},
      {"GPT-2 124M T256, 2 devices, ZeRO-3, bf16", gpt2, kBf16, 2, 3, 2, 3},
  };
  absl::PrintF("Training on %d threads; utilisation = causal operations / the peak beside it\n",
               threads);
  absl::PrintF("  %-42s %14s %14s %12s\n", "", "tokens/s", "peak GFLOP/s", "utilisation");
  for (const Case& c : cases) {
    const double before = peak::PeakFlops(threads);
    const double speed = TokensPerSecond(c, threads);
    const double peak = std::max(before, peak::PeakFlops(threads));
    absl::PrintF("  %-42s %14.0f %14.0f %11.0f%%\n", c.name, speed, peak / 1e9,
                 100 * speed * OperationsPerToken(c.model) / peak);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace zerobox

int main() { return zerobox::Main(); }
#endif  // HWY_ONCE
