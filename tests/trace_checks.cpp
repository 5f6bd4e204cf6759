// SPDX-License-Identifier: Apache-2.0
#include "tests/trace_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/step_trace.h"

namespace zerobox {
namespace {

class Checker {
 public:
  Checker(const TrainSettings& settings, const SmallRun& run)
      : settings_(settings), run_(run), trace_(*run.result.trace) {}
  void RegionsSumToTheLedgersPeak() const;
  void BytesOfTheOpsAreWhatWasCounted() const;
  void SpansOfAStreamFollowEachOtherWithinTheStep() const;
  void EveryOpHasASpanAndEveryVisitComputes() const;
  void NothingComputesWithASliceThatItDoesNotHold() const;
  void BucketsLiveWhileTheyAreReduced() const;
  void TheStatesOfTheModelAreThereAsTheStageSays() const;

 private:
  const TraceOp& OpOf(const TraceSpan& span) const { return trace_.ops[span.op]; }
  bool many() const { return settings_.devices > 1; }

  const TrainSettings& settings_;
  const SmallRun& run_;
  const StepTrace& trace_;
};

void Checker::RegionsSumToTheLedgersPeak() const {
  for (size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
    const TracePeak peak = PeakOf(trace_.ranks[rank].regions);
    EXPECT_EQ(peak.bytes, run_.result.ranks[rank].memory.peak_bytes);
    EXPECT_EQ(peak.categories, run_.result.ranks[rank].memory.at_peak);
    EXPECT_GE(peak.ns, 0);
    EXPECT_LE(peak.ns, trace_.duration_ns);
  }
}

void Checker::BytesOfTheOpsAreWhatWasCounted() const {
  std::map<OpKind, CollectiveCount> sent;
  CollectiveCount scalars;
  std::map<StreamId, int64_t> copied;
  for (const TraceOp& op : trace_.ops) {
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

void Checker::SpansOfAStreamFollowEachOtherWithinTheStep() const {
  for (const StepTrace::Rank& rank : trace_.ranks) {
    std::map<StreamId, int64_t> end;
    std::map<StreamId, int> op;
    for (const TraceSpan& span : rank.spans) {
      const StreamId stream = OpOf(span).stream;
      EXPECT_LE(end[stream], span.begin_ns);
      EXPECT_LE(span.begin_ns, span.end_ns);
      EXPECT_LE(span.end_ns, trace_.duration_ns);
      EXPECT_LE(op[stream], span.op);
      end[stream] = span.end_ns;
      op[stream] = span.op;
    }
  }
}

void Checker::EveryOpHasASpanAndEveryVisitComputes() const {
  std::map<std::tuple<int64_t, OpKind, std::string>, int> visits;
  for (const TraceOp& op : trace_.ops) {
    if (op.stream == StreamId::kCompute) ++visits[{op.micro_batch, op.kind, op.layer}];
  }
  std::vector<std::string> layers = {"lookup", "head"};
  for (int64_t block = 0; block < settings_.model.n_layer; ++block) {
    layers.push_back("block " + std::to_string(block));
  }
  for (int64_t i = 0; i < settings_.grad_accum; ++i) {
    for (const std::string& layer : layers) {
      EXPECT_EQ((visits[{i, OpKind::kForward, layer}]), 1) << layer << i;
      const bool again = settings_.activation_checkpointing != ActivationCheckpointing::kNone &&
                         layer.starts_with("block");
      EXPECT_EQ((visits[{i, OpKind::kRecompute, layer}]), again ? 1 : 0) << layer << i;
      EXPECT_EQ((visits[{i, OpKind::kBackward, layer}]), 1) << layer << i;
    }
  }
  for (const StepTrace::Rank& rank : trace_.ranks) {
    std::vector<bool> has_span(trace_.ops.size());
    for (const TraceSpan& span : rank.spans) has_span[span.op] = true;
    for (size_t op = 0; op < has_span.size(); ++op) {
      // Of a bucket a rank may own nothing but padding.
      EXPECT_TRUE(has_span[op] || trace_.ops[op].kind == OpKind::kUpdate) << "op " << op;
    }
  }
}

// Where parameters are gathered for a visit, nothing computes with them before the gather has ended
// or after they are freed; the lookup's backward needs none.
void Checker::NothingComputesWithASliceThatItDoesNotHold() const {
  for (const StepTrace::Rank& rank : trace_.ranks) {
    std::vector<TraceRegion> gathered;
    for (const TraceRegion& region : rank.regions) {
      if (region.category == Category::kCommunicationBuffers &&
          region.holds == Category::kParameters) {
        EXPECT_EQ(region.extent, Extent::kFull);
        EXPECT_GE(region.unit, 0);
        gathered.push_back(region);
      }
    }
    const bool sharded = settings_.zero_stage == 3 && many();
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
      int gathers = 0;
      for (const TraceSpan& gather : rank.spans) {
        const TraceOp& other = OpOf(gather);
        if (other.kind != OpKind::kAllGather || other.unit != op.unit) continue;
        if (gather.begin_ns < region->begin_ns || gather.begin_ns >= region->end_ns) continue;
        ++gathers;
        EXPECT_LE(gather.end_ns, span.begin_ns) << Name(op.kind) << " " << op.layer;
      }
      EXPECT_GT(gathers, 0) << Name(op.kind) << " " << op.layer;
    }
  }
}

void Checker::BucketsLiveWhileTheyAreReduced() const {
  if (settings_.zero_stage < 2 || !many()) return;
  for (const StepTrace::Rank& rank : trace_.ranks) {
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
    EXPECT_GE(reductions, settings_.model.n_layer + 1);  // a bucket or more of each unit
  }
}

void Checker::TheStatesOfTheModelAreThereAsTheStageSays() const {
  const auto extent = [&](Category holds) {
    const int from = holds == Category::kParameters ? 3 : holds == Category::kGradients ? 2 : 1;
    return many() && settings_.zero_stage >= from ? Extent::kShard : Extent::kFull;
  };
  for (const StepTrace::Rank& rank : trace_.ranks) {
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
    const bool gradients = !settings_.offload_optimizer || settings_.zero_stage < 2 || !many();
    EXPECT_EQ(regions[Category::kGradients], gradients ? 1 : 0);
    const int states = settings_.dtype == DType::kBFloat16 ? 3 : 2;
    EXPECT_EQ(regions[Category::kOptimizerStates], settings_.offload_optimizer ? 0 : states);
  }
}

}  // namespace

void ExpectTraceAgrees(const TrainSettings& settings, const SmallRun& run) {
  ASSERT_TRUE(run.result.trace.has_value()) << run.result.trace_error;
  ASSERT_EQ(run.result.trace->ranks.size(), static_cast<size_t>(settings.devices));
  const Checker checker(settings, run);
  checker.RegionsSumToTheLedgersPeak();
  checker.BytesOfTheOpsAreWhatWasCounted();
  checker.SpansOfAStreamFollowEachOtherWithinTheStep();
  checker.EveryOpHasASpanAndEveryVisitComputes();
  checker.NothingComputesWithASliceThatItDoesNotHold();
  checker.BucketsLiveWhileTheyAreReduced();
  checker.TheStatesOfTheModelAreThereAsTheStageSays();
}

}  // namespace zerobox
