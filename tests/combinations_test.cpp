// SPDX-License-Identifier: Apache-2.0
//
// Which runs a comparison has.
#include "trainer/combinations.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resolved_combinations.h"

namespace zerobox {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> NamesOf(const std::vector<std::string>& arguments) {
  const auto combinations = ResolvedCombinations(arguments);
  EXPECT_TRUE(combinations.ok()) << combinations.status();
  std::vector<std::string> names;
  if (!combinations.ok()) return names;
  for (const Combination& combination : *combinations) names.push_back(combination.name);
  return names;
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto combinations = ResolvedCombinations(arguments);
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

TEST(Combinations, MayHaveBlanksAroundCommas) {
  EXPECT_THAT(NamesOf({"--zero_stages= 3 ,0", "--offloads=none, optimizer+activations ",
                       "--activation_checkpointings=selective , full"}),
              ElementsAre("zero3-selective", "zero0-selective",
                          "zero3-selective-offload-optimizer-activations",
                          "zero0-selective-offload-optimizer-activations", "zero3-full",
                          "zero0-full", "zero3-full-offload-optimizer-activations",
                          "zero0-full-offload-optimizer-activations"));
  EXPECT_THAT(ErrorOf({"--offloads=optimizer, optimizer"}), HasSubstr("found 'optimizer' again"));
  EXPECT_THAT(ErrorOf({"--zero_stages=1, "}), HasSubstr("found ''"));
}

TEST(Combinations, TakeTheFlagsOfTrainForOneValue) {
  const auto combinations =
      ResolvedCombinations({"--zero_stage=2", "--offload=optimizer,activations",
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
  const auto combinations =
      ResolvedCombinations({"--zero_stages=1,3", "--offloads=none,optimizer", "--lr=0.5"});
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

}  // namespace
}  // namespace zerobox
