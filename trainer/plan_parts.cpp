// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan_parts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/optimizer.h"
#include "trainer/activation_checkpoints.h"
#include "trainer/gpt.h"
#include "trainer/step_programs.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

// With bf16 gradients, more chunks of logits than this are worth a word.
constexpr int64_t kFewChunks = 8;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
}

int64_t TokensOf(const TrainSettings& settings) {
  return settings.micro_batch * settings.model.seq_len;
}

// What a block keeps from its forward to its backward: its checkpoint, or without checkpointing
// all that backward reads.
struct KeptTensors {
  int64_t channels = 0, heads = 0, ones = 0;  // elements a token, as in BlockTensorSpec
  int64_t values = 0, statistics = 0;         // bytes
  int64_t allocated = 0;                      // bytes, alignment included
};

KeptTensors KeptByABlock(const TrainSettings& settings) {
  const ActivationCheckpointing mode = settings.activation_checkpointing;
  const bool checkpointed = mode != ActivationCheckpointing::kNone;
  KeptTensors kept;
  for (int i = 0; i < kBlockTensors; ++i) {
    const auto tensor = static_cast<BlockTensor>(i);
    if (checkpointed && !InCheckpoint(mode, tensor)) continue;
    const BlockTensorSpec& spec = kBlockTensorSpecs[i];
    kept.channels += spec.channels;
    kept.heads += spec.heads;
    kept.ones += spec.ones;
    const bool statistic = IsStatistic(tensor);
    const int64_t bytes = ElementsOf(tensor, settings.model, TokensOf(settings)) *
                          SizeOf(statistic ? DType::kFloat32 : settings.dtype);
    (statistic ? kept.statistics : kept.values) += bytes;
    kept.allocated += Aligned(bytes);
  }
  // A checkpoint is two allocations; without, each tensor is one.
  if (checkpointed) kept.allocated = Aligned(kept.values) + Aligned(kept.statistics);
  return kept;
}

// "16 C numbers, H + 4 statistics a token".
std::string NumbersAToken(const KeptTensors& kept) {
  const auto times = [](int64_t count, const char* what) {
    return count == 1 ? std::string(what) : absl::StrCat(count, " ", what);
  };
  std::string text = times(kept.channels, "C") + " numbers";
  if (kept.heads + kept.ones > 0) {
    text += ", ";
    if (kept.heads > 0) text += times(kept.heads, "H");
    if (kept.heads > 0 && kept.ones > 0) text += " + ";
    if (kept.ones > 0) absl::StrAppend(&text, kept.ones);
    text += " statistics";
  }
  return text + " a token";
}

// Blocks whose checkpoints travel to the host side and back.
int64_t OffloadedBlocks(const TrainSettings& settings) {
  if (!settings.offload_activations) return 0;
  return std::max<int64_t>(0, settings.model.n_layer - kOffloadSlots);
}

// The shards that a rank updates.
OwnedShards OwnedBy(const TrainSettings& settings) {
  return {.first = 0, .count = settings.zero_stage == 0 ? settings.devices : 1};
}

void NoteGradients(const TrainSettings& settings, std::vector<MemoryNote>& notes) {
  if (!settings.types().mixed()) return;
  notes.push_back({Category::kGradients,
                   absl::StrCat("bytes for each: gradients are kept and sent in ",
                                std::string(Name(settings.grad_accum_dtype))),
                   SizeOf(settings.grad_accum_dtype)});
  if (settings.grad_accum_dtype != DType::kBFloat16) return;
  const int64_t rows = TokensOf(settings);
  const int64_t chunk =
      RowsOfLogits(settings.logits_bytes, settings.model.vocab_size, settings.dtype, rows);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  if (chunks <= kFewChunks) return;
  notes.push_back({Category::kGradients,
                   "chunks of logits in a micro-batch, and after each the token embedding's "
                   "gradient is rounded to bf16, which loses digits: a larger --logits_bytes has "
                   "fewer, --grad_accum_dtype=fp32 does not round",
                   chunks});
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

void NoteActivations(const TrainSettings& settings, std::vector<MemoryNote>& notes) {
  const KeptTensors kept = KeptByABlock(settings);
  const std::string numbers = NumbersAToken(kept);
  const auto note = [&](Category category, const std::string& what, int64_t bytes,
                        bool host = false) {
    notes.push_back({category, what, bytes, host});
  };
  switch (settings.activation_checkpointing) {
    case ActivationCheckpointing::kNone:
      note(Category::kActivations, "each block keeps all that its backward reads: " + numbers,
           kept.allocated);
      return;
    case ActivationCheckpointing::kSelective:
      note(Category::kActivationCheckpoints, "each block keeps what is dear to compute: " + numbers,
           kept.allocated);
      break;
    case ActivationCheckpointing::kFull:
      note(Category::kActivationCheckpoints, "each block keeps its input: " + numbers,
           kept.allocated);
      break;
  }
  if (!settings.offload_activations) return;
  const int64_t blocks = settings.model.n_layer;
  const int64_t leave = OffloadedBlocks(settings);
  if (leave == 0) {
    note(Category::kActivationCheckpoints,
         blocks == 1 ? "the only block's checkpoint stays on the device: nothing leaves"
                     : "both blocks' checkpoints stay on the device: nothing leaves",
         blocks * kept.allocated);
    return;
  }
  note(Category::kActivationCheckpoints,
       absl::StrCat(kOffloadSlots, " slots on the device, which blocks take in turn"),
       kOffloadSlots * kept.allocated);
  note(Category::kActivationCheckpoints,
       absl::StrCat("checkpoints of the first ", leave, leave == 1 ? " block" : " blocks"),
       leave * kept.allocated, /*host=*/true);
}

void NoteOffloadedOptimizer(const TrainSettings& settings, const Layout& layout,
                            const RankPlan& rank, std::vector<MemoryNote>& notes) {
  if (!settings.offload_optimizer) return;
  const auto note = [&](Category category, const std::string& what, int64_t bytes) {
    if (bytes > 0) notes.push_back({category, what, bytes, /*host=*/true});
  };
  const auto held = [&](Category category) {
    return rank.host_memory.at_peak[static_cast<size_t>(category)];
  };
  const bool everything = settings.devices > 1 && settings.zero_stage == 0;
  const std::string whose = everything ? "of the model" : "that the device owns";
  note(Category::kGradients, "the reduced gradient of each parameter " + whose,
       held(Category::kGradients));
  note(Category::kOptimizerStates,
       absl::StrCat("master weights, m and v, 12 bytes for each parameter ", whose,
                    everything ? absl::StrCat(": stage 0 shares nothing, so ", settings.devices,
                                              " equal copies are kept")
                               : std::string()),
       held(Category::kOptimizerStates));
  int64_t largest = 0;  // owned part of a bucket
  for (const Bucket& bucket : layout.buckets()) {
    largest = std::max(largest, layout.Owned(bucket, OwnedBy(settings)).size());
  }
  const int64_t staging = settings.types().mixed() ? Aligned(largest * SizeOf(settings.dtype)) : 0;
  note(Category::kCommunicationBuffers, "where a gradient lands that is added to what is there",
       held(Category::kCommunicationBuffers) - 2 * staging);
  note(Category::kCommunicationBuffers,
       "two buffers in which updated parameters wait to go up, each", staging);
}

}  // namespace

std::vector<TrafficDifference> TrafficDifferences(const TrainSettings& settings,
                                                  const Layout& layout) {
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

std::vector<CopiedPart> CopiedParts(const TrainSettings& settings, const Layout& layout,
                                    const CopiedBytes& paper) {
  std::vector<CopiedPart> parts;
  const auto add = [&](CopiedBytes bytes, const std::string& what) {
    if (bytes != CopiedBytes{}) parts.push_back({what, bytes});
  };
  const int64_t micro_batches = settings.grad_accum;
  if (settings.offload_optimizer) {
    const StateWidths widths = WidthsOf(settings.types());
    const OffloadBytes padded = OptimizerOffload(settings.zero_stage, layout.padded(),
                                                 settings.devices, micro_batches, widths);
    add({.to_host = paper.to_host}, "gradients, by ZeRO-Offload's formula");
    add({.from_host = paper.from_host}, "parameters, by ZeRO-Offload's formula");
    add({.to_host = padded.to_host - paper.to_host,
         .from_host = padded.from_host - paper.from_host},
        "their padding");
    add({.to_host = sizeof(StepState)}, "the step's state, for the update");
    add({.from_host = layout.shards() * SizeOf(DType::kFloat64)},
        "squares of the gradient, by owner");
  }
  const KeptTensors kept = KeptByABlock(settings);
  const int64_t checkpoints =
      micro_batches * OffloadedBlocks(settings) * (kept.values + kept.statistics);
  add({.to_host = checkpoints, .from_host = checkpoints}, "activation checkpoints");
  const int64_t batch = 2 * TokensOf(settings) * SizeOf(DType::kInt32) +  // inputs, targets
                        settings.micro_batch * SizeOf(DType::kInt64);     // sample numbers
  add({.from_host = micro_batches * batch}, "batches");
  add({.to_host = SizeOf(DType::kFloat64) + static_cast<int64_t>(sizeof(StepState))},
      "results: the loss and the step's state");
  return parts;
}

std::vector<MemoryNote> MemoryNotes(const TrainSettings& settings, const Layout& layout,
                                    const RankPlan& rank) {
  std::vector<MemoryNote> notes;
  NoteGradients(settings, notes);
  NoteActivations(settings, notes);
  NoteBuffers(settings, layout, notes);
  NoteOffloadedOptimizer(settings, layout, rank, notes);
  std::stable_sort(notes.begin(), notes.end(), [](const MemoryNote& a, const MemoryNote& b) {
    return a.category < b.category;
  });
  return notes;
}

}  // namespace zerobox
