// SPDX-License-Identifier: Apache-2.0
#include "trainer/report.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/build_info.h"
#include "trainer/gpt.h"
#include "trainer/memory_picture.h"
#include "trainer/report_step.h"
#include "trainer/run_name.h"
#include "trainer/step_programs.h"
#include "trainer/table_rows.h"
#include "zero/formulas.h"
#include "zero/layout.h"

namespace zerobox {
namespace {

using Json = ReportObject;

// Runs of more steps have every second of their points, or every third, and so on, and the last. Of
// more skipped steps than this they have the first.
constexpr int64_t kMostPoints = 4096;

// What the same setting is called in a configuration of DeepSpeed.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"zero_stage", "zero_optimization.stage"},
    {"bucket_bytes", "zero_optimization.reduce_bucket_size"},
    {"dtype", "bf16.enabled"},
    {"grad_accum_dtype", "data_types.grad_accum_dtype"},
    {"activation_checkpointing", "activation_checkpointing"},
    {"offload", "zero_optimization.offload_optimizer.device"},
    {"micro_batch", "train_micro_batch_size_per_gpu"},
    {"grad_accum", "gradient_accumulation_steps"},
    {"steps", "scheduler.params.total_num_steps"},
    {"warmup", "scheduler.params.warmup_num_steps"},
    {"lr", "optimizer.params.lr"},
    {"weight_decay", "optimizer.params.weight_decay"},
    {"beta1", "optimizer.params.betas[0]"},
    {"beta2", "optimizer.params.betas[1]"},
    {"eps", "optimizer.params.eps"},
    {"grad_clip", "gradient_clipping"},
};

std::string IsoTime(std::time_t time) {
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  text[std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc)] = 0;
  return text.data();
}

//---- The head

Json MachineJson(const ResolvedTrain& resolved) {
  const TrainSettings& settings = resolved.settings;
  const bool cuda = settings.device == "cuda";
  const bool one_gpu = cuda && (settings.virtual_devices || settings.devices == 1);
  const std::string name = !cuda ? Plural(settings.devices, "host device", "host devices")
                           : settings.virtual_devices
                               ? absl::StrCat(settings.devices, " devices of one GPU")
                               : Plural(settings.devices, "GPU", "GPUs");
  const std::string about = cuda
                                ? resolved.about_devices
                                : Plural(settings.threads, "thread", "threads") + " of one machine";
  return {{"name", name},
          {"device", cuda ? "cuda" : "host"},
          {"description", about.empty() ? name : absl::StrCat(name, ", ", about)},
          {"collectives", !cuda     ? "shared memory"
                          : one_gpu ? "one GPU"
                                    : "NCCL"}};
}

Json ModelJson(const ResolvedTrain& resolved, const RunPlan& plan) {
  const ModelConfig& model = resolved.settings.model;
  return {{"name", resolved.model},
          {"parameters", plan.parameters},
          {"padded_parameters", plan.parameters + plan.padding},
          {"layers", model.n_layer},
          {"hidden", model.n_embd},
          {"heads", model.n_head},
          {"vocabulary", model.vocab_size},
          {"context", model.seq_len}};
}

// Unit 0 is the ends, unit b + 1 is block b.
Json UnitsJson(const TrainSettings& settings) {
  const Layout layout = Layout::Make(GptParameters(settings.model), settings.devices,
                                     settings.bucket_bytes, settings.grad_accum_dtype)
                            .value();  // as the plan was made with
  Json units = Json::array();
  for (UnitId unit = 0; unit < layout.units(); ++unit) {
    int64_t elements = 0;
    for (const Bucket& bucket : layout.Buckets(unit)) elements += bucket.elements;
    units.push_back({{"name", UnitName(unit)},
                     {"short", unit == kEnds ? "ends" : absl::StrCat("b", unit - BlockUnit(0))},
                     {"kind", unit == kEnds ? "ends" : "block"},
                     {"elements", elements},
                     {"padded_elements", layout.Unit(unit).size()}});
  }
  return units;
}

//---- A run

Json SettingsJson(const std::vector<ResolvedFlag>& flags) {
  Json rows = Json::array();
  for (const ResolvedFlag& flag : flags) {
    const FlagInfo* const info = FindFlag(flag.name);
    const bool size = info != nullptr && info->placeholder == "SIZE";
    std::string_view alias;
    for (const auto& [name, theirs] : kAliases) {
      if (name == flag.name) alias = theirs;
    }
    rows.push_back(
        {{"key", flag.name},
         {"value", size ? AbslUnparseFlag(Bytes{std::get<int64_t>(flag.value)}) : Text(flag.value)},
         {"source", flag.source},
         {"alias", alias}});
  }
  return rows;
}

Json CategoriesJson(const PerCategory<int64_t>& bytes) {
  Json json;
  for (const Category category : kStackedCategories) {
    json[std::string(Name(category))] = bytes[static_cast<size_t>(category)];
  }
  return json;
}

// The peaks are the ledgers' over the whole run; `peak_ns` is when the recorded step had its own,
// which is the same in a steady step.
Json MemoryJson(const RunPlan& plan, const RunResult* result) {
  Json measured = Json::array(), on_host = Json::array();
  int64_t reserved = 0;
  for (const RankPlan& rank : plan.ranks) {
    reserved = std::max(reserved, ReservedBytes(rank.regions));
  }
  for (size_t rank = 0; result != nullptr && rank < result->ranks.size(); ++rank) {
    const Ledger& ledger = result->ranks[rank].memory;
    Json peak_ns;
    if (result->trace && rank < result->trace->ranks.size()) {
      peak_ns = PeakOf(result->trace->ranks[rank].regions).ns;
    }
    measured.push_back({{"peak_bytes", ledger.peak_bytes},
                        {"peak_ns", peak_ns},
                        {"at_peak", CategoriesJson(ledger.at_peak)}});
    on_host.push_back(CategoriesJson(result->ranks[rank].host_memory.at_peak));
  }
  const RankPlan& planned = plan.ranks[0];
  return {{"reserved_bytes", reserved},
          {"predicted", CategoriesJson(planned.memory.at_peak)},
          {"measured", std::move(measured)},
          {"host_predicted", CategoriesJson(planned.host_memory.at_peak)},
          {"host_measured", std::move(on_host)}};
}

Json CommunicationRow(std::string_view name, int64_t element_bytes, int64_t paper_bytes,
                      const CollectiveCount& expected,
                      const std::vector<CollectiveCount>& counted) {
  Json bytes = Json::array();
  for (const CollectiveCount& count : counted) bytes.push_back(count.bytes_sent);
  return {{"collective", name},
          {"calls", counted.empty() ? expected.calls : counted[0].calls},
          {"element_bytes", element_bytes},
          {"paper_bytes", paper_bytes},
          {"expected_bytes", expected.bytes_sent},
          {"counted_bytes", std::move(bytes)}};
}

// Rows of collectives that the step has, by plan or by count.
Json CommunicationJson(const RunPlan& plan, const RunResult& result) {
  Json rows = Json::array();
  const RankPlan& planned = plan.ranks[0];
  std::vector<CollectiveCount> counted(result.ranks.size());
  const auto some = [&](const CollectiveCount& expected) {
    return expected.calls != 0 || std::any_of(counted.begin(), counted.end(),
                                              [](const auto& count) { return count.calls != 0; });
  };
  for (size_t i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    for (size_t rank = 0; rank < counted.size(); ++rank) {
      counted[rank] = result.ranks[rank].step_traffic.collectives[i];
    }
    const CollectiveCount& expected = planned.step_traffic.collectives[i];
    if (plan.paper_bytes[i] == 0 && !some(expected)) continue;
    const bool reduces =
        collective == Collective::kReduceScatter || collective == Collective::kAllReduce;
    rows.push_back(CommunicationRow(Name(collective),
                                    SizeOf(reduces ? plan.types.gradients : plan.types.parameters),
                                    plan.paper_bytes[i], expected, counted));
  }
  for (size_t rank = 0; rank < counted.size(); ++rank) {
    counted[rank] = result.ranks[rank].step_traffic.scalars;
  }
  if (const CollectiveCount& expected = planned.step_traffic.scalars; some(expected)) {
    rows.push_back(CommunicationRow("scalars", SizeOf(DType::kFloat64), 0, expected, counted));
  }
  return rows;
}

Json DifferencesJson(const RunPlan& plan) {
  Json rows = Json::array();
  for (const TrafficDifference& difference : plan.differences) {
    rows.push_back({{"collective", Name(difference.collective)},
                    {"reason", difference.reason},
                    {"bytes", difference.bytes}});
  }
  return rows;
}

Json CopiesJson(const RunPlan& plan, const RunResult& result) {
  const RankPlan& planned = plan.ranks[0];
  const auto way = [&](int64_t CopiedBytes::*bytes) -> Json {
    Json counted = Json::array();
    for (const RankResult& rank : result.ranks) counted.push_back(rank.step_copies.*bytes);
    return {{"expected_bytes", planned.step_copies.*bytes}, {"counted_bytes", std::move(counted)}};
  };
  Json parts = Json::array();
  for (const CopiedPart& part : plan.copies) {
    parts.push_back({{"what", part.what},
                     {"to_host", part.bytes.to_host},
                     {"from_host", part.bytes.from_host}});
  }
  return {{"to_host", way(&CopiedBytes::to_host)},
          {"from_host", way(&CopiedBytes::from_host)},
          {"parts", std::move(parts)}};
}

template <typename Metrics, typename Number>
Json Thinned(const std::vector<Metrics>& all, Number Metrics::*member) {
  const int64_t points = std::ssize(all), stride = (points + kMostPoints - 1) / kMostPoints;
  Json values = Json::array();
  for (int64_t i = 0; i < points; ++i) {
    if (i % stride == 0 || i + 1 == points) values.push_back(all[static_cast<size_t>(i)].*member);
  }
  return values;
}

Json MetricsJson(const RunResult& result, const std::vector<ReferenceLoss>& references) {
  Json json;
  const std::vector<StepMetrics>& all = result.step_metrics;
  const auto column = [&](const char* name, auto StepMetrics::*member) {
    json[name] = Thinned(all, member);
  };
  column("step", &StepMetrics::step);
  column("loss", &StepMetrics::loss);
  column("grad_norm", &StepMetrics::grad_norm);
  column("clip", &StepMetrics::clip);
  column("learning_rate", &StepMetrics::lr);
  column("tokens_per_second", &StepMetrics::tokens_per_second);
  column("step_seconds", &StepMetrics::step_seconds);
  column("exposed_seconds", &StepMetrics::exposed_seconds);
  json["skipped"] = Json::array();
  int64_t skipped = 0;
  for (const StepMetrics& metrics : all) {
    if (metrics.skipped && skipped++ < kMostPoints) json["skipped"].push_back(metrics.step);
  }
  json["skipped_steps"] = skipped;
  json["validation"] = {{"step", Thinned(result.eval_metrics, &EvalMetrics::step)},
                        {"loss", Thinned(result.eval_metrics, &EvalMetrics::val_loss)}};
  json["references"] = Json::array();
  for (const ReferenceLoss& reference : references) {
    json["references"].push_back({{"name", reference.name}, {"loss", reference.loss}});
  }
  return json;
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string_view Status(const RunResult* result) {
  return result == nullptr ? "out_of_memory" : result->status.ok() ? "ok" : "failed";
}

Json RunJson(const ReportRun& run) {
  const TrainSettings& settings = run.resolved->settings;
  const RunPlan& plan = *run.plan;
  const RunResult* const result = run.result;
  const RunName name = NameOfRun(settings);
  StateWidths widths = WidthsOf(plan.types);
  if (settings.offload_optimizer) widths.optimizer_states = 12;  // with master weights in fp32 too
  Json json = {
      {"id", run.id.empty() ? name.name : run.id},
      {"label", run.label.empty() ? name.LongLabel() : run.label},
      {"stage", settings.zero_stage},
      {"world", settings.devices},
      {"micro_batches", settings.grad_accum},
      {"status", Status(result)},
      {"failure", run.failure},
      {"offload", OffloadName(settings.offload_optimizer, settings.offload_activations)},
      {"activation_checkpointing", Name(settings.activation_checkpointing)},
      {"dtype", Name(settings.dtype)},
      {"grad_accum_dtype", Name(settings.grad_accum_dtype)},
      {"bytes_per_parameter",
       {{"parameters", widths.parameters},
        {"gradients", widths.gradients},
        {"optimizer", widths.optimizer_states}}},
      {"tokens_per_step", settings.global_batch() * settings.model.seq_len},
      {"device_memory_bytes", settings.device_memory_bytes},
      {"memory", MemoryJson(plan, result)},
      {"communication", result != nullptr ? CommunicationJson(plan, *result) : Json::array()},
      {"differences", result != nullptr ? DifferencesJson(plan) : Json::array()},
      {"copies", result != nullptr ? CopiesJson(plan, *result) : Json()},
      {"step", nullptr},
      {"metrics", nullptr},
      {"equality", nullptr},
      {"largest_model", nullptr},
      {"settings", SettingsJson(run.resolved->flags)}};
  if (result != nullptr) {
    json["metrics"] = MetricsJson(*result, run.references);
    if (result->trace) {
      json["step"] =
          StepJson(*result->trace, settings.device == "cuda" ? "GPU events" : "host clock");
    }
    if (run.equality) json["equality"] = EqualityJson(*run.equality);
  }
  if (run.largest_model) {
    json["largest_model"] = {{"parameters", run.largest_model->parameters},
                             {"n_layer", run.largest_model->n_layer}};
  }
  return json;
}

}  // namespace

ReportObject EqualityJson(const Equality& equality) {
  Json first;
  if (const auto& difference = equality.first_difference) {
    first = {{"step", OrNull(difference->step)},   {"parameter", difference->parameter},
             {"unit", difference->unit},           {"element", difference->element},
             {"reference", difference->reference}, {"value", difference->value}};
  }
  return {{"reference", equality.reference},
          {"equal", OrNull(equality.equal())},
          {"losses_equal", equality.losses_equal},
          {"parameters_equal", OrNull(equality.parameters_equal)},
          {"first_difference", std::move(first)}};
}

ReportObject MakeReport(const ReportRun& run) {
  assert(run.resolved != nullptr && run.plan != nullptr);
  const ResolvedTrain& resolved = *run.resolved;
  Json categories = Json::array();
  for (const Category category : kStackedCategories) categories.push_back(Name(category));
  const Json machine = MachineJson(resolved);
  Json report = {{"schema", kReportSchema},
                 {"title", absl::StrCat("ZeRO stage ", resolved.settings.zero_stage, " on ",
                                        machine["name"].get<std::string>())},
                 {"command", ""},
                 {"created", ""},
                 {"program", nullptr},
                 {"machine", machine},
                 {"model", ModelJson(resolved, *run.plan)},
                 {"units", UnitsJson(resolved.settings)},
                 {"categories", std::move(categories)},
                 {"runs", Json::array({RunJson(run)})}};
  SetMaker(report, run.command, run.created);
  return report;
}

void SetMaker(ReportObject& report, const std::string& command, std::time_t created) {
  report["command"] = command;
  report["created"] = IsoTime(created);
  report["program"] = {
      {"name", "zerobox"}, {"version", std::string(kVersion)}, {"commit", std::string(kCommit)}};
}

}  // namespace zerobox
