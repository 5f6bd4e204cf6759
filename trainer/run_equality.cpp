// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_equality.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoints/safetensors.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"

namespace zerobox {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The unit of each parameter.
std::map<std::string, int> UnitsOf(const ModelConfig& config) {
  std::map<std::string, int> units;
  for (const ParameterSpec& spec : GptParameters(config)) units[spec.name] = spec.unit;
  return units;
}

// Sets `found`, unless it is set, to the first element in which `values` differ.
void Look(const std::string& name, std::span<const float> reference, std::span<const float> values,
          std::optional<Equality::Difference>& found) {
  if (found) return;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::bit_cast<uint32_t>(reference[i]) == std::bit_cast<uint32_t>(values[i])) continue;
    found = {.parameter = name,
             .element = static_cast<int64_t>(i),
             .reference = reference[i],
             .value = values[i]};
    return;
  }
}

class Search {
 public:
  Search(const RepeatableRun& reference, const RepeatableRun& other, const Dataset& dataset,
         const std::function<int()>& stop_signal, RunObserver& observer)
      : reference_(reference),
        other_(other),
        dataset_(dataset),
        stop_signal_(stop_signal),
        observer_(observer) {}

  // After the first `steps` of both, which are evaluated too if `evaluate` says so.
  absl::StatusOr<std::optional<Equality::Difference>> DifferenceAfter(int64_t steps,
                                                                      bool evaluate = false) const {
    std::map<std::string, std::vector<float>> values;
    absl::Status status = Repeat(reference_, steps, evaluate,
                                 [&](const std::string& name, std::span<const float> parameter) {
                                   values[name].assign(parameter.begin(), parameter.end());
                                 });
    if (!status.ok()) return status;
    std::optional<Equality::Difference> found;
    status = Repeat(other_, steps, evaluate,
                    [&](const std::string& name, std::span<const float> parameter) {
                      Look(name, values[name], parameter, found);
                      values.erase(name);
                    });
    if (!status.ok()) return status;
    if (found) {
      found->step = steps;
      found->unit = UnitsOf(reference_.settings.model).at(found->parameter);
    }
    return found;
  }

 private:
  absl::Status Repeat(
      const RepeatableRun& run, int64_t steps, bool evaluate,
      const std::function<void(const std::string&, std::span<const float>)>& parameter) const {
    TrainSettings settings = run.settings;  // the schedule stays that of all steps
    settings.steps = steps;
    settings.out.clear();
    if (!evaluate) settings.eval_interval = 0;
    settings.sample_bytes = 0;
    settings.trace_step = kTraceOff;
    TrainHooks hooks = run.hooks;
    hooks.parameter = [&](const std::string& name, const float* values, int64_t elements) {
      parameter(name, {values, static_cast<size_t>(elements)});
    };
    const absl::StatusOr<RunPlan> plan = PlanRun(settings);
    if (!plan.ok()) return plan.status();
    const RunResult result = Train(settings, *plan, dataset_, &observer_, stop_signal_, hooks);
    if (result.stopped_by_signal != 0) return absl::CancelledError("stopped by a signal");
    if (!result.status.ok()) return result.status;
    if (const auto change = FirstDifferentLoss(run.result, result)) {
      return absl::InternalError(absl::StrFormat(
          "it did not happen again: with stage %d the %sloss of step %d was %.17g, done again it "
          "was %.17g",
          settings.zero_stage, change->evaluation ? "held-out " : "", change->step,
          change->reference, change->value));
    }
    return absl::OkStatus();
  }

  const RepeatableRun& reference_;
  const RepeatableRun& other_;
  const Dataset& dataset_;
  const std::function<int()>& stop_signal_;
  RunObserver& observer_;
};

}  // namespace

bool EqualityIsPromised(const TrainSettings& reference, const TrainSettings& other) {
  if (reference.device != "host" || other.device != "host") return false;
  // With several micro-batches, stages 2 and 3 sum each over the devices before the next.
  return reference.grad_accum == 1 || (reference.zero_stage >= 2) == (other.zero_stage >= 2);
}

std::optional<LossDifference> FirstDifferentLoss(const RunResult& reference,
                                                 const RunResult& other) {
  std::optional<LossDifference> first;
  const size_t steps = std::min(reference.step_metrics.size(), other.step_metrics.size());
  for (size_t i = 0; i < steps && !first; ++i) {
    const StepMetrics& a = reference.step_metrics[i];
    const StepMetrics& b = other.step_metrics[i];
    if (!SameBits(a.loss, b.loss)) first = {a.step, false, a.loss, b.loss};
  }
  const size_t evaluations = std::min(reference.eval_metrics.size(), other.eval_metrics.size());
  for (size_t i = 0; i < evaluations; ++i) {
    const EvalMetrics& a = reference.eval_metrics[i];
    const EvalMetrics& b = other.eval_metrics[i];
    if (SameBits(a.val_loss, b.val_loss)) continue;
    if (!first || a.step < first->step) first = {a.step, true, a.val_loss, b.val_loss};
    break;
  }
  return first;
}

absl::StatusOr<std::optional<Equality::Difference>> FirstDifferentElement(
    const ModelConfig& config, const std::string& reference_folder,
    const std::string& other_folder) {
  auto reference = SafetensorsReader::Open(ModelPath(reference_folder));
  if (!reference.ok()) return reference.status();
  auto other = SafetensorsReader::Open(ModelPath(other_folder));
  if (!other.ok()) return other.status();
  std::optional<Equality::Difference> found;
  for (const TensorInfo& info : (*reference)->tensors()) {
    const auto a = (*reference)->Tensor(info);
    if (!a.ok()) return a.status();
    const auto b = (*other)->Tensor(info);
    if (!b.ok()) return b.status();
    if (std::memcmp(a->data(), b->data(), a->size()) == 0) continue;
    Look(info.name, Widened(*a, info.dtype), Widened(*b, info.dtype), found);
    if (!found) return absl::InternalError(absl::StrCat(info.name, ": bytes differ, numbers not"));
    found->unit = UnitsOf(config).at(info.name);
    break;
  }
  return found;
}

absl::StatusOr<Equality::Difference> FindFirstDifference(const RepeatableRun& reference,
                                                         const RepeatableRun& other,
                                                         const std::optional<LossDifference>& loss,
                                                         const Dataset& dataset,
                                                         const std::function<int()>& stop_signal,
                                                         RunObserver& observer) {
  const Search search(reference, other, dataset, stop_signal, observer);
  // Parameters are equal after `equal` steps and differ after `differ`, which is when they are seen
  // to. All runs begin with those of one seed.
  int64_t equal = 0;
  int64_t differ = loss ? loss->steps_before() : reference.settings.steps;
  absl::StatusOr<std::optional<Equality::Difference>> found = std::nullopt;
  if (differ > 0) found = search.DifferenceAfter(differ, loss && loss->evaluation);
  if (!found.ok()) return found.status();
  if (!*found && !loss) {
    return absl::InternalError("it did not happen again: both runs came to the same parameters");
  }
  if (!*found) {
    // The loss itself was computed in another way; where that is done again, it must come again.
    if (!loss->evaluation) found = search.DifferenceAfter(loss->step);
    if (!found.ok()) return found.status();
    return Equality::Difference{
        .step = loss->step, .reference = loss->reference, .value = loss->value};
  }
  // Mostly it is seen a step later.
  for (int64_t probe = differ - 1; probe > equal; probe = equal + (differ - equal) / 2) {
    auto earlier = search.DifferenceAfter(probe);
    if (!earlier.ok()) return earlier.status();
    if (*earlier) {
      differ = probe;
      found = std::move(earlier);
    } else {
      equal = probe;
    }
  }
  return **found;
}

}  // namespace zerobox
