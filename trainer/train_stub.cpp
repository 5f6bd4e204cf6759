// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include "data/count_model.h"
#include "ops/host/matmul.h"
#include "trainer/train.h"
namespace zerobox {
absl::StatusOr<RunPlan> PlanRun(const TrainSettings& s) {
  RunPlan p;
  const auto& m = s.model;
  p.parameters = m.vocab_size * m.n_embd + m.seq_len * m.n_embd +
                 m.n_layer * (12 * m.n_embd * m.n_embd + 13 * m.n_embd) + 2 * m.n_embd;
  p.padding = 512;
  for (int r = 0; r < s.devices; ++r) {
    RankPlan k;
    int64_t n = s.devices, e = p.parameters + p.padding;
    auto add = [&](Category c, int64_t b) {
      k.memory.live[(size_t)c] += b;
      k.memory.at_peak[(size_t)c] += b;
      k.memory.peak[(size_t)c] += b;
      k.memory.peak_bytes += b;
      k.memory.live_bytes += b;
    };
    add(Category::kParameters, 4 * e / (s.zero_stage > 2 ? n : 1));
    add(Category::kGradients, 4 * e / (s.zero_stage > 1 ? n : 1));
    add(Category::kOptimizerStates, 8 * e / (s.zero_stage > 0 ? n : 1));
    add(Category::kActivations,
        s.micro_batch * m.seq_len * (m.n_layer * 34 * m.n_embd + 2 * m.vocab_size) * 4);
    add(Category::kCommunicationBuffers, n > 1 ? 1234567 : 0);
    add(Category::kWorkspace, 1024);
    k.regions[0] = k.memory.peak_bytes;
    k.live = k.memory.live;
    if (n > 1) {
      k.step_traffic.collectives[0] = {12, 4 * e * (n - 1) / n};
      k.step_traffic.collectives[1] = {6, 4 * e * (n - 1) / n};
      k.step_traffic.scalars = {3, 96};
      p.paper_bytes[0] = p.paper_bytes[1] = 4 * p.parameters * (n - 1) / n;
    }
    p.ranks.push_back(k);
  }
  p.differences.push_back(
      {Collective::kAllGather, "padding", 4 * p.padding * (s.devices - 1) / s.devices});
  p.notes.push_back({Category::kCommunicationBuffers,
                     "gradient of the ends (token and position embedding, final norm), whole",
                     182000});
  int i = 0;
  auto v = [&](Pass ps, std::string l, int u, bool need, bool keep) {
    p.program.push_back({i++, ps, l, u, need, keep});
  };
  v(Pass::kForward, "lookup", 0, true, false);
  for (int b = 0; b < m.n_layer; ++b)
    v(Pass::kForward, "block " + std::to_string(b), b + 1, true, b + 1 == m.n_layer);
  v(Pass::kForward, "head", 0, true, true);
  v(Pass::kBackward, "head", 0, true, false);
  for (int b = (int)m.n_layer - 1; b >= 0; --b)
    v(Pass::kBackward, "block " + std::to_string(b), b + 1, true, false);
  v(Pass::kBackward, "lookup", 0, false, false);
  return p;
}
RunResult Train(const TrainSettings& s, const RunPlan& plan, const Dataset&, RunObserver* o,
                const std::function<int()>& stop, const TrainHooks&) {
  RunResult r;
  for (int64_t i = 1; i <= s.steps; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    StepMetrics m{.step = i,
                  .loss = 5.5 / (1 + 0.01 * (double)i) + 0.1,
                  .grad_norm = 0.61,
                  .clip = 1,
                  .lr = 1e-3,
                  .tokens = i * 2048,
                  .position = i * 16,
                  .epoch = 0,
                  .tokens_per_second = 12345,
                  .step_seconds = 0.02};
    r.step_metrics.push_back(m);
    o->OnStep(m);
    r.steps = i;
    if (s.eval_interval && (i % s.eval_interval == 0 || i == s.steps)) {
      EvalMetrics e{i, m.loss + 0.1};
      r.eval_metrics.push_back(e);
      o->OnEval(e);
    }
    if (stop()) {
      r.stopped_by_signal = stop();
      break;
    }
  }
  for (auto& k : plan.ranks) {
    RankResult q;
    q.memory = k.memory;
    q.capacity_bytes = s.device_memory_bytes;
    q.step_traffic = k.step_traffic;
    r.ranks.push_back(q);
  }
  r.sample_text = "\nOnce upon a time\x01 there was a\nhacker.";
  r.validation_sequences = {0};
  std::ofstream(s.out + "/model.safetensors") << "x";
  return r;
}
absl::StatusOr<std::string> Sample(const SampleSettings& s, const ModelConfig&) {
  return s.prompt + "text";
}
__attribute__((weak)) absl::Status LoadMatmul() { return absl::OkStatus(); }
namespace {
struct D : Dataset {
  int64_t n, T;
  int64_t train_tokens() const override { return n; }
  int64_t train_sequences() const override { return n / T; }
  int64_t validation_sequences() const override { return 1; }
  void Train(int64_t, std::span<int32_t>, std::span<int32_t>) const override {}
  int64_t TrainTargets(int64_t) const override { return T; }
  int64_t Epoch(int64_t) const override { return 0; }
  int64_t TrainSequence(int64_t) const override { return 0; }
  void Validation(int64_t, std::span<int32_t>, std::span<int32_t>) const override {}
  void IgnoreTargets(std::function<bool(int64_t, int64_t)>) override {}
};
}  // namespace
__attribute__((weak)) absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(
    const DataSettings& s) {
  std::ifstream f(s.train, std::ios::ate);
  if (!f) return absl::NotFoundError(s.train + ": missing");
  auto d = std::make_unique<D>();
  d->n = (int64_t)f.tellg();
  d->T = s.sequence_length;
  return d;
}
__attribute__((weak)) absl::StatusOr<double> CountModelLoss(const Dataset&, int64_t, int64_t, int c,
                                                            std::span<const int64_t>) {
  return 3.3 - c * 0.6;
}
__attribute__((weak)) std::string_view Name(Category c) {
  const char* n[] = {"parameters",
                     "gradients",
                     "optimizer_states",
                     "activations",
                     "activation_checkpoints",
                     "communication_buffers",
                     "workspace"};
  return n[(int)c];
}
__attribute__((weak)) std::string_view Name(Collective c) {
  const char* n[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"};
  return n[(int)c];
}
}  // namespace zerobox
