// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing and the offload of checkpoints change where activations are, never what
// is computed: the same bits, and by literal formulas fewer bytes. The head's chunks of logits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/expected_bytes.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using enum ActivationCheckpointing;

constexpr int64_t kTokens = 17;  // one sequence
constexpr int64_t kWidth = 33;
constexpr int64_t kHeads = 3;
constexpr int64_t kVocabulary = 101;
constexpr int64_t kLayers = 5;

int64_t Aligned(int64_t bytes) { return (bytes + 127) / 128 * 128; }

std::vector<uint64_t> Bits(const RunResult& result) {
  std::vector<uint64_t> bits;
  for (const StepMetrics& step : result.step_metrics) {
    bits.push_back(std::bit_cast<uint64_t>(step.loss));
    bits.push_back(std::bit_cast<uint64_t>(step.grad_norm));
    bits.push_back(std::bit_cast<uint64_t>(step.clip));
  }
  for (const EvalMetrics& eval : result.eval_metrics) {
    bits.push_back(std::bit_cast<uint64_t>(eval.val_loss));
  }
  return bits;
}

int64_t Of(const PerCategory<int64_t>& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

TrainSettings Settings() {
  TrainSettings settings = SmallSettings();
  settings.model.n_layer = kLayers;
  settings.devices = 1;
  settings.steps = 4;
  settings.eval_interval = 3;
  settings.eval_batches = 1;
  return settings;
}

struct Types {
  DType dtype = DType::kFloat32;
  DType gradients = DType::kFloat32;
  int64_t width() const { return dtype == DType::kFloat32 ? 4 : 2; }
};

// What a block's checkpoint occupies, and what of it is copied.
int64_t CheckpointBytes(ActivationCheckpointing mode, int64_t width) {
  if (mode == kNone) return 0;
  if (mode == kFull) return Aligned(kTokens * width * kWidth);
  return Aligned(kTokens * width * 10 * kWidth) + Aligned(kTokens * 4 * kHeads);
}
int64_t CopiedCheckpointBytes(ActivationCheckpointing mode, int64_t width) {
  return mode == kFull ? kTokens * width * kWidth : kTokens * (width * 10 * kWidth + 4 * kHeads);
}

// What only a run with these settings does.
void ExpectWitness(const SmallRun& run, const TrainSettings& settings, const SmallRun& reference,
                   int64_t width) {
  const ActivationCheckpointing mode = settings.activation_checkpointing;
  const ExpectedBytes expected(settings);
  for (int rank = 0; rank < settings.devices; ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    const RankResult& measured = run.result.ranks[rank];
    const Ledger& memory = measured.memory;
    const int64_t slots = mode == kNone ? 0 : settings.offload_activations ? 2 : kLayers;
    EXPECT_EQ(Of(memory.peak, Category::kActivationCheckpoints),
              slots * CheckpointBytes(mode, width));
    EXPECT_EQ(Of(memory.live, Category::kActivationCheckpoints), 0);
    EXPECT_EQ(Of(memory.live, Category::kActivations), 0);
    EXPECT_EQ(Of(memory.peak, Category::kActivations), expected.ActivationsPeak());
    EXPECT_EQ(memory.at_peak, expected.AtPeak());
    EXPECT_EQ(memory.at_peak, run.plan.ranks[rank].memory.at_peak);
    const Ledger& whole = reference.result.ranks[rank].memory;
    EXPECT_EQ(Of(memory.peak, Category::kActivations) < Of(whole.peak, Category::kActivations),
              mode != kNone);

    const int64_t away = settings.offload_activations ? kLayers - 2 : 0;
    EXPECT_EQ(Of(measured.host_memory.live, Category::kActivationCheckpoints),
              away * CheckpointBytes(mode, width));
    EXPECT_EQ(measured.host_memory.live, expected.PersistentOnHost());
    EXPECT_EQ(measured.host_memory.live, run.plan.ranks[rank].host_memory.live);
    const int64_t copied = settings.grad_accum * away * CopiedCheckpointBytes(mode, width);
    if (!settings.offload_optimizer) {
      const CopiedBytes more = measured.step_copies - reference.result.ranks[rank].step_copies;
      EXPECT_EQ(more.to_host, copied);
      EXPECT_EQ(more.from_host, copied);
    }
    EXPECT_EQ(measured.step_copies.to_host, expected.ToHost());
    EXPECT_EQ(measured.step_copies.from_host, expected.FromHost());
    EXPECT_EQ(measured.step_copies, run.plan.ranks[rank].step_copies);
  }
}

struct Case {
  int devices;
  Types types;
};

class Checkpointing : public testing::TestWithParam<Case> {
 protected:
  TrainSettings Settings() const {
    TrainSettings settings = zerobox::Settings();
    settings.devices = GetParam().devices;
    settings.dtype = GetParam().types.dtype;
    settings.grad_accum_dtype = GetParam().types.gradients;
    return settings;
  }
};

TEST_P(Checkpointing, AndOffloadDoNotChangeABit) {
  for (const int64_t m : {1, 3}) {
    SmallRun reference;
    for (int stage = 0; stage <= 3; ++stage) {
      TrainSettings settings = Settings();
      settings.zero_stage = stage;
      settings.grad_accum = m;
      // Several micro-batches are summed on the device, then over devices, or the other way round.
      if (stage == 0 || (m > 1 && stage == 2)) {
        reference = RunSmall(settings);
        ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
        ASSERT_EQ(reference.result.eval_metrics.size(), 2u);
      }
      for (const ActivationCheckpointing mode : {kNone, kSelective, kFull}) {
        for (const bool activations : {false, true}) {
          if (activations && mode == kNone) continue;
          for (const bool optimizer : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << "stage " << stage << ", m = " << m << ", checkpointing "
                         << static_cast<int>(mode) << (activations ? ", activations" : "")
                         << (optimizer ? ", optimizer" : ""));
            settings.activation_checkpointing = mode;
            settings.offload_activations = activations;
            settings.offload_optimizer = optimizer;
            const SmallRun run = RunSmall(settings);
            ASSERT_TRUE(run.result.status.ok()) << run.result.status;
            EXPECT_EQ(Bits(run.result), Bits(reference.result));
            EXPECT_TRUE(run.parameters == reference.parameters);  // too much to print
            ExpectWitness(run, settings, reference, GetParam().types.width());
          }
        }
      }
    }
  }
}

constexpr Types kFp32 = {};
std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const auto& [devices, types] = info.param;
  return std::to_string(devices) + "_" + std::string(Name(types.dtype)) + "_" +
         std::string(Name(types.gradients));
}

constexpr Types kBf16 = {DType::kBFloat16, DType::kBFloat16};
constexpr Types kBf16SummedInFp32 = {DType::kBFloat16, DType::kFloat32};
INSTANTIATE_TEST_SUITE_P(Devices, Checkpointing,
                         testing::Values(Case{1, kFp32}, Case{2, kFp32}, Case{4, kFp32},
                                         Case{2, kBf16}, Case{3, kBf16}, Case{8, kBf16},
                                         Case{4, kBf16SummedInFp32}),
                         NameOf);

// L inputs of blocks, and one block: what its forward computes again, with what its backward needs
// on top of it, which is most in the MLP; and the residual stream's gradient. No other copy of the
// stream. Wide logits or a long head would hide it, so the vocabulary is small.
TEST(Checkpointing, InFullPeaksAtTheInputsOfAllBlocksAndOneBlock) {
  for (const double dropout : {0.0, 0.1}) {
    for (const int64_t layers : {1, 2, 4, 7}) {
      SCOPED_TRACE(testing::Message() << layers << " layers, dropout " << dropout);
      TrainSettings settings = Settings();
      settings.activation_checkpointing = kFull;
      settings.dropout = dropout;
      settings.model.n_layer = layers;
      const SmallRun run = RunSmall(settings);
      ASSERT_TRUE(run.result.status.ok()) << run.result.status;
      const int64_t row = Aligned(4 * kTokens);
      const int64_t stream = Aligned(4 * kTokens * kWidth);
      const int64_t recomputed = 4 * stream + 4 * row +               // norms, attention, residual
                                 Aligned(4 * kTokens * 3 * kWidth) +  // qkv
                                 Aligned(4 * kTokens * kHeads) +      // logsumexp
                                 2 * Aligned(4 * kTokens * 4 * kWidth);  // MLP around GELU
      const int64_t temporaries =
          Aligned(4 * kTokens * 4 * kWidth) + (dropout > 0 ? 2 : 1) * stream;
      const PerCategory<int64_t>& at_peak = run.result.ranks[0].memory.at_peak;
      EXPECT_EQ(Of(at_peak, Category::kActivationCheckpoints), layers * stream);
      EXPECT_EQ(Of(at_peak, Category::kActivations), recomputed + temporaries + stream);
    }
  }
}

TEST(Checkpointing, NeverKeepsMoreForAnEvaluationThanForTraining) {
  for (const ActivationCheckpointing mode : {kNone, kSelective, kFull}) {
    for (const bool offload : {false, true}) {
      for (const int64_t layers : {1, 2, 5}) {
        for (const int64_t vocabulary : {int64_t{2}, kVocabulary, int64_t{5003}}) {
          if (offload && mode == kNone) continue;
          TrainSettings settings = Settings();
          settings.model.n_layer = layers;
          settings.model.vocab_size = vocabulary;
          settings.activation_checkpointing = mode;
          settings.offload_activations = offload;
          settings.dropout = 0;
          for (const int64_t logits_bytes : {int64_t{1}, int64_t{64} << 20}) {
            settings.logits_bytes = logits_bytes;
            settings.eval_interval = 0;
            const absl::StatusOr<RunPlan> without = PlanRun(settings);
            settings.eval_interval = 1;
            const absl::StatusOr<RunPlan> with = PlanRun(settings);
            ASSERT_TRUE(with.ok() && without.ok());
            EXPECT_EQ(with->ranks[0].memory.peak, without->ranks[0].memory.peak);
            EXPECT_EQ(with->ranks[0].regions, without->ranks[0].regions);
          }
        }
      }
    }
  }
}

TEST(Checkpointing, ReadsNothingOfFreshMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const ActivationCheckpointing mode : {kSelective, kFull}) {
      for (const bool offload : {false, true}) {
        TrainSettings settings = Settings();
        settings.dtype = dtype;
        settings.grad_accum = 2;
        settings.activation_checkpointing = mode;
        settings.offload_activations = offload;
        settings.logits_bytes = 2048;  // a few rows
        const SmallRun reference = RunSmall(settings);
        const SmallRun run = RunSmall(settings, {.poison = true});
        ASSERT_TRUE(run.result.status.ok()) << run.result.status;
        EXPECT_GT(run.result.ranks[0].poisoned_bytes, 0);
        EXPECT_EQ(Bits(run.result), Bits(reference.result));
        EXPECT_TRUE(run.parameters == reference.parameters);
      }
    }
  }
}

// Chunks of 5 rows do not divide 17.
TEST(Logits, StayWithinTheirBudgetAndLeaveTheLossAsItIs) {
  TrainSettings settings = Settings();
  settings.model.vocab_size = 4001;  // so that logits are the peak
  settings.activation_checkpointing = kFull;
  settings.logits_bytes = int64_t{64} << 20;
  const SmallRun reference = RunSmall(settings);
  ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
  const int64_t row = 4 * settings.model.vocab_size;
  EXPECT_EQ(Of(reference.result.ranks[0].memory.peak, Category::kActivations),
            ExpectedBytes(settings).ActivationsPeak());
  const struct {
    int64_t budget, rows;
  } cases[] = {{6 * row - 1, 5}, {row, 1}, {row - 1, 1}, {1, 1}};
  for (const auto& [budget, rows] : cases) {
    SCOPED_TRACE(testing::Message() << "a budget of " << budget << " bytes");
    settings.logits_bytes = budget;
    const SmallRun run = RunSmall(settings);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    EXPECT_EQ(run.result.step_metrics[0].loss, reference.result.step_metrics[0].loss);
    ASSERT_EQ(run.result.step_metrics.size(), reference.result.step_metrics.size());
    for (size_t step = 0; step < run.result.step_metrics.size(); ++step) {
      const double difference =
          run.result.step_metrics[step].loss - reference.result.step_metrics[step].loss;
      EXPECT_TRUE(std::abs(difference) <= 1e-6) << "step " << step + 1 << ": " << difference;
    }
    const double difference =
        run.result.eval_metrics[0].val_loss - reference.result.eval_metrics[0].val_loss;
    EXPECT_TRUE(std::abs(difference) <= 1e-6) << difference;

    EXPECT_EQ(Of(run.result.ranks[0].memory.peak, Category::kActivations),
              ExpectedBytes(settings).ActivationsPeak());
    // At the head: that chunk instead of 17 rows. Elsewhere it does not matter.
    if (rows == 5) {
      EXPECT_EQ(Of(reference.result.ranks[0].memory.peak, Category::kActivations) -
                    Of(run.result.ranks[0].memory.peak, Category::kActivations),
                Aligned(17 * row) - Aligned(rows * row));
    }
  }
}

}  // namespace
}  // namespace zerobox
