// SPDX-License-Identifier: Apache-2.0
//
// The largest model, and what is said of runs that are compared.
#include "trainer/comparison.h"

#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resolved_combinations.h"
#include "tests/small_run.h"
#include "trainer/combinations.h"
#include "trainer/tables.h"

namespace zerobox {
namespace {
using ::testing::ElementsAre;

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

// Of runs that are planned alone.
MemoryFigure PlannedFigure(const std::vector<std::string>& flags) {
  const auto combinations = ResolvedCombinations(flags);
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
