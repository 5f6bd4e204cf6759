// SPDX-License-Identifier: Apache-2.0
//
// The plan: a rank's step program walked against a device that only counts.
#include <numeric>

#include "ops/collectives/plan_communicator.h"
#include "ops/device/plan_device.h"
#include "trainer/gpt.h"
#include "trainer/plan_parts.h"
#include "trainer/replica.h"
#include "trainer/step_programs.h"
#include "trainer/train.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

// Of many micro-batches the middle ones are alike, so that three show every moment of a step.
constexpr int64_t kMostWalked = 3;

absl::StatusOr<RankPlan> WalkRank(const TrainSettings& settings, const Layout& layout, int rank) {
  PlanDevice device;
  PlanCommunicator communicator(rank, settings.devices);
  Replica replica(device, communicator, layout, settings);
  replica.InitializeWeights();
  RankPlan plan;
  const int64_t steps = std::min<int64_t>(2, settings.steps);  // the second is a steady one
  for (int64_t step = 0; step < steps; ++step) {
    const Traffic sent = communicator.traffic();
    const CopiedBytes copied = device.copied();
    replica.TrainStep(nullptr, 1);
    if (auto outcome = replica.Outcome(); !outcome.ok()) return outcome.status();
    plan.step_traffic = communicator.traffic() - sent;
    plan.step_copies = device.copied() - copied;
    // An evaluation gathers what the step has left stale, so the next step need not.
    if (settings.eval_interval != 1) continue;
    if (auto loss = replica.EvaluateBatch(nullptr); !loss.ok()) return loss.status();
  }
  plan.memory = device.memory().ledger();
  plan.host_memory = device.host_memory().ledger();
  if (settings.eval_interval > 0) {
    if (auto loss = replica.EvaluateBatch(nullptr); !loss.ok()) return loss.status();
  }
  if (absl::Status status = replica.ReadParameters(nullptr); !status.ok()) return status;
  plan.regions = device.memory().high_water();
  plan.host_regions = device.host_memory().high_water();
  return plan;
}

CollectiveCount Extrapolated(const CollectiveCount& two, const CollectiveCount& three,
                             int64_t more) {
  return {three.calls + more * (three.calls - two.calls),
          three.bytes_sent + more * (three.bytes_sent - two.bytes_sent)};
}

absl::StatusOr<RankPlan> PlanRank(TrainSettings settings, const Layout& layout, int rank) {
  const int64_t more = settings.grad_accum - kMostWalked;
  settings.grad_accum = std::min(settings.grad_accum, kMostWalked);
  absl::StatusOr<RankPlan> plan = WalkRank(settings, layout, rank);
  if (more <= 0 || !plan.ok()) return plan;
  settings.grad_accum = kMostWalked - 1;
  const absl::StatusOr<RankPlan> two = WalkRank(settings, layout, rank);
  if (!two.ok()) return two.status();
  // Memory is the same; what is sent and copied grows by a middle micro-batch each.
  Traffic& traffic = plan->step_traffic;
  for (int i = 0; i < kCollectives; ++i) {
    traffic.collectives[i] =
        Extrapolated(two->step_traffic.collectives[i], traffic.collectives[i], more);
  }
  traffic.scalars = Extrapolated(two->step_traffic.scalars, traffic.scalars, more);
  CopiedBytes& copies = plan->step_copies;
  const CopiedBytes middle = copies - two->step_copies;
  copies.to_host += more * middle.to_host;
  copies.from_host += more * middle.from_host;
  return plan;
}

}  // namespace

int64_t ReservedBytes(const RegionBytes& regions) {
  return std::accumulate(regions.begin(), regions.end(), int64_t{0});
}

absl::StatusOr<RunPlan> PlanRun(const TrainSettings& settings) {
  absl::StatusOr<Layout> layout = Layout::Make(GptParameters(settings.model), settings.devices,
                                               settings.bucket_bytes, settings.grad_accum_dtype);
  if (!layout.ok()) return layout.status();
  RunPlan plan;
  plan.parameters = layout->parameters();
  plan.padding = layout->padding();
  plan.types = settings.types();
  // Shards are of equal size, so what one rank holds and sends, every rank does.
  absl::StatusOr<RankPlan> rank_plan = PlanRank(settings, *layout, /*rank=*/0);
  if (!rank_plan.ok()) return rank_plan.status();
  plan.ranks.assign(settings.devices, *rank_plan);
  if (settings.devices > 1) {
    plan.paper_bytes = StepTraffic(settings.zero_stage, layout->parameters(), settings.devices,
                                   settings.grad_accum, WidthsOf(settings.types()));
  }
  if (settings.offload_optimizer) {
    const OffloadBytes paper =
        OptimizerOffload(settings.zero_stage, layout->parameters(), settings.devices,
                         settings.grad_accum, WidthsOf(settings.types()));
    plan.paper_copies = {.to_host = paper.to_host, .from_host = paper.from_host};
  }
  plan.differences = TrafficDifferences(settings, *layout);
  plan.copies = CopiedParts(settings, *layout, plan.paper_copies);
  plan.notes = MemoryNotes(settings, *layout, plan.ranks[0]);
  plan.program = TrainingProgram(settings.model.n_layer);
  return plan;
}

}  // namespace zerobox
