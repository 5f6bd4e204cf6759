// SPDX-License-Identifier: Apache-2.0
//
// The stage changes who keeps what, never the mathematics: losses, gradient norms and trained
// parameters are compared bit by bit, and each run shows by its own counters that it was what its
// settings say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int64_t kDefaultBucket = int64_t{25} << 20;
constexpr int64_t kOneParameter = 1;
// 101*33 + 17*33 + 2*33 + 2*(12*33*33 + 13*33).
constexpr int64_t kPsi = 30954;

struct Types {
  DType parameters, gradients;
  int64_t parameter_width, gradient_width, states_width;  // bytes
};
constexpr Types kFp32 = {DType::kFloat32, DType::kFloat32, 4, 4, 8};
constexpr Types kBf16 = {DType::kBFloat16, DType::kBFloat16, 2, 2, 12};
constexpr Types kBf16SummedInFp32 = {DType::kBFloat16, DType::kFloat32, 2, 4, 12};

// What only a run of this stage with these buckets and types does.
void ExpectWitness(const SmallRun& run, const TrainSettings& settings, const Types& types) {
  const int64_t n = settings.devices;
  const int64_t padded = kPsi + run.plan.padding;
  const int stage = n == 1 ? 0 : settings.zero_stage;
  const int64_t buckets = settings.bucket_bytes == kOneParameter ? 4 + 2 * 12 : 3;
  const int64_t m = settings.grad_accum;
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(LiveBytes(run, rank, Category::kParameters),
              types.parameter_width * padded / (stage == 3 ? n : 1));
    EXPECT_EQ(LiveBytes(run, rank, Category::kGradients),
              types.gradient_width * padded / (stage >= 2 ? n : 1));
    EXPECT_EQ(LiveBytes(run, rank, Category::kOptimizerStates),
              types.states_width * padded / (stage >= 1 ? n : 1));
    EXPECT_EQ(Counted(run, rank, Collective::kAllReduce).calls, stage == 0 && n > 1 ? buckets : 0);
    EXPECT_EQ(Counted(run, rank, Collective::kReduceScatter).calls, stage == 0   ? 0
                                                                    : stage == 1 ? buckets
                                                                                 : m * buckets);
    const int64_t ends = settings.bucket_bytes == kOneParameter ? 4 : 1;
    const int64_t block = settings.bucket_bytes == kOneParameter ? 12 : 1;
    // Stage 3: the ends twice, the first block twice, the last block once.
    const int64_t gathers = stage == 0 ? 0 : stage < 3 ? buckets : m * (2 * ends + 3 * block);
    EXPECT_EQ(Counted(run, rank, Collective::kAllGather).calls, gathers);
  }
}

SmallRun RunAndWitness(TrainSettings settings, const Types& types) {
  settings.dtype = types.parameters;
  settings.grad_accum_dtype = types.gradients;
  SmallRun run = RunSmall(settings);
  EXPECT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_EQ(run.result.steps, settings.steps);
  if (run.result.status.ok()) ExpectWitness(run, settings, types);
  return run;
}

constexpr int64_t kMicroBatches = 3;

// A larger batch has a smaller gradient: near the middle of the norms of one micro-batch a step,
// and of three.
struct Case {
  int devices;
  double clip_norm;
  double clip_norm_of_micro_batches;
};

class Equality : public testing::TestWithParam<std::tuple<Case, Types>> {
 protected:
  // 30 steps.
  static TrainSettings Settings(int64_t micro_batches = 1) {
    const Case& devices = std::get<0>(GetParam());
    TrainSettings settings = SmallSettings();
    settings.devices = devices.devices;
    settings.grad_accum = micro_batches;
    settings.optimizer.clip_norm =
        micro_batches == 1 ? devices.clip_norm : devices.clip_norm_of_micro_batches;
    return settings;
  }
  static SmallRun Run(const TrainSettings& settings) {
    return RunAndWitness(settings, std::get<1>(GetParam()));
  }
  // Stages [first, last] with buckets of both sizes have the bits of the first, in buckets of the
  // default size.
  static void ExpectEqualStages(TrainSettings settings, int first, int last);
};

void ExpectClippingInAThirdOfTheSteps(const RunResult& result) {
  ASSERT_EQ(result.step_metrics.size(), 30u);
  const auto clipped = std::count_if(result.step_metrics.begin(), result.step_metrics.end(),
                                     [](const StepMetrics& step) { return step.clip < 1; });
  EXPECT_GE(clipped, 10);
  EXPECT_LE(clipped, 20) << "and a third without";
}

void Equality::ExpectEqualStages(TrainSettings settings, int first, int last) {
  settings.zero_stage = first;
  settings.bucket_bytes = kDefaultBucket;
  const SmallRun reference = Run(settings);
  ExpectClippingInAThirdOfTheSteps(reference.result);
  for (const int64_t bucket_bytes : {kDefaultBucket, kOneParameter}) {
    for (int stage = first; stage <= last; ++stage) {
      if (stage == first && bucket_bytes == kDefaultBucket) continue;  // that is the reference
      SCOPED_TRACE(testing::Message() << "stage " << stage << ", bucket_bytes " << bucket_bytes);
      settings.zero_stage = stage;
      settings.bucket_bytes = bucket_bytes;
      const SmallRun run = Run(settings);
      EXPECT_EQ(Bits(run.result), Bits(reference.result));
      EXPECT_TRUE(run.parameters == reference.parameters);  // too much to print
    }
  }
}

TEST_P(Equality, StageAndBucketsDoNotChangeABit) { ExpectEqualStages(Settings(), 0, 3); }

TEST_P(Equality, StagesThatReduceAlikeAgreeToTheBitOverMicroBatches) {
  ExpectEqualStages(Settings(kMicroBatches), 0, 1);
  ExpectEqualStages(Settings(kMicroBatches), 2, 3);
}

TEST_P(Equality, IsOfRunsThatLearnAndRepeatToTheBit) {
  for (const int64_t micro_batches : {int64_t{1}, kMicroBatches}) {
    const SmallRun run = Run(Settings(micro_batches));
    const SmallRun again = Run(Settings(micro_batches));
    EXPECT_EQ(Bits(again.result), Bits(run.result));
    EXPECT_TRUE(again.parameters == run.parameters);
    EXPECT_LT(run.result.step_metrics.back().loss, run.result.step_metrics.front().loss - 0.1);
  }
}

TEST_P(Equality, ThreadsDoNotChangeABit) {
  TrainSettings settings = Settings();
  settings.steps = 4;
  settings.threads = settings.devices;
  const SmallRun reference = Run(settings);
  for (const int threads_of_a_device : {2, 3}) {
    settings.threads = threads_of_a_device * settings.devices;
    const SmallRun run = Run(settings);
    EXPECT_EQ(Bits(run.result), Bits(reference.result)) << threads_of_a_device;
    EXPECT_EQ(run.parameters, reference.parameters) << threads_of_a_device;
  }
}

std::string NameOf(const testing::TestParamInfo<std::tuple<Case, Types>>& info) {
  const Types& types = std::get<1>(info.param);
  return absl::StrCat(std::get<0>(info.param).devices, "_", std::string(Name(types.parameters)),
                      "_", std::string(Name(types.gradients)));
}

INSTANTIATE_TEST_SUITE_P(Devices, Equality,
                         testing::Combine(testing::Values(Case{1, 3.7, 2.21}, Case{2, 2.65, 1.66},
                                                          Case{3, 2.2, 1.36}, Case{4, 1.94, 1.21},
                                                          Case{7, 1.52, 0.98}, Case{8, 1.44, 0.93}),
                                          testing::Values(kFp32, kBf16, kBf16SummedInFp32)),
                         NameOf);

TEST(InitialWeights, DependOnTheSeedAloneAndNotOnWhoComputesThem) {
  TrainSettings settings = SmallSettings();
  settings.steps = 1;
  // The one step is skipped, so what the run ends with is what it began with.
  const TrainHooks skip = {.loss_scale = [](int, int64_t) { return std::nan(""); }};
  settings.devices = 1;
  const SmallRun reference = RunSmall(settings, skip);
  ASSERT_EQ(reference.result.skipped, 1);
  for (const int devices : {3, 4}) {
    for (const int stage : {0, 3}) {
      settings.devices = devices;
      settings.zero_stage = stage;
      settings.bucket_bytes = stage == 3 ? kOneParameter : kDefaultBucket;
      const SmallRun run = RunSmall(settings, skip);
      ASSERT_EQ(run.result.skipped, 1);
      EXPECT_EQ(run.parameters, reference.parameters) << devices << " devices, stage " << stage;
    }
  }
  settings.seed += 1;
  const SmallRun other = RunSmall(settings, skip);
  EXPECT_NE(other.parameters.at("wte.weight"), reference.parameters.at("wte.weight"));
  EXPECT_EQ(other.parameters.at("ln_f.bias"), std::vector<float>(33, 0.0F));
}

// The same global batch, cut differently: sums are taken in another order, so equal to rounding.
void ExpectClose(const RunResult& run, const RunResult& reference) {
  ASSERT_TRUE(run.status.ok()) << run.status;
  ASSERT_EQ(run.step_metrics.size(), reference.step_metrics.size());
  for (size_t i = 0; i < run.step_metrics.size(); ++i) {
    const double tolerance = i < 5 ? 1e-5 : 1e-4;
    EXPECT_TRUE(std::abs(run.step_metrics[i].loss - reference.step_metrics[i].loss) <= tolerance)
        << "step " << i + 1 << ": " << run.step_metrics[i].loss << ", "
        << reference.step_metrics[i].loss;
  }
}

TEST(GlobalBatch, CutOverDevicesAndMicroBatchesGivesTheSameLossesToRounding) {
  constexpr int64_t kGlobalBatch = 12;
  TrainSettings settings = SmallSettings();
  SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  dataset.IgnoreTargets(RandomlyIgnored);
  settings.devices = 1;
  settings.micro_batch = kGlobalBatch;
  const SmallRun reference = RunSmall(settings, dataset, {});
  ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
  for (const int devices : {1, 2, 3, 4, 6}) {
    for (const int64_t micro_batches : {1, 2, 3, 4}) {
      if (kGlobalBatch % (devices * micro_batches) != 0) continue;
      SCOPED_TRACE(testing::Message()
                   << devices << " devices, " << micro_batches << " micro-batches");
      settings.devices = devices;
      settings.grad_accum = micro_batches;
      settings.micro_batch = kGlobalBatch / (devices * micro_batches);
      settings.zero_stage = devices == 1 ? 0 : 3;
      const SmallRun run = RunSmall(settings, dataset, {});
      ExpectClose(run.result, reference.result);
      // Each rank brought in as many micro-batches of inputs, targets and sample numbers.
      ASSERT_EQ(run.result.ranks.size(), static_cast<size_t>(devices));
      for (const RankResult& rank : run.result.ranks) {
        EXPECT_EQ(rank.step_copies.from_host,
                  micro_batches * (settings.micro_batch * (2 * 4 * 17 + 8)));
      }
      const int64_t reductions = devices == 1 ? 0 : micro_batches * 3;
      EXPECT_EQ(Counted(run, 0, Collective::kReduceScatter).calls, reductions);
    }
  }
}

TEST(GlobalBatch, IsEvaluatedOnTheSameSequencesHoweverItIsCut) {
  TrainSettings settings = SmallSettings();
  const SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  ASSERT_EQ(dataset.validation_sequences(), 10);
  settings.eval_batches = 2;
  const struct {
    int devices;
    int64_t micro_batch, grad_accum;
  } cuts[] = {{1, 4, 1}, {1, 1, 4}, {2, 2, 1}, {2, 1, 2}, {4, 1, 1}};
  for (const auto& [devices, micro_batch, grad_accum] : cuts) {
    settings.devices = devices;
    settings.micro_batch = micro_batch;
    settings.grad_accum = grad_accum;
    EXPECT_EQ(EvaluationSequences(settings, dataset),
              (std::vector<int64_t>{0, 1, 2, 3, 5, 6, 7, 8}));
  }
}

}  // namespace
}  // namespace zerobox
