// SPDX-License-Identifier: Apache-2.0
//
// What a recorded step says agrees with what was counted beside it: the ledger, the traffic, and
// the copies; and its times with the order that the events enforce.
#include "trainer/tracer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/small_run.h"
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

class TraceTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    settings_ = Settings(GetParam());
    run_ = RunSmall(settings_);
    ASSERT_TRUE(run_.result.status.ok()) << run_.result.status;
    ASSERT_TRUE(run_.result.trace.has_value());
    ASSERT_EQ(trace().ranks.size(), static_cast<size_t>(settings_.devices));
    ASSERT_EQ(trace().step, 4);
  }
  const StepTrace& trace() const { return *run_.result.trace; }
  const TraceOp& OpOf(const TraceSpan& span) const { return trace().ops[span.op]; }

  TrainSettings settings_;
  SmallRun run_;
};

INSTANTIATE_TEST_SUITE_P(, TraceTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TraceTest, RegionsSumToTheLedgersPeakToTheByte) {
  for (size_t rank = 0; rank < trace().ranks.size(); ++rank) {
    const TracePeak peak = PeakOf(trace().ranks[rank].regions);
    EXPECT_EQ(peak.bytes, run_.result.ranks[rank].memory.peak_bytes);
    EXPECT_EQ(peak.categories, run_.result.ranks[rank].memory.at_peak);
    EXPECT_GE(peak.ns, 0);
    EXPECT_LE(peak.ns, trace().duration_ns);
  }
}

TEST_P(TraceTest, BytesOfTheOpsAreWhatWasCounted) {
  std::map<OpKind, CollectiveCount> sent;
  CollectiveCount scalars;
  std::map<StreamId, int64_t> copied;
  for (const TraceOp& op : trace().ops) {
    if (op.kind == OpKind::kCopy) copied[op.stream] += op.bytes;
    if (op.stream != StreamId::kCommunication) continue;
    CollectiveCount& count = op.purpose == OpPurpose::kScalars ? scalars : sent[op.kind];
    ++count.calls;
    count.bytes_sent += op.bytes;
  }
  for (int rank = 0; rank < settings_.devices; ++rank) {
    EXPECT_EQ(sent[OpKind::kAllGather], Counted(run_, rank, Collective::kAllGather));
    EXPECT_EQ(sent[OpKind::kReduceScatter], Counted(run_, rank, Collective::kReduceScatter));
    EXPECT_EQ(sent[OpKind::kAllReduce], Counted(run_, rank, Collective::kAllReduce));
    EXPECT_EQ(scalars, run_.result.ranks[rank].step_traffic.scalars);
    const CopiedBytes& counted = run_.result.ranks[rank].step_copies;
    EXPECT_EQ(copied[StreamId::kToHost], counted.to_host);
    EXPECT_EQ(copied[StreamId::kFromHost], counted.from_host);
  }
}

TEST_P(TraceTest, SpansOfAStreamFollowEachOtherWithinTheStep) {
  for (const StepTrace::Rank& rank : trace().ranks) {
    std::map<StreamId, int64_t> end;
    std::map<StreamId, int> op;
    for (const TraceSpan& span : rank.spans) {
      const StreamId stream = OpOf(span).stream;
      EXPECT_LE(end[stream], span.begin_ns);
      EXPECT_LE(span.begin_ns, span.end_ns);
      EXPECT_LE(span.end_ns, trace().duration_ns);
      EXPECT_LE(op[stream], span.op);
      end[stream] = span.end_ns;
      op[stream] = span.op;
    }
  }
}

TEST_P(TraceTest, EveryOpHasASpanOnEveryRankAndEveryVisitOfEveryMicroBatchComputes) {
  // Of a unit of 4 blocks: lookup, 4 blocks and head, forward and backward.
  std::map<std::tuple<int64_t, OpKind, std::string>, int> visits;
  for (const TraceOp& op : trace().ops) {
    if (op.stream == StreamId::kCompute) ++visits[{op.micro_batch, op.kind, op.layer}];
  }
  for (int64_t i = 0; i < settings_.grad_accum; ++i) {
    for (const char* layer : {"lookup", "block 0", "block 1", "block 2", "block 3", "head"}) {
      EXPECT_EQ((visits[{i, OpKind::kForward, layer}]), 1) << layer << i;
      const bool again = settings_.activation_checkpointing != ActivationCheckpointing::kNone &&
                         std::string(layer).starts_with("block");
      EXPECT_EQ((visits[{i, OpKind::kRecompute, layer}]), again ? 1 : 0) << layer << i;
      EXPECT_EQ((visits[{i, OpKind::kBackward, layer}]), 1) << layer << i;
    }
  }
  for (const StepTrace::Rank& rank : trace().ranks) {
    std::vector<bool> has_span(trace().ops.size());
    for (const TraceSpan& span : rank.spans) has_span[span.op] = true;
    EXPECT_EQ(std::count(has_span.begin(), has_span.end(), false), 0);
  }
}

// Where parameters are gathered for a visit, nothing computes with them before the gather has ended
// or after they are freed; the lookup's backward needs none.
TEST_P(TraceTest, NothingComputesWithASliceThatItDoesNotHold) {
  for (const StepTrace::Rank& rank : trace().ranks) {
    std::vector<TraceRegion> gathered;
    for (const TraceRegion& region : rank.regions) {
      if (region.category == Category::kCommunicationBuffers &&
          region.holds == Category::kParameters) {
        EXPECT_EQ(region.extent, Extent::kFull);
        EXPECT_GE(region.unit, 0);
        gathered.push_back(region);
      }
    }
    const bool sharded = settings_.zero_stage == 3 && settings_.devices > 1;
    EXPECT_EQ(gathered.empty(), !sharded);
    if (!sharded) continue;
    for (const TraceSpan& span : rank.spans) {
      const TraceOp& op = OpOf(span);
      const bool visit = op.kind == OpKind::kForward || op.kind == OpKind::kRecompute ||
                         op.kind == OpKind::kBackward;
      if (op.stream != StreamId::kCompute || !visit) continue;
      if (op.kind == OpKind::kBackward && op.layer == "lookup") continue;
      const auto holds = [&](const TraceRegion& region) {
        return region.unit == op.unit && region.begin_ns <= span.begin_ns &&
               span.end_ns <= region.end_ns;
      };
      const auto region = std::find_if(gathered.begin(), gathered.end(), holds);
      ASSERT_NE(region, gathered.end()) << Name(op.kind) << " " << op.layer;
      for (const TraceSpan& gather : rank.spans) {
        const TraceOp& other = OpOf(gather);
        if (other.kind != OpKind::kAllGather || other.unit != op.unit) continue;
        if (gather.begin_ns < region->begin_ns || gather.begin_ns >= region->end_ns) continue;
        EXPECT_LE(gather.end_ns, span.begin_ns) << Name(op.kind) << " " << op.layer;
      }
    }
  }
}

TEST_P(TraceTest, BucketsLiveWhileTheyAreReduced) {
  if (settings_.zero_stage < 2 || settings_.devices == 1) return;
  for (const StepTrace::Rank& rank : trace().ranks) {
    int reductions = 0;
    for (const TraceSpan& span : rank.spans) {
      const TraceOp& op = OpOf(span);
      if (op.kind != OpKind::kReduceScatter) continue;
      ++reductions;
      EXPECT_TRUE(std::any_of(rank.regions.begin(), rank.regions.end(),
                              [&](const auto& region) {
                                return region.category == Category::kCommunicationBuffers &&
                                       region.holds == Category::kGradients &&
                                       region.unit == op.unit && region.begin_ns <= span.begin_ns &&
                                       span.end_ns <= region.end_ns;
                              }))
          << "unit " << op.unit;
    }
    EXPECT_GT(reductions, 5);  // several buckets a unit
  }
}

TEST_P(TraceTest, TheStatesOfTheModelAreThereAsTheStageSays) {
  const bool many = settings_.devices > 1;
  const auto extent = [&](Category holds) {
    const int from = holds == Category::kParameters ? 3 : holds == Category::kGradients ? 2 : 1;
    return many && settings_.zero_stage >= from ? Extent::kShard : Extent::kFull;
  };
  for (const StepTrace::Rank& rank : trace().ranks) {
    std::map<Category, int> regions;
    for (const TraceRegion& region : rank.regions) {
      if (region.category != region.holds || region.extent == Extent::kNone) continue;
      EXPECT_EQ(region.extent, extent(region.holds));
      EXPECT_EQ(region.unit, -1);
      EXPECT_EQ(region.begin_ns, -1);
      EXPECT_EQ(region.end_ns, -1);
      ++regions[region.holds];
    }
    EXPECT_EQ(regions[Category::kParameters], 1);
    // Offloaded, gradients stay on the device only where they are reduced there whole.
    const bool gradients = !settings_.offload_optimizer || settings_.zero_stage < 2 || !many;
    EXPECT_EQ(regions[Category::kGradients], gradients ? 1 : 0);
    const int states = settings_.dtype == DType::kBFloat16 ? 3 : 2;
    EXPECT_EQ(regions[Category::kOptimizerStates], settings_.offload_optimizer ? 0 : states);
  }
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
  std::array<RankTrace, 2> ranks = {rank, rank};
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
