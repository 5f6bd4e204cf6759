// SPDX-License-Identifier: Apache-2.0
#include "tests/small_run.h"

#include <bit>
#include <utility>

#include "ops/philox.h"

namespace zerobox {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  const PhiloxBlock block = Philox({static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                                    static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32)},
                                   /*key=*/2024);
  return uint64_t{block[0]} << 32 | block[1];
}

}  // namespace

SyntheticDataset::SyntheticDataset(int64_t sequence_length, int64_t vocabulary)
    : sequence_length_(sequence_length), vocabulary_(vocabulary) {}

int32_t SyntheticDataset::Token(int64_t sequence, int64_t t) const {
  // Mostly a walk with a stride of the sequence's own, so that there is something to learn.
  const auto noise = static_cast<int64_t>(Mix(sequence, t) % 4 == 0 ? Mix(t, sequence) % 7 : 0);
  const auto start = static_cast<int64_t>(Mix(sequence, 1 << 20) % 1000);
  return static_cast<int32_t>((start + t * 3 + noise) % vocabulary_);
}

void SyntheticDataset::Train(int64_t position, std::span<int32_t> inputs,
                             std::span<int32_t> targets) const {
  for (int64_t t = 0; t < sequence_length_; ++t) {
    inputs[t] = Token(TrainSequence(position), t);
    targets[t] = ignored_ && ignored_(position, t) ? -1 : Token(TrainSequence(position), t + 1);
  }
}

int64_t SyntheticDataset::TrainTargets(int64_t position) const {
  int64_t targets = 0;
  for (int64_t t = 0; t < sequence_length_; ++t) targets += !(ignored_ && ignored_(position, t));
  return targets;
}

void SyntheticDataset::Validation(int64_t sequence, std::span<int32_t> inputs,
                                  std::span<int32_t> targets) const {
  for (int64_t t = 0; t < sequence_length_; ++t) {
    inputs[t] = Token(train_sequences() + sequence, t);
    targets[t] = Token(train_sequences() + sequence, t + 1);
  }
}

void SyntheticDataset::IgnoreTargets(std::function<bool(int64_t, int64_t)> ignored) {
  ignored_ = std::move(ignored);
}

TrainSettings SmallSettings() {
  TrainSettings settings;
  settings.devices = 4;
  settings.threads = 1;
  settings.device_memory_bytes = int64_t{64} << 20;
  settings.model = {.n_layer = 2, .n_head = 3, .n_embd = 33, .seq_len = 17, .vocab_size = 101};
  settings.dropout = 0.1;
  settings.micro_batch = 1;
  settings.steps = 30;
  settings.optimizer.learning_rate = 3e-3;
  settings.optimizer.min_learning_rate = 3e-4;
  settings.optimizer.warmup_steps = 2;
  settings.optimizer.total_steps = 30;
  settings.optimizer.clip_norm = 1.94;
  settings.eval_interval = 0;
  settings.eval_batches = 2;
  return settings;
}

SmallRun RunSmall(const TrainSettings& settings, TrainHooks hooks) {
  const SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  return RunSmall(settings, dataset, std::move(hooks));
}

SmallRun RunSmall(const TrainSettings& settings, const Dataset& dataset, TrainHooks hooks) {
  SmallRun run;
  absl::StatusOr<RunPlan> plan = PlanRun(settings);
  if (!plan.ok()) {
    run.result.status = plan.status();
    return run;
  }
  run.plan = *std::move(plan);
  if (!hooks.parameter) {
    hooks.parameter = [&run](const std::string& name, const float* values, int64_t elements) {
      run.parameters[name].assign(values, values + elements);
    };
  }
  run.result = Train(settings, run.plan, dataset, nullptr, nullptr, hooks);
  return run;
}

bool RandomlyIgnored(int64_t position, int64_t t) { return Mix(position, 7919 + t) % 3 == 0; }

std::vector<uint64_t> Bits(const RunResult& result) {
  std::vector<uint64_t> bits;
  for (const StepMetrics& step : result.step_metrics) {
    for (const double value : {step.loss, step.grad_norm, step.clip}) {
      bits.push_back(std::bit_cast<uint64_t>(value));
    }
  }
  for (const EvalMetrics& eval : result.eval_metrics) {
    bits.push_back(std::bit_cast<uint64_t>(eval.val_loss));
  }
  return bits;
}

int64_t LiveBytes(const SmallRun& run, int rank, Category category) {
  return run.result.ranks[rank].memory.live[static_cast<int>(category)];
}

const CollectiveCount& Counted(const SmallRun& run, int rank, Collective collective) {
  return run.result.ranks[rank].step_traffic.collectives[static_cast<int>(collective)];
}

}  // namespace zerobox
