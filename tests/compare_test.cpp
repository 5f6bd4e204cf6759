// SPDX-License-Identifier: Apache-2.0
//
// The parts of a comparison: which runs there are, where two of them part, the largest model.
#include <unistd.h>

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

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/small_run.h"
#include "trainer/combinations.h"
#include "trainer/comparison.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/run_equality.h"
#include "trainer/tables.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

//---- Combinations

absl::StatusOr<std::vector<Combination>> Resolve(std::vector<std::string> arguments) {
  const absl::FlagSaver saver;
  arguments.insert(arguments.begin(), {"--data=book.txt", "--device=host"});
  const absl::StatusOr<CommandLine> line = ParseArguments(kCompareCommand, arguments);
  if (!line.ok()) return line.status();
  return ResolveCombinations(*line, {.cores = 2, .available_memory = 1000000});
}

std::vector<std::string> NamesOf(const std::vector<std::string>& arguments) {
  const auto combinations = Resolve(arguments);
  EXPECT_TRUE(combinations.ok()) << combinations.status();
  std::vector<std::string> names;
  if (!combinations.ok()) return names;
  for (const Combination& combination : *combinations) names.push_back(combination.name);
  return names;
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto combinations = Resolve(arguments);
  return combinations.ok() ? "" : std::string(combinations.status().message());
}

TEST(Combinations, AreAllFourStagesByDefault) {
  EXPECT_THAT(NamesOf({}), ElementsAre("zero0", "zero1", "zero2", "zero3"));
}

TEST(Combinations, AreEveryStageWithEveryOffloadAndEveryWayOfCheckpointing) {
  EXPECT_THAT(NamesOf({"--zero_stages=3,0", "--offloads=none,activations+optimizer",
                       "--activation_checkpointings=selective,full"}),
              ElementsAre("zero3-selective", "zero0-selective",
                          "zero3-selective-offload-optimizer-activations",
                          "zero0-selective-offload-optimizer-activations", "zero3-full",
                          "zero0-full", "zero3-full-offload-optimizer-activations",
                          "zero0-full-offload-optimizer-activations"));
}

TEST(Combinations, TakeTheFlagsOfTrainForOneValue) {
  const auto combinations = Resolve({"--zero_stage=2", "--offload=optimizer,activations",
                                     "--activation_checkpointing=full", "--steps=7"});
  ASSERT_TRUE(combinations.ok()) << combinations.status();
  ASSERT_EQ(combinations->size(), 1u);
  const TrainSettings& settings = combinations->front().resolved.settings;
  EXPECT_EQ(settings.zero_stage, 2);
  EXPECT_TRUE(settings.offload_optimizer && settings.offload_activations);
  EXPECT_EQ(settings.activation_checkpointing, ActivationCheckpointing::kFull);
  EXPECT_EQ(settings.steps, 7);
  EXPECT_EQ(combinations->front().name, "zero2");  // what is the same in all runs is left out
}

TEST(Combinations, DifferInTheseSettingsAlone) {
  const auto combinations = Resolve({"--zero_stages=1,3", "--offloads=none,optimizer", "--lr=0.5"});
  ASSERT_TRUE(combinations.ok()) << combinations.status();
  ASSERT_EQ(combinations->size(), 4u);
  const std::array<std::pair<int, bool>, 4> wanted = {
      {{1, false}, {3, false}, {1, true}, {3, true}}};
  for (size_t i = 0; i < 4; ++i) {
    const TrainSettings& settings = (*combinations)[i].resolved.settings;
    EXPECT_EQ(settings.zero_stage, wanted[i].first);
    EXPECT_EQ(settings.offload_optimizer, wanted[i].second);
    EXPECT_EQ(settings.optimizer.learning_rate, 0.5);
  }
}

TEST(Combinations, LeaveTheFlagsAsTheyWere) {
  const absl::FlagSaver saver;
  const std::vector<std::string> arguments = {"--data=book.txt", "--device=host",
                                              "--zero_stages=3"};
  const auto line = ParseArguments(kCompareCommand, arguments);
  ASSERT_TRUE(line.ok());
  ASSERT_TRUE(ResolveCombinations(*line, {.cores = 1, .available_memory = 1000}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_zero_stage), 0);
  EXPECT_EQ(absl::GetFlag(FLAGS_offload), "none");
}

TEST(Combinations, RefuseListsThatAreEmptyUnknownOrDouble) {
  EXPECT_THAT(ErrorOf({"--zero_stages="}), HasSubstr("--zero_stages=: wanted"));
  EXPECT_THAT(ErrorOf({"--zero_stages="}), HasSubstr("found nothing"));
  EXPECT_THAT(ErrorOf({"--zero_stages=0,4"}), HasSubstr("found '4'"));
  EXPECT_THAT(ErrorOf({"--zero_stages=0,,1"}), HasSubstr("found ''"));
  EXPECT_THAT(ErrorOf({"--zero_stages=0,1,"}), HasSubstr("found ''"));
  EXPECT_THAT(ErrorOf({"--zero_stages=1,0,1"}), HasSubstr("found '1' again"));
  EXPECT_THAT(ErrorOf({"--offloads=none,parameters"}), HasSubstr("found 'parameters'"));
  EXPECT_THAT(ErrorOf({"--offloads=optimizer+none"}), HasSubstr("found 'optimizer+none'"));
  EXPECT_THAT(ErrorOf({"--offloads="}), HasSubstr("found nothing"));
  EXPECT_THAT(ErrorOf({"--activation_checkpointings=full",
                       "--offloads=optimizer+activations,activations+optimizer"}),
              HasSubstr("found 'activations+optimizer' again"));
  EXPECT_THAT(ErrorOf({"--activation_checkpointings=all"}), HasSubstr("found 'all'"));
  EXPECT_THAT(ErrorOf({"--activation_checkpointings=full,full"}), HasSubstr("found 'full' again"));
}

TEST(Combinations, RefuseAFlagForOneValueBesideThatForSeveral) {
  EXPECT_THAT(ErrorOf({"--zero_stage=1", "--zero_stages=0,1"}),
              HasSubstr("--zero_stage=1 with --zero_stages=0,1: wanted one of these flags"));
  EXPECT_THAT(ErrorOf({"--offload=optimizer", "--offloads=none"}), HasSubstr("found both"));
}

TEST(Combinations, RefuseOffloadedActivationsWithoutCheckpointingAndNameTheRun) {
  EXPECT_THAT(ErrorOf({"--offloads=activations", "--activation_checkpointings=full,none"}),
              AllOf(HasSubstr("the run with --zero_stage=0 --offload=activations "
                              "--activation_checkpointing=none: "),
                    HasSubstr("wanted checkpoints to offload")));
}

TEST(Combinations, AreNoFlagsOfTrain) {
  const std::vector<std::string> arguments = {"--zero_stages=0"};
  EXPECT_THAT(std::string(ParseArguments(kTrainCommand, arguments).status().message()),
              HasSubstr("--zero_stages is a flag of compare, not of train"));
}

//---- Equality

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
  void IgnoreTargets(std::function<bool(int64_t, int64_t)> ignored) override {
    data_.IgnoreTargets(std::move(ignored));
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
  const std::string folder = testing::TempDir() + "/compare_test-" + std::to_string(getpid());
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
  fs::remove_all(folder);
}

//---- The largest model

int64_t Reserved(TrainSettings settings, int64_t layers) {
  settings.model.n_layer = layers;
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? LargestReservation(*plan) : 0;
}

TEST(LargestModel, IsWhatTryingEveryNumberOfLayersFinds) {
  for (int stage = 0; stage <= 3; ++stage) {
    TrainSettings settings = SmallSettings();
    settings.zero_stage = stage;
    settings.offload_optimizer = stage == 2;
    std::vector<int64_t> needs = {0};
    for (int64_t layers = 1; layers <= 40; ++layers) {
      needs.push_back(Reserved(settings, layers));
      EXPECT_GE(needs[static_cast<size_t>(layers)], needs[static_cast<size_t>(layers) - 1])
          << "stage " << stage << ", " << layers << " layers";
    }
    for (const size_t layers : {1, 2, 3, 7, 16, 31}) {
      for (const int64_t spare : {int64_t{0}, int64_t{-1}}) {
        settings.device_memory_bytes = needs[layers] + spare;
        int64_t wanted = 0;
        for (int64_t n = 1; n <= 40; ++n) {
          if (needs[static_cast<size_t>(n)] <= settings.device_memory_bytes) wanted = n;
        }
        const auto found = FindLargestModel(settings);
        ASSERT_EQ(found.has_value(), wanted > 0);
        if (!found) continue;
        EXPECT_EQ(found->n_layer, wanted) << "stage " << stage;
        // 2 norms, 4 linear layers of 12 C^2 weights and 9 C biases; embeddings, the last norm.
        const int64_t c = 33;
        EXPECT_EQ(found->parameters, (101 + 17) * c + 2 * c + wanted * (12 * c * c + 13 * c));
      }
    }
  }
}

TEST(LargestModel, EndsAt8192LayersHoweverLargeTheDevice) {
  TrainSettings settings = SmallSettings();
  settings.devices = 1;
  settings.model = {.n_layer = 1, .n_head = 1, .n_embd = 1, .seq_len = 1, .vocab_size = 1};
  settings.device_memory_bytes = int64_t{1} << 50;
  const auto found = FindLargestModel(settings);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->n_layer, 8192);
}

//---- What is said of them

// Of runs that are planned alone.
MemoryFigure PlannedFigure(const std::vector<std::string>& flags) {
  const auto combinations = Resolve(flags);
  EXPECT_TRUE(combinations.ok()) << combinations.status();
  if (!combinations.ok()) return {};
  std::vector<RunPlan> plans;
  Comparison comparison;
  plans.reserve(combinations->size());
  for (const Combination& combination : *combinations) {
    plans.push_back(PlanRun(combination.resolved.settings).value());
    comparison.runs.push_back({.combination = &combination, .plan = &plans.back()});
  }
  return FigureOf(comparison);
}

TEST(FigureOf, SaysWhatIsShardedBetweenDevicesAndNothingOnOne) {
  const auto shares = [](const std::string& devices) {
    std::vector<std::string> shares;
    for (const MemoryBars& run : PlannedFigure({"--devices=" + devices}).runs) {
      shares.push_back(run.shares);
    }
    return shares;
  };
  EXPECT_THAT(shares("2"), ElementsAre("nothing sharded", "optimizer states sharded",
                                       "and gradients sharded", "and parameters sharded"));
  EXPECT_THAT(shares("1"), ElementsAre("nothing sharded", "nothing sharded", "nothing sharded",
                                       "nothing sharded"));
}

TEST(StatesFormula, IsThePapers) {
  TrainSettings settings;
  settings.devices = 4;
  const auto at = [&settings](int stage) {
    settings.zero_stage = stage;
    return StatesFormula(settings);
  };
  EXPECT_EQ(at(0), "16Ψ");
  EXPECT_EQ(at(1), "8Ψ + 8Ψ/4");
  EXPECT_EQ(at(2), "4Ψ + 12Ψ/4");
  EXPECT_EQ(at(3), "16Ψ/4");
  settings.dtype = settings.grad_accum_dtype = DType::kBFloat16;
  EXPECT_EQ(at(1), "4Ψ + 12Ψ/4");
  EXPECT_EQ(at(2), "2Ψ + 14Ψ/4");
  settings.grad_accum_dtype = DType::kFloat32;
  EXPECT_EQ(at(0), "18Ψ");
  settings.offload_optimizer = true;
  EXPECT_EQ(at(0), "6Ψ");
  EXPECT_EQ(at(1), "6Ψ");
  EXPECT_EQ(at(2), "2Ψ");
  EXPECT_EQ(at(3), "2Ψ/4");
  settings.offload_optimizer = false;
  settings.devices = 1;
  EXPECT_EQ(at(3), "18Ψ");
}

}  // namespace
}  // namespace zerobox
