// SPDX-License-Identifier: Apache-2.0
//
// The plan: each rank's step program walked against a device that only counts.
#include <numeric>

#include "absl/strings/str_cat.h"
#include "ops/collectives/plan_communicator.h"
#include "ops/device/plan_device.h"
#include "trainer/activation_checkpoints.h"
#include "trainer/gpt.h"
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

// Why a step sends something else than the paper's formula says.
std::vector<TrafficDifference> Differences(const TrainSettings& settings, const Layout& layout) {
  std::vector<TrafficDifference> differences;
  const int64_t ranks = settings.devices;
  if (ranks == 1) return differences;
  const StateWidths widths = WidthsOf(settings.types());
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

// What stages 2 and 3 keep in communication buffers.
void NoteBuffers(const TrainSettings& settings, const Layout& layout,
                 std::vector<MemoryNote>& notes) {
  if (settings.devices == 1 || settings.zero_stage < 2) return;
  const int64_t gradient = SizeOf(settings.grad_accum_dtype);
  const int64_t parameter = SizeOf(settings.dtype);
  const int64_t ends = layout.Unit(kEnds).size();
  int64_t bucket = 0;
  int64_t block = 0;
  for (UnitId unit = BlockUnit(0); unit < layout.units(); ++unit) {
    block = std::max(block, layout.Unit(unit).size());
    for (const Bucket& b : layout.Buckets(unit)) bucket = std::max(bucket, b.range.size());
  }
  const Category buffers = Category::kCommunicationBuffers;
  notes.push_back(
      {buffers, "two gradient buckets of constant size (C_B), each", bucket * gradient});
  notes.push_back(
      {buffers,
       "the whole gradient of the ends (token and position embedding, final norm), from "
       "the head's backward to the lookup's",
       ends * gradient});
  if (settings.zero_stage < 3) return;
  notes.push_back({buffers, "the ends' parameters, gathered for the lookup and for the head",
                   ends * parameter});
  notes.push_back({buffers, "up to two gathered blocks, the one in use and the one ahead, each",
                   block * parameter});
}

// What a block keeps from its forward to its backward.
int64_t KeptByABlock(const TrainSettings& settings) {
  const ActivationCheckpointing mode = settings.activation_checkpointing;
  const bool checkpointed = mode != ActivationCheckpointing::kNone;
  const auto aligned = [](int64_t bytes) {
    return (bytes + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
  };
  int64_t values = 0, statistics = 0, apart = 0;
  for (int i = 0; i < kBlockTensors; ++i) {
    const auto tensor = static_cast<BlockTensor>(i);
    if (checkpointed && !InCheckpoint(mode, tensor)) continue;
    const bool statistic = IsStatistic(tensor);
    const int64_t bytes =
        ElementsOf(tensor, settings.model, settings.micro_batch * settings.model.seq_len) *
        SizeOf(statistic ? DType::kFloat32 : settings.dtype);
    (statistic ? statistics : values) += bytes;
    apart += aligned(bytes);
  }
  // A checkpoint is two allocations; without, each tensor is one.
  return checkpointed ? aligned(values) + aligned(statistics) : apart;
}

void NoteActivations(const TrainSettings& settings, std::vector<MemoryNote>& notes) {
  const int64_t bytes = KeptByABlock(settings);
  const int64_t blocks = settings.model.n_layer;
  switch (settings.activation_checkpointing) {
    case ActivationCheckpointing::kNone:
      notes.push_back({Category::kActivations,
                       "each block keeps all that its backward reads: 16 C numbers, H + 4 "
                       "statistics a token",
                       bytes});
      return;
    case ActivationCheckpointing::kSelective:
      notes.push_back({Category::kActivationCheckpoints,
                       "each block keeps what is dear to compute: 10 C numbers, H statistics a "
                       "token",
                       bytes});
      break;
    case ActivationCheckpointing::kFull:
      notes.push_back({Category::kActivationCheckpoints,
                       "each block keeps its input: C numbers a token", bytes});
      break;
  }
  if (!settings.offload_activations || blocks <= 2) return;
  notes.push_back({Category::kActivationCheckpoints,
                   "two slots on the device, which blocks take in turn", 2 * bytes});
  notes.push_back(
      {Category::kActivationCheckpoints,
       absl::StrCat("checkpoints of the first ", blocks - 2, blocks == 3 ? " block" : " blocks"),
       (blocks - 2) * bytes, /*host=*/true});
}

void NoteOffload(const TrainSettings& settings, const RankPlan& rank,
                 std::vector<MemoryNote>& notes) {
  const auto held = [&](Category category) {
    return rank.host_memory.at_peak[static_cast<size_t>(category)];
  };
  if (settings.offload_optimizer) {
    const bool everything = settings.devices > 1 && settings.zero_stage == 0;
    notes.push_back(
        {Category::kOptimizerStates,
         absl::StrCat("master weights, m and v, 12 bytes for each parameter ",
                      everything ? absl::StrCat("of the model: stage 0 shares nothing, "
                                                "so ",
                                                settings.devices, " equal copies are kept")
                                 : std::string("that the device owns")),
         held(Category::kOptimizerStates), /*host=*/true});
  }
}

std::vector<MemoryNote> Notes(const TrainSettings& settings, const Layout& layout,
                              const RankPlan& rank) {
  std::vector<MemoryNote> notes;
  if (settings.types().mixed()) {
    notes.push_back({Category::kGradients,
                     absl::StrCat("bytes for each: gradients are kept and sent in ",
                                  std::string(Name(settings.grad_accum_dtype))),
                     SizeOf(settings.grad_accum_dtype)});
  }
  NoteActivations(settings, notes);
  NoteBuffers(settings, layout, notes);
  NoteOffload(settings, rank, notes);
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
  plan.differences = Differences(settings, *layout);
  plan.notes = Notes(settings, *layout, plan.ranks[0]);
  plan.program = TrainingProgram(settings.model.n_layer);
  return plan;
}

}  // namespace zerobox
