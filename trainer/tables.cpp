// SPDX-License-Identifier: Apache-2.0
#include "trainer/tables.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

constexpr std::array<std::string_view, 4> kStageNames = {
    "everything whole on every device", "P_os: optimizer states are shared",
    "P_os+g: optimizer states and gradients are shared",
    "P_os+g+p: optimizer states, gradients and parameters are shared"};

std::string Plural(int64_t count, const std::string& one, const std::string& many) {
  return absl::StrCat(WithCommas(count), " ", count == 1 ? one : many);
}

std::string Title(const std::string& text, const Style& style) {
  return absl::StrCat("\n", style.Bold(text), "\n");
}

// Ranks that show the same numbers, largest group first.
struct RankGroup {
  std::vector<size_t> ranks;
};
template <typename Same>
std::vector<RankGroup> GroupRanks(size_t ranks, const Same& same) {
  std::vector<RankGroup> groups;
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const RankGroup& candidate) {
      return same(candidate.ranks.front(), rank);
    });
    if (group == groups.end()) group = groups.insert(groups.end(), RankGroup{});
    group->ranks.push_back(rank);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const RankGroup& a, const RankGroup& b) {
    return a.ranks.size() > b.ranks.size();
  });
  return groups;
}

std::string GroupName(const RankGroup& group, size_t all) {
  if (group.ranks.size() == all && all == 1) return "the device";
  if (group.ranks.size() == all) return absl::StrCat("each of ", all, " devices");
  if (group.ranks.size() == 1) return absl::StrCat("device ", group.ranks.front());
  return absl::StrCat("each of the devices ", absl::StrJoin(group.ranks, ", "));
}

std::string Spaced(std::string_view name) {
  return absl::StrReplaceAll(absl::string_view(name.data(), name.size()), {{"_", " "}});
}

// "=" where measured is what was predicted, else a loud one.
std::string Agreement(bool known, bool equal, const Style& style) {
  if (!known) return " ";
  return equal ? style.Green("=") : style.Red("≠");
}

//---- Memory

constexpr int kMemoryBar = 12;

// What a device keeps of the model states at `stage` by the paper's formulas, padding included.
ModelStateBytes StatesAt(int stage, const TrainSettings& settings, const RunPlan& plan) {
  return ModelStates(stage, plan.parameters + plan.padding, settings.devices,
                     WidthsOf(settings.dtype));
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

std::string MemoryBlock(const ModelStateBytes& at_stage0, const RankPlan& planned,
                        const RankResult* measured, const Style& style) {
  const auto held = [&](size_t i) {
    return measured != nullptr ? measured->memory.at_peak[i] : planned.memory.at_peak[i];
  };
  int64_t longest = 1;
  for (size_t i = 0; i < kCategories; ++i) {
    longest = std::max({longest, held(i), Of(at_stage0, static_cast<Category>(i))});
  }
  std::string block;
  for (size_t i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    if (held(i) == 0 && planned.memory.at_peak[i] == 0) continue;
    const double scale = static_cast<double>(longest);
    const std::string bar = Bar(static_cast<double>(held(i)) / scale,
                                static_cast<double>(Of(at_stage0, category)) / scale, kMemoryBar);
    block += MemoryRow(Spaced(Name(category)), planned.memory.at_peak[i],
                       measured != nullptr ? &measured->memory.at_peak[i] : nullptr,
                       style.Cyan(bar), style);
  }
  absl::StrAppend(&block, "  ", style.Dim(Rule(64)), "\n");
  block += MemoryRow("sum", planned.memory.peak_bytes,
                     measured != nullptr ? &measured->memory.peak_bytes : nullptr, "", style);
  return block;
}

int64_t StateBytes(const Ledger& ledger) {
  int64_t bytes = 0;
  for (const Category category :
       {Category::kParameters, Category::kGradients, Category::kOptimizerStates}) {
    bytes += ledger.at_peak[static_cast<size_t>(category)];
  }
  return bytes;
}

std::string Lines(const std::string& first, const std::string& text, int indent) {
  std::string lines = first;
  int column = Columns(first);
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const int columns = Columns(std::string_view(word.data(), word.size()));
    if (column + 1 + columns > kScreenWidth) {
      absl::StrAppend(&lines, "\n", std::string(static_cast<size_t>(indent) - 1, ' '));
      column = indent - 1;
    }
    absl::StrAppend(&lines, " ", word);
    column += 1 + columns;
  }
  return lines + "\n";
}

// What one device would keep at each stage by the paper's formulas, padding included; beside this
// run's stage what it does keep, if that is something else.
std::string StageLadder(const TrainSettings& settings, const RunPlan& plan,
                        const std::vector<RankResult>& measured, const Style& style) {
  const auto whole = static_cast<double>(StatesAt(0, settings, plan).total());
  const int64_t held = StateBytes(measured.empty() ? plan.ranks[0].memory : measured[0].memory);
  std::string ladder =
      Title("Model states (parameters, gradients, optimizer states) of a device", style);
  for (int stage = 0; stage <= 3; ++stage) {
    const int64_t bytes = StatesAt(stage, settings, plan).total();
    const double share = static_cast<double>(bytes) / whole;
    const bool ours = stage == settings.zero_stage;
    std::string row = absl::StrCat(ours ? "▸ " : "  ", Left(absl::StrCat("ZeRO-", stage), 23),
                                   Right(WithCommas(bytes), 15), Right(HumanBytes(bytes), 10), "  ",
                                   Bar(share, 0, 20));
    if (stage > 0) absl::StrAppend(&row, absl::StrFormat("  1/%.2f", 1 / share));
    absl::StrAppend(&ladder, ours ? style.Bold(row) : row, "\n");
    if (ours && held != bytes) {
      absl::StrAppend(&ladder, Right(style.Red("≠ " + WithCommas(held)), 40), " in this run\n");
    }
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
  if (!plan.notes.empty()) text += "  of which\n";
  for (const MemoryNote& note : plan.notes) {
    note_row(Spaced(Name(note.category)), note.bytes, note.what);
  }
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
  if (settings.devices > 1) text += StageLadder(settings, plan, measured, style);
  return text;
}

//---- Traffic

constexpr std::array<Collective, kCollectives> kShownCollectives = {
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce,
    Collective::kBroadcast};

std::string TrafficRow(const std::string& name, const std::string& calls, int64_t paper,
                       int64_t predicted, const int64_t* counted, const Style& style) {
  return absl::StrCat(
      "  ", Left(name, 16), Right(calls, 6), Right(WithCommas(paper), 15),
      Right(WithCommas(predicted), 15), " ",
      Agreement(counted != nullptr, counted != nullptr && *counted == predicted, style),
      Right(counted != nullptr ? WithCommas(*counted) : "", 15),
      Right(HumanBytes(counted != nullptr ? *counted : predicted), 9), "\n");
}

std::string TrafficBlock(const RunPlan& plan, const RankPlan& planned, const RankResult* measured,
                         const Style& style) {
  std::string block;
  int64_t paper = 0, predicted = 0, counted = 0;
  for (const Collective collective : kShownCollectives) {
    const auto i = static_cast<size_t>(collective);
    const CollectiveCount& plan_count = planned.step_traffic.collectives[i];
    const CollectiveCount count =
        measured != nullptr ? measured->step_traffic.collectives[i] : plan_count;
    if (plan.paper_bytes[i] == 0 && plan_count.calls == 0 && count.calls == 0) continue;
    paper += plan.paper_bytes[i];
    predicted += plan_count.bytes_sent;
    counted += count.bytes_sent;
    block += TrafficRow(absl::StrReplaceAll(std::string(Name(collective)), {{"_", "-"}}),
                        absl::StrCat(count.calls), plan.paper_bytes[i], plan_count.bytes_sent,
                        measured != nullptr ? &count.bytes_sent : nullptr, style);
  }
  absl::StrAppend(
      &block, "  ", style.Dim(Rule(77)), "\n",
      TrafficRow("sum", "", paper, predicted, measured != nullptr ? &counted : nullptr, style));
  const CollectiveCount& scalars =
      measured != nullptr ? measured->step_traffic.scalars : planned.step_traffic.scalars;
  absl::StrAppend(&block, "  and scalars (loss, norms): ", WithCommas(scalars.bytes_sent),
                  " bytes in ", Plural(scalars.calls, "call", "calls"));
  if (const int64_t foretold = planned.step_traffic.scalars.bytes_sent;
      foretold != scalars.bytes_sent) {
    absl::StrAppend(&block, ", ", style.Red("predicted " + WithCommas(foretold)));
  }
  const CopiedBytes copies = measured != nullptr ? measured->step_copies : planned.step_copies;
  if (copies.to_host + copies.from_host > 0) {
    absl::StrAppend(&block, "\n  and copies: ", WithCommas(copies.to_host), " bytes to the host, ",
                    WithCommas(copies.from_host), " from it");
  }
  return block + "\n";
}

// Why the prediction is not the paper's figure, and what nobody explained.
std::string TrafficDifferences(const RunPlan& plan, const Style& style) {
  std::string text;
  const auto row = [&](Collective collective, int64_t bytes, const std::string& reason) {
    absl::StrAppend(
        &text,
        Lines(absl::StrCat(
                  "  ", Left(absl::StrReplaceAll(std::string(Name(collective)), {{"_", "-"}}), 16),
                  Right(SignedCommas(bytes), 15), " "),
              reason, 36));
  };
  for (const Collective collective : kShownCollectives) {
    const auto i = static_cast<size_t>(collective);
    int64_t unexplained =
        plan.ranks[0].step_traffic.collectives[i].bytes_sent - plan.paper_bytes[i];
    for (const TrafficDifference& difference : plan.differences) {
      if (difference.collective != collective) continue;
      unexplained -= difference.bytes;
      if (difference.bytes != 0) row(collective, difference.bytes, difference.reason);
    }
    if (unexplained != 0) row(collective, unexplained, style.Red("unexplained"));
  }
  return text.empty()
             ? ""
             : "  Predicted is more (+) or less (-) than the paper's formula because of\n" + text;
}

bool SameMemory(const Ledger& a, const Ledger& b) {
  return a.at_peak == b.at_peak && a.peak_bytes == b.peak_bytes;
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
    return SameMemory(plan.ranks[a].memory, plan.ranks[b].memory) &&
           (!known || SameMemory(measured[a].memory, measured[b].memory));
  });
  std::string table;
  for (const RankGroup& group : groups) {
    const size_t rank = group.ranks.front();
    const std::string subject = GroupName(group, plan.ranks.size());
    if (&group == &groups.front()) {
      table += Title(absl::StrCat("Memory of ", subject, " at its peak, in bytes"), style);
      absl::StrAppend(&table, "  ", Left("", 23), Right("predicted", 15), "  ",
                      Right(known ? "measured" : "", 15), Left("", 8),
                      style.Dim(settings.zero_stage > 0 ? "█ held ░ ZeRO-0" : "█ held"), "\n");
    } else {
      absl::StrAppend(&table, "  ", style.Bold("but " + subject), "\n");
    }
    table += MemoryBlock(StatesAt(0, settings, plan), plan.ranks[rank],
                         known ? &measured[rank] : nullptr, style);
  }
  return table + MemoryFootnotes(settings, plan, measured, style);
}

std::string TrafficTable(const RunPlan& plan, const std::vector<RankResult>& measured,
                         const Style& style) {
  const bool known = !measured.empty();
  const size_t ranks = plan.ranks.size();
  if (ranks == 1) {
    return Title("Traffic", style) + "  One device has nobody to send to.\n";
  }
  const std::vector<RankGroup> groups = GroupRanks(ranks, [&](size_t a, size_t b) {
    return plan.ranks[a].step_traffic == plan.ranks[b].step_traffic &&
           (!known || measured[a].step_traffic == measured[b].step_traffic);
  });
  std::string table;
  for (const RankGroup& group : groups) {
    const size_t rank = group.ranks.front();
    const std::string subject = GroupName(group, ranks);
    if (&group == &groups.front()) {
      table += Title(
          absl::StrCat("Bytes that ", subject,
                       group.ranks.size() == 1 || group.ranks.size() == ranks ? " sends" : " send",
                       " in one step"),
          style);
      absl::StrAppend(&table, "  ", Left("", 16), Right("calls", 6), Right("paper", 15),
                      Right("predicted", 15), "  ", Right(known ? "counted" : "", 15), "\n");
    } else {
      absl::StrAppend(&table, "  ", style.Bold("but " + subject), "\n");
    }
    table += TrafficBlock(plan, plan.ranks[rank], known ? &measured[rank] : nullptr, style);
  }
  return table + TrafficDifferences(plan, style);
}

std::string Header(const TrainSettings& settings, const std::string& model, const RunPlan& plan,
                   const DataFacts* data, const Style& style) {
  const ModelConfig& shape = settings.model;
  const int64_t batch = settings.global_batch();
  const int64_t tokens = batch * shape.seq_len;
  std::string text;
  const auto row = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, "  ", style.Dim(Left(name, 10)), value, "\n");
  };
  const auto more = [&](const std::string& value) { row("", value); };
  text += Title(absl::StrCat("A GPT on ", Plural(settings.devices, "device", "devices"), ", ZeRO-",
                             settings.zero_stage),
                style);
  more(std::string(kStageNames[static_cast<size_t>(settings.zero_stage)]));
  row("model",
      absl::StrCat(model, ": Ψ = ", WithCommas(plan.parameters), " parameters in ",
                   std::string(Name(settings.dtype)),
                   settings.dropout > 0 ? absl::StrCat(", dropout ", settings.dropout) : ""));
  more(absl::StrCat(Plural(shape.n_layer, "layer", "layers"), ", ",
                    Plural(shape.n_head, "head", "heads"), ", width ", WithCommas(shape.n_embd),
                    ", sequence ", WithCommas(shape.seq_len), ", vocabulary ",
                    WithCommas(shape.vocab_size)));
  row("batch", absl::StrCat(settings.micro_batch, " micro_batch × ", settings.grad_accum,
                            " grad_accum × ", Plural(settings.devices, "device", "devices"), " = ",
                            WithCommas(batch), batch == 1 ? " sequence" : " sequences"));
  more(absl::StrCat(WithCommas(batch), " × ", WithCommas(shape.seq_len), " = ", WithCommas(tokens),
                    " tokens a step, ", WithCommas(settings.steps), " steps = ",
                    HumanCount(static_cast<double>(tokens) * static_cast<double>(settings.steps)),
                    " tokens"));
  if (!settings.data.empty()) row("data", Shortened(settings.data, kScreenWidth - 12));
  if (data != nullptr) {
    const double epochs = static_cast<double>(batch) * static_cast<double>(settings.steps) /
                          static_cast<double>(data->train_sequences);
    more(absl::StrCat(HumanCount(static_cast<double>(data->train_tokens)), " tokens, ",
                      WithCommas(data->train_sequences), " sequences (",
                      WithCommas(data->validation_sequences),
                      " more held out): ", absl::StrFormat("%.2f", epochs), " epochs"));
  }
  const OptimizerSettings& optimizer = settings.optimizer;
  row("optimizer",
      absl::StrCat("AdamW, lr ", optimizer.learning_rate,
                   optimizer.warmup_steps > 0
                       ? absl::StrCat(" after ", Plural(optimizer.warmup_steps, "step", "steps"))
                       : "",
                   ", to ", optimizer.min_learning_rate, "; decay ", optimizer.weight_decay,
                   optimizer.clip_norm > 0 ? absl::StrCat(", clip ", optimizer.clip_norm) : ""));
  const int64_t needed = LargestReservation(plan);
  row("machine", absl::StrCat(Plural(settings.threads, "thread", "threads"), "; a device takes ",
                              HumanBytes(needed),
                              needed <= settings.device_memory_bytes ? " of its " : ", but has ",
                              HumanBytes(settings.device_memory_bytes)));
  return text;
}

std::string FlagsTable(const std::vector<ResolvedFlag>& flags, const Style& style) {
  std::string table;
  for (size_t i = 0; i < flags.size(); ++i) {
    const ResolvedFlag& flag = flags[i];
    if (i == 0 || flags[i - 1].topic != flag.topic) {
      table += Title(std::string(zerobox::Title(flag.topic)), style);
    }
    std::string value = Text(flag.value);
    if (value.empty()) value = "-";
    const FlagInfo* const info = FindFlag(flag.name);
    if (value == "-" && !info->default_text.empty()) value = info->default_text;
    if (info->placeholder == "SIZE") {
      const int64_t bytes = std::get<int64_t>(flag.value);
      value = absl::StrCat(WithCommas(bytes), " (", HumanBytes(bytes), ")");
    }
    absl::StrAppend(&table, "  ", Left(flag.name, 16), Left(Shortened(value, 50), 50), "  ",
                    flag.source == "default" ? style.Dim(flag.source) : flag.source, "\n");
  }
  return table;
}

std::string ProgramTable(const TrainSettings& settings, const RunPlan& plan, const Style& style) {
  std::string table =
      Title(settings.grad_accum == 1
                ? "The step program"
                : absl::StrCat("The step program, ", settings.grad_accum, " times a step"),
            style);
  absl::StrAppend(&table, "  ", Right("visit", 5), "  ", Left("pass", 10), Left("layer", 12),
                  Right("unit", 4), "  parameters\n");
  for (const Visit& visit : plan.program) {
    const char* what = !visit.needs_parameters  ? "not needed"
                       : visit.keeps_parameters ? "acquired, and kept for the next visit"
                                                : "acquired, then released";
    absl::StrAppend(&table, "  ", Right(absl::StrCat(visit.index), 5), "  ",
                    Left(visit.pass == Pass::kForward ? "forward" : "backward", 10),
                    Left(visit.layer, 12), Right(absl::StrCat(visit.unit), 4), "  ", what, "\n");
  }
  return table;
}

std::string YardstickTable(const std::vector<Yardstick>& yardsticks, const Style& style) {
  std::string table = Title("Held-out loss in nats a token, beside models that only count", style);
  double longest = 0;
  for (const Yardstick& yardstick : yardsticks) {
    if (std::isfinite(yardstick.loss)) longest = std::max(longest, yardstick.loss);
  }
  for (const Yardstick& yardstick : yardsticks) {
    const std::string row =
        absl::StrCat(Left(yardstick.name, 40), absl::StrFormat("%7.4f  ", yardstick.loss),
                     Bar(longest > 0 ? yardstick.loss / longest : 0, 0, 26));
    absl::StrAppend(&table, "  ", yardstick.ours ? style.Bold(row) : row, "\n");
  }
  return table;
}

std::string SampleBlock(const std::string& text, const Style& style) {
  constexpr int kColumns = kScreenWidth - 4;
  std::string block = absl::StrCat("  ", style.Dim("│"), " ");
  const std::string fresh_line = "\n" + block;
  int column = 0;
  for (const char c : Printable(text)) {
    const bool starts_character = (static_cast<unsigned char>(c) >> 6) != 2;
    if (c == '\n' || (starts_character && column == kColumns)) {
      block += fresh_line;
      column = 0;
    }
    if (c == '\n') continue;
    block += c == '\t' ? ' ' : c;
    column += starts_character ? 1 : 0;
  }
  return block + "\n";
}

std::string EvalText(const EvalMetrics& metrics, const Style& style) {
  return absl::StrCat("step ", metrics.step, "   held-out loss ",
                      style.Bold(absl::StrFormat("%.4f", metrics.val_loss)),
                      absl::StrFormat("   perplexity %.2f\n", std::exp(metrics.val_loss)));
}

}  // namespace zerobox
