// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/table_rows.h"
#include "trainer/tables.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

constexpr int kMemoryBar = 12;

// What a device keeps of the model states at `stage` by the paper's formulas, padding included,
// where nothing is offloaded.
ModelStateBytes StatesAt(int stage, const TrainSettings& settings, const RunPlan& plan) {
  return ModelStates(stage, plan.parameters + plan.padding, settings.devices,
                     WidthsOf(settings.types()));
}

// The same on the device and on its host side, as this run places them.
OffloadBytes PlacedStatesAt(int stage, const TrainSettings& settings, const RunPlan& plan) {
  if (!settings.offload_optimizer) return {.device = StatesAt(stage, settings, plan)};
  return OptimizerOffload(stage, plan.parameters + plan.padding, settings.devices,
                          settings.grad_accum, WidthsOf(settings.types()));
}

// With its type, where a run has several and the category one. (Activations have fp32 statistics.)
std::string CategoryName(Category category, const StateTypes& types) {
  std::string name = Spaced(Name(category));
  const auto typed = [&](DType dtype) {
    return absl::StrCat(name, " (", std::string(Name(dtype)), ")");
  };
  if (!types.mixed()) return name;
  switch (category) {
    case Category::kParameters:
      return typed(types.parameters);
    case Category::kGradients:
      return typed(types.gradients);
    case Category::kOptimizerStates:
      return typed(DType::kFloat32);
    default:
      return name;
  }
}

// 0 for what is no model state.
int64_t Of(const ModelStateBytes& states, Category category) {
  switch (category) {
    case Category::kParameters:
      return states.parameters;
    case Category::kGradients:
      return states.gradients;
    case Category::kOptimizerStates:
      return states.optimizer_states;
    default:
      return 0;
  }
}

std::string MemoryRow(const std::string& name, int64_t predicted, const int64_t* measured,
                      const std::string& bar, const Style& style) {
  const int64_t shown = measured != nullptr ? *measured : predicted;
  return absl::StrCat(
      "  ", Left(name, 23), Right(WithCommas(predicted), 15), " ",
      Agreement(measured != nullptr, measured != nullptr && *measured == predicted, style),
      Right(measured != nullptr ? WithCommas(*measured) : "", 15), Right(HumanBytes(shown), 9),
      "  ", bar, "\n");
}

// The categories that hold something, and their sum, at the peak of `planned` and, where known, of
// `measured`. `at_stage0` for the light bars.
std::string MemoryBlock(const ModelStateBytes& at_stage0, const StateTypes& types,
                        const Ledger& planned, const Ledger* measured, const Style& style) {
  const auto held = [&](size_t i) {
    return measured != nullptr ? measured->at_peak[i] : planned.at_peak[i];
  };
  int64_t longest = 1;
  for (size_t i = 0; i < kCategories; ++i) {
    longest = std::max({longest, held(i), Of(at_stage0, static_cast<Category>(i))});
  }
  std::string block;
  for (size_t i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    // A model state that is elsewhere shows so.
    if (held(i) == 0 && planned.at_peak[i] == 0 && Of(at_stage0, category) == 0) continue;
    const double scale = static_cast<double>(longest);
    const std::string bar = Bar(static_cast<double>(held(i)) / scale,
                                static_cast<double>(Of(at_stage0, category)) / scale, kMemoryBar);
    block +=
        MemoryRow(CategoryName(category, types), planned.at_peak[i],
                  measured != nullptr ? &measured->at_peak[i] : nullptr, style.Cyan(bar), style);
  }
  absl::StrAppend(&block, "  ", style.Dim(Rule(64)), "\n");
  block += MemoryRow("sum", planned.peak_bytes,
                     measured != nullptr ? &measured->peak_bytes : nullptr, "", style);
  return block;
}

// A device's block and, where something is offloaded, that of its host side.
std::string MemoryBlocks(const TrainSettings& settings, const RunPlan& plan,
                         const RankPlan& planned, const RankResult* measured, const Style& style) {
  std::string blocks = MemoryBlock(StatesAt(0, settings, plan), settings.types(), planned.memory,
                                   measured != nullptr ? &measured->memory : nullptr, style);
  const Ledger* const host = measured != nullptr ? &measured->host_memory : nullptr;
  if (planned.host_memory.peak_bytes == 0 && (host == nullptr || host->peak_bytes == 0)) {
    return blocks;
  }
  absl::StrAppend(&blocks, "  ", style.Bold("On the host side"), "\n");
  return blocks + MemoryBlock({}, settings.types(), planned.host_memory, host, style);
}

std::string LadderRow(int stage, const OffloadBytes& states, int64_t whole, bool offload,
                      const Style& style, bool ours) {
  const int64_t bytes = states.device.total();
  const double share = static_cast<double>(bytes) / static_cast<double>(whole);
  const std::string name = absl::StrCat(ours ? "▸ " : "  ", "ZeRO-", stage);
  const std::string number = WithCommas(bytes);
  const std::string row =
      offload ? absl::StrCat(Left(name, 10), Right(number, 15), Right(HumanBytes(bytes), 10),
                             Right(WithCommas(states.host.total()), 18), "  ", Bar(share, 0, 14))
              : absl::StrCat(Left(name, 25), Right(number, 15), Right(HumanBytes(bytes), 10), "  ",
                             Bar(share, 0, 20));
  const std::string saved =
      stage > 0 || offload ? absl::StrFormat("  1/%.2f", 1 / share) : std::string();
  return absl::StrCat(ours ? style.Bold(row + saved) : row + saved, "\n");
}

// What one device would keep at each stage by the paper's formulas, padding included; beside this
// run's stage what it does keep, if that is something else.
std::string StageLadder(const TrainSettings& settings, const RunPlan& plan,
                        const std::vector<RankResult>& measured, const Style& style) {
  const bool offload = settings.offload_optimizer;
  const int64_t whole = StatesAt(0, settings, plan).total();
  std::string ladder =
      TableTitle("Model states (parameters, gradients, optimizer states) of a device", style);
  const StateTypes types = settings.types();
  if (types.mixed()) {
    absl::StrAppend(&ladder, "  kept in ", std::string(Name(types.parameters)), ", ",
                    std::string(Name(types.gradients)), " and fp32\n");
  }
  if (offload) {
    absl::StrAppend(&ladder, Left("", 10), Right("on the device", 15), Left("", 10),
                    Right("on its host side", 18), "  of ZeRO-0, not offloaded\n");
  }
  const auto warn = [&](const char* where, int64_t held, int64_t bytes) {
    if (held == bytes) return;
    absl::StrAppend(&ladder, Right(style.Red("≠ " + WithCommas(held)), 40), where,
                    " in this run\n");
  };
  for (int stage = 0; stage <= 3; ++stage) {
    const OffloadBytes states = PlacedStatesAt(stage, settings, plan);
    const bool ours = stage == settings.zero_stage;
    ladder += LadderRow(stage, states, whole, offload, style, ours);
    if (!ours) continue;
    const bool known = !measured.empty();
    warn(" on the device", StateBytes(known ? measured[0].memory : plan.ranks[0].memory),
         states.device.total());
    warn(" on the host side",
         StateBytes(known ? measured[0].host_memory : plan.ranks[0].host_memory),
         states.host.total());
  }
  return ladder;
}

std::string MemoryFootnotes(const TrainSettings& settings, const RunPlan& plan,
                            const std::vector<RankResult>& measured, const Style& style) {
  std::string text;
  std::string before;
  const auto note_row = [&](const std::string& name, int64_t number, const std::string& what) {
    const std::string first = absl::StrCat("  ", Left(name == before ? "" : name, 23),
                                           Right(WithCommas(number), 15), " ");
    text += Lines(first, what, 42);
    before = name;
  };
  const auto notes = [&](bool host, const std::string& title) {
    const auto shown = [host](const MemoryNote& note) { return note.host == host; };
    if (std::none_of(plan.notes.begin(), plan.notes.end(), shown)) return;
    absl::StrAppend(&text, "  ", title, "\n");
    before.clear();
    for (const MemoryNote& note : plan.notes) {
      if (shown(note)) note_row(Spaced(Name(note.category)), note.bytes, note.what);
    }
  };
  notes(false, "of which");
  if (plan.padding > 0) {
    note_row("padding", plan.padding,
             absl::StrFormat(
                 "elements over the model (%.2f%%)",
                 100.0 * static_cast<double>(plan.padding) / static_cast<double>(plan.parameters)));
  }
  const int64_t reserved = LargestReservation(plan);
  if (reserved > plan.ranks[0].memory.peak_bytes) {
    note_row("reserved", reserved,
             "bytes the device takes: each region of its memory as large as at its own peak, which "
             "need not be the device's");
  }
  notes(true, "of which on the host side");
  if (settings.devices > 1) text += StageLadder(settings, plan, measured, style);
  return text;
}

bool SamePeak(const Ledger& a, const Ledger& b) {
  return a.at_peak == b.at_peak && a.peak_bytes == b.peak_bytes;
}
// Of two plans or two results.
template <typename Rank>
bool SameMemory(const Rank& a, const Rank& b) {
  return SamePeak(a.memory, b.memory) && SamePeak(a.host_memory, b.host_memory);
}
}  // namespace

int64_t LargestReservation(const RunPlan& plan) {
  int64_t largest = 0;
  for (const RankPlan& rank : plan.ranks) {
    largest = std::max(largest, ReservedBytes(rank.regions));
  }
  return largest;
}

std::string MemoryTable(const TrainSettings& settings, const RunPlan& plan,
                        const std::vector<RankResult>& measured, const Style& style) {
  const bool known = !measured.empty();
  const std::vector<RankGroup> groups = GroupRanks(plan.ranks.size(), [&](size_t a, size_t b) {
    return SameMemory(plan.ranks[a], plan.ranks[b]) &&
           (!known || SameMemory(measured[a], measured[b]));
  });
  std::string table;
  for (const RankGroup& group : groups) {
    const size_t rank = group.ranks.front();
    const std::string subject = GroupName(group, plan.ranks.size());
    if (&group == &groups.front()) {
      table += TableTitle(absl::StrCat("Memory of ", subject, " at its peak, in bytes"), style);
      absl::StrAppend(&table, "  ", Left("", 23), Right("predicted", 15), "  ",
                      Right(known ? "measured" : "", 15), Left("", 8),
                      style.Dim(settings.zero_stage > 0 ? "█ held ░ ZeRO-0" : "█ held"), "\n");
    } else {
      absl::StrAppend(&table, "  ", style.Bold("but " + subject), "\n");
    }
    table +=
        MemoryBlocks(settings, plan, plan.ranks[rank], known ? &measured[rank] : nullptr, style);
  }
  return table + MemoryFootnotes(settings, plan, measured, style);
}

}  // namespace zerobox
