// SPDX-License-Identifier: Apache-2.0
//
// The formulas against the figures that the ZeRO paper (arXiv:1910.02054) prints.
#include "zero/formulas.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace zerobox {
namespace {

constexpr int64_t kBillion = 1'000'000'000;
constexpr int64_t kGpt2 = 124'439'808;
constexpr StateWidths kMixed{.parameters = 2, .gradients = 2, .optimizer_states = 12};
constexpr StateWidths kMixedWithFloatGradients{
    .parameters = 2, .gradients = 4, .optimizer_states = 12};
constexpr StateWidths kFloat{.parameters = 4, .gradients = 4, .optimizer_states = 8};

double Gigabytes(int stage, int64_t psi, int64_t ranks) {
  return static_cast<double>(ModelStates(stage, psi, ranks, kMixed).total()) / 1e9;
}
// Half up, as the paper rounds: 41.25 is printed as 41.3.
double Rounded(double x, int digits) {
  const double scale = std::pow(10, digits);
  return std::floor(x * scale + 0.5) / scale;
}
double Truncated(double x, int digits) {
  const double scale = std::pow(10, digits);
  return std::floor(x * scale) / scale;
}

TEST(Formulas, CountTheBytesOfAParameterByItsType) {
  const StateWidths fp32 = WidthsOf({DType::kFloat32, DType::kFloat32});
  EXPECT_EQ(fp32.parameters, 4);
  EXPECT_EQ(fp32.gradients, 4);
  EXPECT_EQ(fp32.optimizer_states, 8);
  const StateWidths bf16 = WidthsOf({DType::kBFloat16, DType::kBFloat16});
  EXPECT_EQ(bf16.parameters, 2);
  EXPECT_EQ(bf16.gradients, 2);
  EXPECT_EQ(bf16.optimizer_states, 12);
  const StateWidths accumulating = WidthsOf({DType::kBFloat16, DType::kFloat32});
  EXPECT_EQ(accumulating.parameters, 2);
  EXPECT_EQ(accumulating.gradients, 4);
  EXPECT_EQ(accumulating.optimizer_states, 12);
}

TEST(Formulas, GiveFigure1) {
  // 7.5 billion parameters on 64 devices.
  EXPECT_EQ(ModelStates(0, 75 * kBillion / 10, 64, kMixed).total(), 120'000'000'000);
  EXPECT_EQ(ModelStates(1, 75 * kBillion / 10, 64, kMixed).total(), 31'406'250'000);
  EXPECT_EQ(ModelStates(2, 75 * kBillion / 10, 64, kMixed).total(), 16'640'625'000);
  EXPECT_EQ(ModelStates(3, 75 * kBillion / 10, 64, kMixed).total(), 1'875'000'000);
}

TEST(Formulas, GiveTable1) {
  struct Row {
    int64_t ranks;
    double b7_5[3], b128[3], t1[3];  // GB, stages 1, 2, 3
  };
  const Row rows[] = {
      {1, {120, 120, 120}, {2048, 2048, 2048}, {16000, 16000, 16000}},
      {4, {52.5, 41.3, 30}, {896, 704, 512}, {7000, 5500, 4000}},
      {16, {35.6, 21.6, 7.5}, {608, 368, 128}, {4750, 2875, 1000}},
      {64, {31.4, 16.6, 1.88}, {536, 284, 32}, {4187, 2218, 250}},
      {256, {30.4, 15.4, 0.47}, {518, 263, 8}, {4046, 2054, 62.5}},
      {1024, {30.1, 15.1, 0.12}, {513, 257, 2}, {4011, 2013, 15.6}},
  };
  for (const Row& row : rows) {
    for (int stage = 1; stage <= 3; ++stage) {
      SCOPED_TRACE(testing::Message() << "N = " << row.ranks << ", stage " << stage);
      // The 7.5B column is rounded to the digits shown: one, or two below 2 GB.
      const double small = Gigabytes(stage, 75 * kBillion / 10, row.ranks);
      EXPECT_DOUBLE_EQ(Rounded(small, small < 2 ? 2 : 1), row.b7_5[stage - 1]);
      // The others are truncated to whole GB, or to one digit where one is shown.
      const double middle = Gigabytes(stage, 128 * kBillion, row.ranks);
      EXPECT_DOUBLE_EQ(Truncated(middle, 0), row.b128[stage - 1]);
      const double large = Gigabytes(stage, 1000 * kBillion, row.ranks);
      EXPECT_DOUBLE_EQ(Truncated(large, large < 100 ? 1 : 0), row.t1[stage - 1]);
    }
  }
}

TEST(Formulas, GiveTable2) {
  // The largest model whose states fit 32 GB, 64 ranks: in steps of 0.1 billion, rounded down.
  const auto largest = [](int stage) {
    int64_t tenths = 0;
    while (ModelStates(stage, (tenths + 1) * kBillion / 10, 64, kMixed).total() <= 32 * kBillion) {
      ++tenths;
    }
    return tenths;
  };
  EXPECT_EQ(largest(0), 20);
  EXPECT_EQ(largest(1), 76);
  EXPECT_EQ(largest(2), 144);
  EXPECT_EQ(largest(3), 1280);
}

TEST(Formulas, GiveTheModelStatesOfGpt2) {
  struct {
    int64_t ranks, bytes[3];
  } rows[] = {{2, {1'244'398'080, 1'119'958'272, 995'518'464}},
              {4, {871'078'656, 684'418'944, 497'759'232}},
              {8, {684'418'944, 466'649'280, 248'879'616}}};
  for (const auto& [ranks, bytes] : rows) {
    EXPECT_EQ(ModelStates(0, kGpt2, ranks, kMixed).total(), 1'991'036'928);
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_EQ(ModelStates(stage, kGpt2, ranks, kMixed).total(), bytes[stage - 1])
          << "N = " << ranks << ", stage " << stage;
    }
  }
}

TEST(Formulas, ShardOneKindOfStateAStage) {
  const StateWidths fp32 = kFloat;
  for (int stage = 0; stage <= 3; ++stage) {
    const ModelStateBytes states = ModelStates(stage, 8000, 8, fp32);
    EXPECT_EQ(states.parameters, stage >= 3 ? 4000 : 32000);
    EXPECT_EQ(states.gradients, stage >= 2 ? 4000 : 32000);
    EXPECT_EQ(states.optimizer_states, stage >= 1 ? 8000 : 64000);
  }
  // fp32, bytes a parameter at N = 8: 16, 8 + 8/8, 4 + 12/8, 16/8.
  EXPECT_EQ(ModelStates(0, 8000, 8, fp32).total(), 16 * 8000);
  EXPECT_EQ(ModelStates(1, 8000, 8, fp32).total(), 9 * 8000);
  EXPECT_EQ(ModelStates(2, 8000, 8, fp32).total(), 5.5 * 8000);
  EXPECT_EQ(ModelStates(3, 8000, 8, fp32).total(), 2 * 8000);
  // bf16 with fp32 gradients: 18, 7.5, 4, 2.25.
  EXPECT_EQ(ModelStates(0, 8000, 8, kMixedWithFloatGradients).total(), 18 * 8000);
  EXPECT_EQ(ModelStates(1, 8000, 8, kMixedWithFloatGradients).total(), 7.5 * 8000);
  EXPECT_EQ(ModelStates(2, 8000, 8, kMixedWithFloatGradients).total(), 4 * 8000);
  EXPECT_EQ(ModelStates(3, 8000, 8, kMixedWithFloatGradients).total(), 2.25 * 8000);
}

struct Sent {
  int64_t all_gather, reduce_scatter, all_reduce;
  int64_t total() const { return all_gather + reduce_scatter + all_reduce; }
};
Sent Gpt2Step(int stage, int64_t micro_batches, const StateWidths& widths) {
  const auto bytes = StepTraffic(stage, kGpt2, 8, micro_batches, widths);
  EXPECT_EQ(bytes[static_cast<int>(Collective::kBroadcast)], 0);
  return {bytes[static_cast<int>(Collective::kAllGather)],
          bytes[static_cast<int>(Collective::kReduceScatter)],
          bytes[static_cast<int>(Collective::kAllReduce)]};
}

TEST(Formulas, GiveTheTrafficOfGpt2OnEightRanks) {
  constexpr int64_t kOnce = 217'769'664;  // 2 bytes x Psi x 7/8
  const Sent stage0 = Gpt2Step(0, 1, kMixed);
  EXPECT_EQ(stage0.all_reduce, 2 * kOnce);
  EXPECT_EQ(stage0.total(), 435'539'328);
  for (const int stage : {1, 2}) {
    const Sent sent = Gpt2Step(stage, 1, kMixed);
    EXPECT_EQ(sent.all_gather, kOnce);
    EXPECT_EQ(sent.reduce_scatter, kOnce);
    EXPECT_EQ(sent.total(), 435'539'328);
  }
  const Sent stage3 = Gpt2Step(3, 1, kMixed);
  EXPECT_EQ(stage3.all_gather, 2 * kOnce);
  EXPECT_EQ(stage3.reduce_scatter, kOnce);
  EXPECT_EQ(stage3.total(), 653'308'992);
}

TEST(Formulas, GiveTheTrafficOfFourMicroBatches) {
  // MB: bf16 gradients, then fp32 gradients.
  EXPECT_EQ(Gpt2Step(0, 4, kMixed).total(), 435'539'328);
  EXPECT_EQ(Gpt2Step(1, 4, kMixed).total(), 435'539'328);
  EXPECT_EQ(Gpt2Step(2, 4, kMixed).total(), 1'088'848'320);
  EXPECT_EQ(Gpt2Step(3, 4, kMixed).total(), 2'613'235'968);
  EXPECT_EQ(Gpt2Step(1, 4, kMixedWithFloatGradients).total(), 653'308'992);
  EXPECT_EQ(Gpt2Step(2, 4, kMixedWithFloatGradients).total(), 1'959'926'976);
  EXPECT_EQ(Gpt2Step(3, 4, kMixedWithFloatGradients).total(), 3'484'314'624);
}

TEST(Formulas, GiveTheModelStatesOfGpt2WithGradientsInFp32) {
  // 18 bytes a parameter; at N = 8 7.5, 4 and 2.25.
  const int64_t bytes[] = {2'239'916'544, 933'298'560, 497'759'232, 279'989'568};
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(ModelStates(stage, kGpt2, 8, kMixedWithFloatGradients).total(), bytes[stage]);
  }
}

void ExpectOffload(const OffloadBytes& bytes, int64_t device_parameters, int64_t device_gradients,
                   int64_t host_gradients, int64_t host_optimizer_states, int64_t to_host,
                   int64_t from_host) {
  EXPECT_EQ(bytes.device.parameters, device_parameters);
  EXPECT_EQ(bytes.device.gradients, device_gradients);
  EXPECT_EQ(bytes.device.optimizer_states, 0);
  EXPECT_EQ(bytes.host.parameters, 0);
  EXPECT_EQ(bytes.host.gradients, host_gradients);
  EXPECT_EQ(bytes.host.optimizer_states, host_optimizer_states);
  EXPECT_EQ(bytes.to_host, to_host);
  EXPECT_EQ(bytes.from_host, from_host);
}

TEST(Formulas, GiveWhatAnOffloadedOptimizerLeavesOnTheDevice) {
  // bf16, N = 8. A rank's eighth is 15,554,976 parameters.
  constexpr int64_t kOwned = 15'554'976;
  ExpectOffload(OptimizerOffload(0, kGpt2, 8, 1, kMixed), 248'879'616, 248'879'616, 248'879'616,
                1'493'277'696, 248'879'616, 248'879'616);
  ExpectOffload(OptimizerOffload(1, kGpt2, 8, 1, kMixed), 248'879'616, 248'879'616, 2 * kOwned,
                186'659'712, 31'109'952, 31'109'952);
  // ZeRO-Offload itself: the device keeps 2 Psi, 2 Psi/N go down and 2 Psi/N come up.
  ExpectOffload(OptimizerOffload(2, kGpt2, 8, 1, kMixed), 248'879'616, 0, 2 * kOwned, 186'659'712,
                31'109'952, 31'109'952);
  ExpectOffload(OptimizerOffload(3, kGpt2, 8, 1, kMixed), 31'109'952, 0, 2 * kOwned, 186'659'712,
                31'109'952, 31'109'952);
}

TEST(Formulas, CopyTheGradientsOfEveryMicroBatchWhereNoneIsKept) {
  constexpr int64_t kOwned = 15'554'976;
  ExpectOffload(OptimizerOffload(1, kGpt2, 8, 4, kMixedWithFloatGradients), 248'879'616,
                497'759'232, 4 * kOwned, 12 * kOwned, 62'219'904, 31'109'952);
  ExpectOffload(OptimizerOffload(2, kGpt2, 8, 4, kMixedWithFloatGradients), 248'879'616, 0,
                4 * kOwned, 12 * kOwned, 248'879'616, 31'109'952);
  ExpectOffload(OptimizerOffload(3, kGpt2, 8, 4, kMixed), 31'109'952, 0, 2 * kOwned, 12 * kOwned,
                124'439'808, 31'109'952);
}

TEST(Formulas, KeepMasterWeightsOnTheHostInFp32Too) {
  ExpectOffload(OptimizerOffload(2, 8000, 8, 3, kFloat), 32000, 0, 4000, 12000, 12000, 4000);
}

TEST(Formulas, RoundWhatNDoesNotDivideOnce) {
  // Psi = 30,954 on 4 ranks: 7738.5 parameters each.
  EXPECT_EQ(ModelStates(3, 30'954, 4, kFloat).total(), 123'816);  // 16 x 7738.5
  ExpectOffload(OptimizerOffload(2, 30'954, 4, 3, kFloat), 123'816, 0, 30'954, 92'862, 92'862,
                30'954);
  // 10^15 parameters, 65,536 micro-batches of 4 bytes: more than 2^64 before the division.
  EXPECT_EQ(OptimizerOffload(2, 1'000'000 * kBillion, 64, 65'536, kFloat).to_host,
            4'096'000'000 * kBillion);
}

TEST(Formulas, TakeEveryStageForStage0OnOneRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(ModelStates(stage, kGpt2, 1, kMixed).total(), 16 * kGpt2);
    ExpectOffload(OptimizerOffload(stage, 8000, 1, 4, kMixed), 16000, 16000, 16000, 96000, 16000,
                  16000);
  }
}

TEST(Formulas, SendNothingFromOneRankToItself) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t bytes : StepTraffic(stage, kGpt2, 1, 3, kMixed)) EXPECT_EQ(bytes, 0);
  }
}

TEST(Formulas, DoNotOverflowAtTheSizesThatThePaperDreamsOf) {
  // 10^15 parameters, 1000 micro-batches: 4 x 10^15 x 1000 x 2 x 7/8 bytes gathered.
  const auto bytes = StepTraffic(3, 1'000'000 * kBillion, 8, 1000, kFloat);
  EXPECT_EQ(bytes[static_cast<int>(Collective::kAllGather)], 7'000'000'000 * kBillion);
}

}  // namespace
}  // namespace zerobox
