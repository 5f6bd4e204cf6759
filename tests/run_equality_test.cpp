// SPDX-License-Identifier: Apache-2.0
//
// Where two runs part.
#include "trainer/run_equality.h"

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

RunResult WithLosses(const std::vector<double>& losses,
                     const std::vector<EvalMetrics>& evaluations) {
  RunResult result;
  for (size_t i = 0; i < losses.size(); ++i) {
    result.step_metrics.push_back({.step = static_cast<int64_t>(i) + 1, .loss = losses[i]});
  }
  result.eval_metrics = evaluations;
  return result;
}

TEST(FirstDifferentLoss, IsOfBits) {
  const double nan = std::nan("");
  const RunResult a = WithLosses({3, nan, 0.0}, {}), b = WithLosses({3, nan, -0.0}, {});
  EXPECT_FALSE(FirstDifferentLoss(a, a));
  const auto difference = FirstDifferentLoss(a, b);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 3);
  EXPECT_FALSE(difference->evaluation);
  EXPECT_EQ(difference->steps_before(), 2);
}

TEST(FirstDifferentLoss, IsTheEvaluationWhereThatComesFirst) {
  const RunResult a = WithLosses({3, 2, 1}, {{1, 5.0}, {2, 4.0}});
  const RunResult b = WithLosses({3, 2, 7}, {{1, 5.0}, {2, 4.5}});
  const auto difference = FirstDifferentLoss(a, b);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 2);
  EXPECT_TRUE(difference->evaluation);
  EXPECT_EQ(difference->steps_before(), 2);
  EXPECT_EQ(difference->reference, 4.0);
  EXPECT_EQ(difference->value, 4.5);
}

TEST(Equality, IsPromisedOnHostDevicesWhereSumsAreTakenInTheSameOrder) {
  TrainSettings a = SmallSettings(), b = SmallSettings();
  b.zero_stage = 3;
  b.offload_optimizer = true;
  EXPECT_TRUE(EqualityIsPromised(a, b));
  a.grad_accum = b.grad_accum = 2;
  EXPECT_FALSE(EqualityIsPromised(a, b));
  a.zero_stage = 2;
  EXPECT_TRUE(EqualityIsPromised(a, b));
  a.device = b.device = "cuda";
  EXPECT_FALSE(EqualityIsPromised(a, b));
}

class Unwatched final : public RunObserver {
 public:
  void OnStep(const StepMetrics& /*metrics*/) override {}
  void OnEval(const EvalMetrics& /*metrics*/) override {}
};

// A run of 6 steps whose gradient of one step is an ulp off.
class FirstDifference : public testing::Test {
 protected:
  FirstDifference() {
    settings_.devices = 2;
    settings_.steps = 6;
    settings_.optimizer.total_steps = 6;
    settings_.dropout = 0;
    other_settings_ = settings_;
    other_settings_.zero_stage = 2;
  }
  static TrainHooks OffAtStep(int64_t wrong) {
    TrainHooks hooks;
    hooks.loss_scale = [wrong](int, int64_t step) {
      return step == wrong ? 1 + std::numeric_limits<float>::epsilon() : 1.0;
    };
    return hooks;
  }
  static std::map<std::string, std::vector<float>> After(int64_t steps, TrainSettings settings,
                                                         const TrainHooks& hooks) {
    settings.steps = steps;
    return RunSmall(settings, hooks).parameters;
  }
  // Expects what a look at all parameters after `step` steps shows, and none before.
  void ExpectFirst(const absl::StatusOr<Equality::Difference>& found, int64_t step,
                   const TrainHooks& hooks) const {
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->step, step);
    EXPECT_EQ(After(step - 1, settings_, {}), After(step - 1, other_settings_, hooks));
    auto a = After(step, settings_, {}), b = After(step, other_settings_, hooks);
    for (const ParameterSpec& spec : GptParameters(settings_.model)) {
      for (size_t i = 0; i < a[spec.name].size(); ++i) {
        if (a[spec.name][i] == b[spec.name][i]) continue;
        EXPECT_EQ(found->parameter, spec.name);
        EXPECT_EQ(found->unit, spec.unit);
        EXPECT_EQ(found->element, static_cast<int64_t>(i));
        EXPECT_EQ(found->reference, a[spec.name][i]);
        EXPECT_EQ(found->value, b[spec.name][i]);
        return;
      }
    }
    FAIL() << "no parameter differs";
  }
  // Trains both, the other with `hooks`, then searches. `without_loss`: although losses may differ.
  absl::StatusOr<Equality::Difference> Find(const TrainHooks& hooks, const Dataset& data,
                                            bool without_loss = false,
                                            const TrainHooks& reference_hooks = {},
                                            const std::function<int()>& stop = nullptr) {
    const RunResult reference = RunSmall(settings_, data, reference_hooks).result;
    const RunResult other = RunSmall(other_settings_, data, hooks).result;
    loss_ = without_loss ? std::nullopt : FirstDifferentLoss(reference, other);
    Unwatched observer;
    return FindFirstDifference({settings_, reference_hooks, reference},
                               {other_settings_, hooks, other}, loss_, data, stop, observer);
  }
  absl::StatusOr<Equality::Difference> Find(const TrainHooks& hooks, bool without_loss = false) {
    return Find(hooks, SyntheticDataset(settings_.model.seq_len, settings_.model.vocab_size),
                without_loss);
  }

  TrainSettings settings_ = SmallSettings(), other_settings_;
  std::optional<LossDifference> loss_;  // that the last search began from
};

// The tokens of one step are others while `wrong` is set.
class WrongTokens final : public Dataset {
 public:
  WrongTokens(const TrainSettings& settings, int64_t step, const std::atomic<bool>& wrong)
      : data_(settings.model.seq_len, settings.model.vocab_size),
        first_((step - 1) * settings.global_batch()),
        end_(step * settings.global_batch()),
        wrong_(wrong) {}
  int64_t train_tokens() const override { return data_.train_tokens(); }
  int64_t train_sequences() const override { return data_.train_sequences(); }
  int64_t validation_sequences() const override { return data_.validation_sequences(); }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    data_.Train(position, inputs, targets);
    if (wrong_ && position >= first_ && position < end_) inputs[0] = (inputs[0] + 1) % 101;
  }
  int64_t TrainTargets(int64_t position) const override { return data_.TrainTargets(position); }
  int64_t Epoch(int64_t position) const override { return data_.Epoch(position); }
  int64_t TrainSequence(int64_t position) const override { return data_.TrainSequence(position); }
  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override {
    data_.Validation(sequence, inputs, targets);
    if (wrong_ && first_ < 0) inputs[0] = (inputs[0] + 1) % 101;
  }

 private:
  SyntheticDataset data_;
  const int64_t first_, end_;  // positions
  const std::atomic<bool>& wrong_;
};
TrainHooks Setting(std::atomic<bool>& wrong, bool value) {
  TrainHooks hooks;
  hooks.after_setup = [&wrong, value](int, Device&) { wrong = value; };
  return hooks;
}

TEST_F(FirstDifference, IsFoundFromTheLossThatShowsIt) {
  const TrainHooks hooks = OffAtStep(3);
  const auto found = Find(hooks);
  ASSERT_TRUE(loss_);
  EXPECT_EQ(loss_->step, 4);
  ExpectFirst(found, 3, hooks);
}

TEST_F(FirstDifference, IsFoundWithoutALoss) {
  for (const int64_t step : {1, 4, 6}) {
    const TrainHooks hooks = OffAtStep(step);
    ExpectFirst(Find(hooks, /*without_loss=*/true), step, hooks);
  }
}

TEST_F(FirstDifference, IsTheLossWhereNoParameterDiffersBefore) {
  // Other tokens in step 4: its loss differs, and only then the parameters.
  std::atomic<bool> wrong{false};
  const auto found =
      Find(Setting(wrong, true), WrongTokens(settings_, 4, wrong), false, Setting(wrong, false));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->step, 4);
  EXPECT_EQ(found->parameter, "");
  EXPECT_EQ(found->unit, -1);
  EXPECT_NE(found->reference, found->value);
  EXPECT_EQ(found->reference, loss_->reference);
  EXPECT_EQ(found->value, loss_->value);
}

TEST_F(FirstDifference, IsTheLossOfTheFirstStepWhereThatDiffers) {
  std::atomic<bool> wrong{false};
  const auto found =
      Find(Setting(wrong, true), WrongTokens(settings_, 1, wrong), false, Setting(wrong, false));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->step, 1);
  EXPECT_EQ(found->parameter, "");
}

TEST_F(FirstDifference, IsTheHeldOutLossWhereOnlyThatDiffers) {
  settings_.eval_interval = other_settings_.eval_interval = 2;
  std::atomic<bool> wrong{false};
  const auto found =
      Find(Setting(wrong, true), WrongTokens(settings_, 0, wrong), false, Setting(wrong, false));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(loss_->evaluation);
  EXPECT_EQ(found->step, 2);
  EXPECT_EQ(found->parameter, "");
  EXPECT_NE(found->reference, found->value);
}

TEST_F(FirstDifference, IsNotNamedWhereItDoesNotHappenAgain) {
  // The gradient of step 3 is off in the first of all runs only.
  std::atomic<int> runs{0};
  TrainHooks once = OffAtStep(3);
  once.after_setup = [&runs](int rank, Device&) { runs += rank == 0 ? 1 : 0; };
  once.loss_scale = [&runs](int, int64_t step) {
    return step == 3 && runs == 1 ? 1 + std::numeric_limits<float>::epsilon() : 1.0;
  };
  EXPECT_THAT(std::string(Find(once).status().message()), HasSubstr("it did not happen again"));

  // And a loss: the tokens of step 4.
  std::atomic<bool> wrong{false};
  TrainHooks wrong_once;
  runs = 0;
  wrong_once.after_setup = [&](int rank, Device&) {
    if (rank == 0) wrong = runs++ == 0;
  };
  EXPECT_THAT(
      std::string(Find(wrong_once, WrongTokens(settings_, 4, wrong), false, Setting(wrong, false))
                      .status()
                      .message()),
      AllOf(HasSubstr("it did not happen again"), HasSubstr("loss of step 4")));
}

TEST_F(FirstDifference, IsNotInventedForEqualRuns) {
  EXPECT_THAT(std::string(Find({}).status().message()), HasSubstr("it did not happen again"));
}

TEST_F(FirstDifference, IsGivenUpWhenASignalStopsTheSearch) {
  const SyntheticDataset data(settings_.model.seq_len, settings_.model.vocab_size);
  const auto found = Find(OffAtStep(3), data, true, {}, [] { return 2; });
  EXPECT_EQ(found.status().code(), absl::StatusCode::kCancelled);
}

TEST(FirstDifferentElement, IsOfTheFilesInTheOrderOfTheLayout) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  const ModelConfig config = {
      .n_layer = 1, .n_head = 1, .n_embd = 4, .seq_len = 3, .vocab_size = 5};
  const std::vector<ParameterSpec> specs = GptParameters(config);
  // Two files that differ in two parameters, of which the later is written with a larger change.
  for (const std::string& name : {folder + "/a", folder + "/b"}) {
    fs::create_directories(name);
    auto writer = CreateModelFile(name, config, DType::kFloat32);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t p = 0; p < specs.size(); ++p) {
      std::vector<float> values(static_cast<size_t>(specs[p].elements()), 0.5F);
      if (name.back() == 'b' && p == 6) values[2] = 0.25F;
      if (name.back() == 'b' && p == 7) values[0] = 99;
      ASSERT_TRUE((*writer)->Write(std::as_bytes(std::span<const float>(values))).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  const auto same = FirstDifferentElement(config, folder + "/a", folder + "/a");
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE(*same);
  const auto found = FirstDifferentElement(config, folder + "/a", folder + "/b");
  ASSERT_TRUE(found.ok() && *found) << found.status();
  EXPECT_FALSE((*found)->step);
  EXPECT_EQ((*found)->parameter, specs[6].name);
  EXPECT_EQ((*found)->unit, 1);
  EXPECT_EQ((*found)->element, 2);
  EXPECT_EQ((*found)->reference, 0.5);
  EXPECT_EQ((*found)->value, 0.25);
  EXPECT_FALSE(FirstDifferentElement(config, folder + "/a", folder + "/none").ok());
}

}  // namespace
}  // namespace zerobox
