// SPDX-License-Identifier: Apache-2.0
//
// The plan: each rank's step program walked against a device that only counts.
#include <numeric>

#include "absl/strings/str_cat.h"
#include "ops/collectives/plan_communicator.h"
#include "ops/device/plan_device.h"
#include "trainer/gpt.h"
#include "trainer/replica.h"
#include "trainer/step_programs.h"
#include "trainer/train.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

absl::StatusOr<RankPlan> PlanRank(const TrainSettings& settings, const Layout& layout, int rank) {
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

// Why a step sends something else than the paper's formula says.
std::vector<TrafficDifference> Differences(const TrainSettings& settings, const Layout& layout) {
  std::vector<TrafficDifference> differences;
  const int64_t ranks = settings.devices;
  if (ranks == 1) return differences;
  const StateWidths widths = WidthsOf(settings.dtype);
  const auto paper =
      StepTraffic(settings.zero_stage, layout.parameters(), ranks, settings.grad_accum, widths);
  const auto padded =
      StepTraffic(settings.zero_stage, layout.padded(), ranks, settings.grad_accum, widths);
  for (int i = 0; i < kCollectives; ++i) {
    if (padded[i] == paper[i]) continue;
    differences.push_back({static_cast<Collective>(i), "padding", padded[i] - paper[i]});
  }
  if (settings.zero_stage == 3 && settings.model.n_layer > 0) {
    const Range last = layout.Unit(BlockUnit(settings.model.n_layer - 1));
    differences.push_back(
        {Collective::kAllGather, "the last block is kept from its forward to its backward",
         -settings.grad_accum * widths.parameters * last.size() / ranks * (ranks - 1)});
  }
  const bool only_step = settings.steps == 1;
  if ((only_step || settings.eval_interval == 1) && settings.zero_stage > 0 &&
      settings.zero_stage < 3) {
    const int gather = static_cast<int>(Collective::kAllGather);
    differences.push_back({Collective::kAllGather,
                           only_step
                               ? "nothing is stale before the first step, and there is no second"
                               : "the evaluation after each step has gathered what was stale",
                           -padded[gather]});
  }
  return differences;
}

std::vector<MemoryNote> Notes(const TrainSettings& settings, const Layout& layout) {
  std::vector<MemoryNote> notes;
  if (settings.devices == 1 || settings.zero_stage < 2) return notes;
  const int64_t width = SizeOf(settings.dtype);
  const int64_t ends = layout.Unit(kEnds).size() * width;
  int64_t bucket = 0;
  int64_t block = 0;
  for (UnitId unit = 1; unit < layout.units(); ++unit) {
    block = std::max(block, layout.Unit(unit).size() * width);
    for (const Bucket& b : layout.Buckets(unit)) bucket = std::max(bucket, b.range.size() * width);
  }
  const Category buffers = Category::kCommunicationBuffers;
  notes.push_back({buffers, "two gradient buckets of constant size (C_B), each", bucket});
  notes.push_back(
      {buffers,
       "the whole gradient of the ends (token and position embedding, final norm), from "
       "the head's backward to the lookup's",
       ends});
  if (settings.zero_stage < 3) return notes;
  notes.push_back(
      {buffers, "the ends' parameters, gathered for the lookup and for the head", ends});
  notes.push_back(
      {buffers, "up to two gathered blocks, the one in use and the one ahead, each", block});
  return notes;
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
  // Shards are of equal size, so what one rank holds and sends, every rank does.
  absl::StatusOr<RankPlan> rank_plan = PlanRank(settings, *layout, /*rank=*/0);
  if (!rank_plan.ok()) return rank_plan.status();
  plan.ranks.assign(settings.devices, *rank_plan);
  if (settings.devices > 1) {
    plan.paper_bytes = StepTraffic(settings.zero_stage, layout->parameters(), settings.devices,
                                   settings.grad_accum, WidthsOf(settings.dtype));
  }
  plan.differences = Differences(settings, *layout);
  plan.notes = Notes(settings, *layout);
  plan.program = TrainingProgram(settings.model.n_layer);
  return plan;
}

}  // namespace zerobox
