// SPDX-License-Identifier: Apache-2.0
#include "trainer/comparison.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "trainer/build_info.h"
#include "trainer/table_rows.h"
#include "trainer/tables.h"
#include "trainer/train.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

using Json = nlohmann::ordered_json;

int64_t SentBytes(const Traffic& traffic) {
  int64_t bytes = 0;
  for (const CollectiveCount& count : traffic.collectives) bytes += count.bytes_sent;
  return bytes;
}

const Traffic& StepTraffic(const ComparedRun& run) {
  return run.result != nullptr ? run.result->ranks[0].step_traffic
                               : run.plan->ranks[0].step_traffic;
}

// Whether the plan of a model with so many layers fits; the plan's parameters too.
std::optional<int64_t> ParametersThatFit(TrainSettings settings, int64_t layers) {
  settings.model.n_layer = layers;
  // Far beyond any --device_memory, and near the end of 64 bits.
  if (!(RoughBytesOfOneDevice(settings) < 1e18)) return std::nullopt;
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  if (!plan.ok() || LargestReservation(*plan) > settings.device_memory_bytes) return std::nullopt;
  return plan->parameters;
}

// One device has nobody to share with, whatever its stage.
int ShardingStage(const TrainSettings& settings) {
  return settings.devices == 1 ? 0 : settings.zero_stage;
}

Json ComparedJson(const ComparedRun& run) {
  Json json = EqualityJson(*run.equality);
  json["promised"] = run.equality_promised;
  json["first_different_loss"] = nullptr;
  if (const auto& loss = run.loss_difference) {
    json["first_different_loss"] = {{"step", loss->step},
                                    {"evaluation", loss->evaluation},
                                    {"reference", loss->reference},
                                    {"value", loss->value}};
  }
  return json;
}

Json RunJson(const Comparison& comparison, const ComparedRun& run) {
  const TrainSettings& settings = run.settings();
  const RunResult* const result = run.result;
  const RankPlan& planned = run.plan->ranks[0];
  Json json = {{"name", run.combination->name},
               {"zero_stage", settings.zero_stage},
               {"offload",
                std::string(OffloadName(settings.offload_optimizer, settings.offload_activations))},
               {"activation_checkpointing", std::string(Name(settings.activation_checkpointing))},
               {"end", std::string(Name(run.end))},
               {"failure", run.failure},
               {"steps", result != nullptr ? result->steps : 0}};
  // What is known only afterwards is null before.
  const auto planned_and = [&](const char* name, int64_t planned_bytes, const char* known,
                               int64_t bytes) {
    json[name]["predicted"] = planned_bytes;
    json[name][known] = nullptr;
    if (result != nullptr) json[name][known] = bytes;
  };
  planned_and("state_bytes", StateBytes(planned.memory), "measured", run.state_bytes());
  planned_and("peak_bytes", planned.memory.peak_bytes, "measured", run.memory().peak_bytes);
  json["reserved_bytes"] = LargestReservation(*run.plan);
  json["saved"] = comparison.Saved(run);
  planned_and("sent_bytes", SentBytes(planned.step_traffic), "counted", run.sent_bytes());
  json["sent_psi"] = run.sent_psi();
  json["tokens_per_second"] = nullptr;
  if (const auto speed = run.tokens_per_second()) json["tokens_per_second"] = *speed;
  json["loss"] = nullptr;
  json["val_loss"] = nullptr;
  if (result != nullptr) {
    json["loss"] = result->step_metrics.back().loss;
    if (!result->eval_metrics.empty()) json["val_loss"] = result->eval_metrics.back().val_loss;
  }
  json["equality"] = nullptr;
  if (run.equality) json["equality"] = ComparedJson(run);
  json["largest_model"] = nullptr;
  if (const auto& largest = run.largest_model) {
    json["largest_model"] = {{"parameters", largest->parameters}, {"n_layer", largest->n_layer}};
  }
  return json;
}

}  // namespace

std::string_view Name(RunEnd end) {
  switch (end) {
    case RunEnd::kPlanned:
      return "not_run";
    case RunEnd::kDone:
      return "done";
    case RunEnd::kDoesNotFit:
      return "does_not_fit";
    case RunEnd::kStopped:
      return "stopped";
    case RunEnd::kFailed:
      return "failed";
  }
  return "";
}

//---- Numbers

const Ledger& ComparedRun::memory() const {
  return result != nullptr ? result->ranks[0].memory : plan->ranks[0].memory;
}

int64_t ComparedRun::state_bytes() const { return StateBytes(memory()); }

int64_t ComparedRun::sent_bytes() const { return SentBytes(StepTraffic(*this)); }

double ComparedRun::sent_psi() const {
  const auto numbers = [&](Collective collective, DType dtype) {
    const auto i = static_cast<size_t>(collective);
    return static_cast<double>(StepTraffic(*this).collectives[i].bytes_sent) /
           static_cast<double>(SizeOf(dtype));
  };
  const double sent = numbers(Collective::kAllGather, plan->types.parameters) +
                      numbers(Collective::kReduceScatter, plan->types.gradients) +
                      numbers(Collective::kAllReduce, plan->types.gradients);
  const auto devices = static_cast<double>(settings().devices);
  return devices < 2 ? 0 : sent * devices / (devices - 1) / static_cast<double>(plan->parameters);
}

std::optional<double> ComparedRun::tokens_per_second() const {
  constexpr size_t kWarmUp = 2;
  if (result == nullptr || result->step_metrics.size() <= kWarmUp) return std::nullopt;
  std::vector<double> speeds;
  for (size_t i = kWarmUp; i < result->step_metrics.size(); ++i) {
    speeds.push_back(result->step_metrics[i].tokens_per_second);
  }
  return Median(std::move(speeds));
}

const ComparedRun* Comparison::reference() const {
  for (const ComparedRun& run : runs) {
    if (run.end == RunEnd::kDone) return &run;
  }
  return nullptr;
}

double Comparison::Saved(const ComparedRun& run) const {
  return static_cast<double>(runs.front().state_bytes()) / static_cast<double>(run.state_bytes());
}

std::optional<LargestModel> FindLargestModel(const TrainSettings& settings) {
  LargestModel largest;
  const auto fits = [&](int64_t layers) {
    const std::optional<int64_t> parameters = ParametersThatFit(settings, layers);
    if (parameters && layers > largest.n_layer) {
      largest = {.parameters = *parameters, .n_layer = layers};
    }
    return parameters.has_value();
  };
  // More layers never need less: doubled until they do not fit, then halved in between.
  if (!fits(1)) return std::nullopt;
  int64_t too_many = 2;
  while (too_many <= kMostLayers && fits(too_many)) too_many *= 2;
  too_many = std::min(too_many, kMostLayers + 1);
  while (too_many - largest.n_layer > 1) {
    const int64_t middle = largest.n_layer + (too_many - largest.n_layer) / 2;
    if (!fits(middle)) too_many = middle;
  }
  return largest;
}

//---- compare.json

std::string CompareText(const Comparison& comparison) {
  const ComparedRun& first = comparison.runs.front();
  const TrainSettings& settings = first.settings();
  Json json = {{"format", 1},
               {"version", std::string(kVersion)},
               {"commit", std::string(kCommit)},
               {"command", comparison.command},
               {"model", first.combination->resolved.model},
               {"parameters", first.plan->parameters},
               {"device", settings.device},
               {"devices", settings.devices},
               {"device_memory_bytes", settings.device_memory_bytes},
               {"dtype", std::string(Name(settings.dtype))},
               {"steps", settings.steps},
               {"baseline", first.combination->name}};
  json["reference"] = nullptr;
  if (const ComparedRun* const reference = comparison.reference()) {
    json["reference"] = reference->combination->name;
  }
  json["verdict"] = Verdict(comparison);
  json["runs"] = Json::array();
  for (const ComparedRun& run : comparison.runs) json["runs"].push_back(RunJson(comparison, run));
  // Bytes that are not UTF-8, in file names, are replaced rather than refused.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

//---- The figure

std::string StatesFormula(const TrainSettings& settings) {
  const StateWidths widths = WidthsOf(settings.types());
  const int stage = ShardingStage(settings);
  // An offloaded optimizer takes with it its states, and the gradients that a device has of its own
  // shard alone.
  const int64_t optimizer = settings.offload_optimizer ? 0 : widths.optimizer_states;
  const int64_t gradients =
      settings.offload_optimizer && settings.zero_stage >= 2 ? 0 : widths.gradients;
  int64_t whole = 0, shared = 0;
  (stage >= 1 ? shared : whole) += optimizer;
  (stage >= 2 ? shared : whole) += gradients;
  (stage >= 3 ? shared : whole) += widths.parameters;
  std::vector<std::string> terms;
  if (whole > 0) terms.push_back(absl::StrCat(whole, "Ψ"));
  if (shared > 0) terms.push_back(absl::StrCat(shared, "Ψ/", settings.devices));
  return absl::StrJoin(terms, " + ");
}

MemoryFigure FigureOf(const Comparison& comparison) {
  constexpr std::array kShares = {"nothing sharded", "optimizer states sharded",
                                  "and gradients sharded", "and parameters sharded"};
  const ComparedRun& first = comparison.runs.front();
  const TrainSettings& settings = first.settings();
  const StateWidths widths = WidthsOf(settings.types());
  const char* const device =
      settings.device == "cuda" && !settings.virtual_devices ? "GPU" : "device";
  MemoryFigure figure;
  figure.title = settings.devices == 1 ? absl::StrCat("What the ", device, " holds at its peak")
                                       : absl::StrCat("What each of ", settings.devices, " ",
                                                      device, "s holds at its peak");
  figure.subtitle = absl::StrCat(
      first.combination->resolved.model, ": Ψ = ", WithCommas(first.plan->parameters),
      " parameters in ", std::string(Name(settings.dtype)), ", ", widths.parameters, " + ",
      widths.gradients, " + ", widths.optimizer_states, " bytes of states each; ",
      HumanBytes(settings.device_memory_bytes), " a ", device);
  // What all runs have in common is in no run's details.
  const auto all = [&](auto member) {
    return std::all_of(comparison.runs.begin(), comparison.runs.end(),
                       [&](const auto& run) { return run.settings().*member == settings.*member; });
  };
  if (settings.activation_checkpointing != ActivationCheckpointing::kNone &&
      all(&TrainSettings::activation_checkpointing)) {
    absl::StrAppend(&figure.subtitle, "; ", std::string(Name(settings.activation_checkpointing)),
                    " checkpointing");
  }
  if (settings.offload_optimizer && all(&TrainSettings::offload_optimizer)) {
    figure.subtitle += "; optimizer offloaded";
  }
  if (settings.offload_activations && all(&TrainSettings::offload_activations)) {
    figure.subtitle += "; activations offloaded";
  }
  figure.footer =
      absl::StrCat("Factors compare model states: parameters, gradients and optimizer states. ",
                   settings.devices == 1 ? "" : absl::StrCat("Bars are those of ", device, " 0."));
  figure.capacity = settings.device_memory_bytes;
  std::set<int> stages;
  for (const ComparedRun& run : comparison.runs) stages.insert(run.settings().zero_stage);
  figure.together = static_cast<int>(std::ssize(stages));
  for (const ComparedRun& run : comparison.runs) {
    MemoryBars bars = {.label = run.combination->label,
                       .details = run.combination->details,
                       .predicted = run.plan->ranks[0].memory.at_peak,
                       .fits = run.end != RunEnd::kDoesNotFit,
                       .needed = LargestReservation(*run.plan),
                       .states = run.state_bytes(),
                       .saved = comparison.Saved(run),
                       .formula = StatesFormula(run.settings()),
                       .shares = kShares[static_cast<size_t>(ShardingStage(run.settings()))]};
    if (run.result != nullptr) bars.measured = run.memory().at_peak;
    figure.runs.push_back(std::move(bars));
  }
  return figure;
}

}  // namespace zerobox
