// SPDX-License-Identifier: Apache-2.0
//
// Recorded steps of real runs: what they agree with (tests/trace_checks.h), what is in them, and
// which step it is.
#include "trainer/tracer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/small_run.h"
#include "tests/trace_checks.h"
#include "trainer/step_trace.h"

namespace zerobox {
namespace {

struct Case {
  std::string name;
  int stage = 0;
  int devices = 1;
  int64_t micro_batches = 1;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::kNone;
  bool offload_optimizer = false;
  bool offload_activations = false;
  DType dtype = DType::kFloat32;
};

TrainSettings Settings(const Case& c) {
  TrainSettings settings = SmallSettings();
  settings.model.n_layer = 4;
  settings.zero_stage = c.stage;
  settings.devices = c.devices;
  settings.grad_accum = c.micro_batches;
  settings.activation_checkpointing = c.checkpointing;
  settings.offload_optimizer = c.offload_optimizer;
  settings.offload_activations = c.offload_activations;
  settings.dtype = settings.grad_accum_dtype = c.dtype;
  settings.bucket_bytes = 20000;  // several buckets a unit
  settings.steps = 4;
  settings.eval_interval = 0;
  settings.trace_step = kTraceLast;
  return settings;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int devices : {1, 2, 4, 8}) {
      const std::string at = "Stage" + std::to_string(stage) + "On" + std::to_string(devices);
      cases.push_back({.name = at, .stage = stage, .devices = devices});
      if (devices != 2 && devices != 4) continue;
      cases.push_back({.name = at + "With3MicroBatches",
                       .stage = stage,
                       .devices = devices,
                       .micro_batches = 3,
                       .dtype = DType::kBFloat16});
      cases.push_back({.name = at + "WithOffload",
                       .stage = stage,
                       .devices = devices,
                       .micro_batches = 2,
                       .checkpointing = ActivationCheckpointing::kFull,
                       .offload_optimizer = true,
                       .offload_activations = true,
                       .dtype = DType::kBFloat16});
      cases.push_back({.name = at + "WithSelectiveCheckpoints",
                       .stage = stage,
                       .devices = devices,
                       .checkpointing = ActivationCheckpointing::kSelective});
    }
  }
  return cases;
}

class TraceTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(, TraceTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TraceTest, AgreesWithWhatWasCountedBesideIt) {
  const TrainSettings settings = Settings(GetParam());
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  ExpectTraceAgrees(settings, run);
  EXPECT_EQ(run.result.trace->step, 4);
  if (settings.devices == 1) return;
  const std::vector<TraceOp>& ops = run.result.trace->ops;
  const auto calls = std::count_if(ops.begin(), ops.end(), [](const TraceOp& op) {
    return op.stream == StreamId::kCommunication && op.purpose == OpPurpose::kGradients;
  });
  EXPECT_GT(calls, 5);  // units have several buckets
}

std::vector<std::string> Names(const StepTrace& trace, StreamId stream) {
  std::vector<std::string> names;
  for (const TraceOp& op : trace.ops) {
    if (op.stream != stream) continue;
    const bool step = op.phase == StepPhase::kStep;
    names.push_back(std::string(Name(op.kind)) + " " + std::to_string(op.unit) +
                    (op.layer.empty() ? "" : " " + op.layer) +
                    (op.purpose == OpPurpose::kNone ? "" : " " + std::string(Name(op.purpose))) +
                    (step ? "" : " in " + std::string(Name(op.phase))));
  }
  return names;
}

TEST(Trace, OfStage3IsItsStepProgram) {
  TrainSettings settings = Settings({.stage = 3, .devices = 2});
  settings.model.n_layer = 2;
  settings.bucket_bytes = int64_t{25} << 20;
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.trace.has_value());
  using List = std::vector<std::string>;
  EXPECT_EQ(Names(*run.result.trace, StreamId::kCompute),
            (List{"forward 0 lookup in forward", "forward 1 block 0 in forward",
                  "forward 2 block 1 in forward", "forward 0 head in forward",
                  "backward 0 head in backward", "backward 2 block 1 in backward",
                  "backward 1 block 0 in backward", "backward 0 lookup in backward", "norm -1",
                  "update 0", "update 1", "update 2"}));
  EXPECT_EQ(Names(*run.result.trace, StreamId::kCommunication),
            (List{"all_gather 0 parameters in forward", "all_gather 1 parameters in forward",
                  "all_gather 2 parameters in forward", "all_gather 0 parameters in forward",
                  "all_gather 1 parameters in backward", "reduce_scatter 2 gradients in backward",
                  "reduce_scatter 1 gradients in backward",
                  "reduce_scatter 0 gradients in backward", "all_reduce -1 scalars"}));
  EXPECT_EQ(Names(*run.result.trace, StreamId::kFromHost), (List{"copy -1 batch in forward"}));
  EXPECT_EQ(Names(*run.result.trace, StreamId::kToHost), (List{"copy -1 results"}));
}

TEST(Trace, OfOffloadHasItsCopiesAndTheUpdateOnTheHostSide) {
  TrainSettings settings = Settings({.stage = 2, .devices = 2, .offload_optimizer = true});
  settings.model.n_layer = 1;
  settings.bucket_bytes = int64_t{25} << 20;
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.trace.has_value());
  using List = std::vector<std::string>;
  EXPECT_EQ(Names(*run.result.trace, StreamId::kToHost),
            (List{"copy 1 gradients in backward", "copy 0 gradients in backward", "norm -1",
                  "copy -1 state", "update 0", "update 1", "copy -1 results"}));
  EXPECT_EQ(Names(*run.result.trace, StreamId::kFromHost),
            (List{"copy -1 batch in forward", "copy -1 squares", "copy 0 parameters",
                  "copy 1 parameters"}));
}

TEST(Trace, OfOffloadedCheckpointsSaysWhoseTheyAre) {
  const SmallRun run = RunSmall(Settings({.stage = 1,
                                          .devices = 2,
                                          .checkpointing = ActivationCheckpointing::kFull,
                                          .offload_activations = true}));
  ASSERT_TRUE(run.result.trace.has_value());
  using List = std::vector<std::string>;
  // Of blocks 0 to 3, units 1 to 4: the last two stay on the device.
  EXPECT_EQ(
      Names(*run.result.trace, StreamId::kToHost),
      (List{"copy 1 checkpoint in forward", "copy 2 checkpoint in forward", "copy -1 results"}));
  EXPECT_EQ(Names(*run.result.trace, StreamId::kFromHost),
            (List{"copy -1 batch in forward", "copy 2 checkpoint in backward",
                  "copy 1 checkpoint in backward"}));
}

TEST(Trace, HasTheUpdateOfABucketOfWhichSomeRankOwnsPaddingAlone) {
  TrainSettings settings = Settings({.stage = 2, .devices = 8});
  settings.bucket_bytes = 1;  // one parameter each: of 33 biases the last of 8 ranks owns none
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  ExpectTraceAgrees(settings, run);
  std::array<int, 8> updates{};
  for (size_t rank = 0; rank < 8; ++rank) {
    for (const TraceSpan& span : run.result.trace->ranks[rank].spans) {
      updates[rank] += run.result.trace->ops[span.op].kind == OpKind::kUpdate ? 1 : 0;
    }
  }
  EXPECT_EQ(updates[0], 4 + 4 * 12);
  EXPECT_LT(updates[7], updates[0]);
}

TEST(Trace, ChangesNoResult) {
  TrainSettings settings = Settings({.stage = 3, .devices = 4, .micro_batches = 2});
  const SmallRun traced = RunSmall(settings);
  settings.trace_step = kTraceOff;
  const SmallRun plain = RunSmall(settings);
  ASSERT_TRUE(traced.result.trace.has_value());
  ASSERT_FALSE(plain.result.trace.has_value());
  EXPECT_EQ(Bits(traced.result), Bits(plain.result));
  EXPECT_EQ(traced.parameters, plain.parameters);
}

struct Choice {
  int64_t steps, trace_step, eval_interval, expected;
};

TEST(Trace, IsOfTheStepThatIsAskedForOrTheLastSteadyOne) {
  for (const Choice& choice :
       {Choice{7, kTraceLast, 0, 7}, Choice{1, kTraceLast, 0, 1}, Choice{2, kTraceLast, 0, 2},
        Choice{7, 3, 0, 3}, Choice{7, 7, 0, 7},
        // Behind an evaluation parameters are gathered already.
        Choice{7, kTraceLast, 3, 6}, Choice{7, kTraceLast, 1, 7}, Choice{7, 4, 3, 4}}) {
    TrainSettings settings = Settings({.stage = 1, .devices = 2});
    settings.steps = choice.steps;
    settings.trace_step = choice.trace_step;
    settings.eval_interval = choice.eval_interval;
    const SmallRun run = RunSmall(settings);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    ASSERT_TRUE(run.result.trace.has_value());
    EXPECT_EQ(run.result.trace->step, choice.expected);
  }
}

TEST(Trace, OfAStepThatIsTooLongIsMissingAndTheRunIsNot) {
  // With a bucket for each parameter, more than 60,000 ops on the two ranks of a step.
  TrainSettings settings = Settings({.stage = 2, .devices = 2, .micro_batches = 600});
  settings.model = {.n_layer = 4, .n_head = 1, .n_embd = 2, .seq_len = 2, .vocab_size = 3};
  settings.micro_batch = 1;
  settings.bucket_bytes = 1;
  settings.steps = 2;
  SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_FALSE(run.result.trace.has_value());
  EXPECT_EQ(run.result.trace_error,
            "wanted at most 30000 ops on each device, found more in a step: fewer micro-batches "
            "(--grad_accum) or larger buckets make fewer");
  settings.grad_accum = 60;
  run = RunSmall(settings);
  ASSERT_TRUE(run.result.trace.has_value()) << run.result.trace_error;
  EXPECT_GT(run.result.trace->ops.size(), 3000u);
}

TEST(Trace, OfARunThatFailsBehindItsLastStepIsMissing) {
  const TrainSettings settings = Settings({.stage = 1, .devices = 2});
  // The model is read by gathers of its five units, behind the last step.
  int64_t calls = 0;
  (void)RunSmall(settings, {.call = [&](const CallInfo& call) {
                   if (call.rank == 1) calls = call.number + 1;
                   return absl::OkStatus();
                 }});
  const SmallRun run = RunSmall(settings, {.call = [&](const CallInfo& call) {
                                  return call.rank == 1 && call.number == calls - 1
                                             ? absl::InternalError("lost")
                                             : absl::OkStatus();
                                }});
  EXPECT_FALSE(run.result.status.ok());
  EXPECT_EQ(run.result.steps, 4);
  EXPECT_FALSE(run.result.trace.has_value());
}

TEST(Trace, IsMissingWhereTheRunEndsBefore) {
  TrainSettings settings = Settings({.stage = 1, .devices = 2});
  settings.trace_step = 9;  // of 4
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_FALSE(run.result.trace.has_value());
}

TraceRegion Region(Category category, int64_t bytes, int64_t begin_ns, int64_t end_ns) {
  return {.category = category, .bytes = bytes, .begin_ns = begin_ns, .end_ns = end_ns};
}

TEST(Trace, PeakIsTheMostThatLivesAtOnce) {
  const std::vector<TraceRegion> regions = {
      Region(Category::kParameters, 100, -1, -1), Region(Category::kActivations, 30, 5, 9),
      Region(Category::kActivations, 40, 9, 12), Region(Category::kCommunicationBuffers, 7, 8, 10)};
  const TracePeak peak = PeakOf(regions);
  EXPECT_EQ(peak.bytes, 147);
  EXPECT_EQ(peak.ns, 9);
  EXPECT_EQ(peak.categories[static_cast<size_t>(Category::kActivations)], 40);
}

TEST(Trace, OfRanksThatDidDifferentThingsIsRefused) {
  RankTrace rank;
  rank.step = 3;
  rank.ops.resize(2);
  rank.ops[1].kind = OpKind::kAllGather;
  std::vector<RankTrace> ranks = {rank, rank};
  EXPECT_TRUE(MergeTraces(ranks).ok());
  ranks[1].ops[1].unit = 5;
  EXPECT_EQ(MergeTraces(ranks).status().message(),
            "op 1 of step 3: device 1 did all_gather of unit 5 on compute, device 0 all_gather of "
            "unit -1 on compute");
  ranks[1] = rank;
  ranks[1].ops.pop_back();
  EXPECT_EQ(MergeTraces(ranks).status().message(),
            "op 1 of step 3: device 1 did nothing, device 0 all_gather of unit -1 on compute");
  ranks[1].step = 4;
  EXPECT_EQ(MergeTraces(ranks).status().message(), "device 1 recorded step 4, device 0 step 3");
}

}  // namespace
}  // namespace zerobox
