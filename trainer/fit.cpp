// SPDX-License-Identifier: Apache-2.0
#include "trainer/fit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/tables.h"
#include "trainer/text.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

constexpr size_t kMostShown = 3;

int64_t DeviceReservations(const RunPlan& plan) {
  int64_t all = 0;
  for (const RankPlan& rank : plan.ranks) all += ReservedBytes(rank.regions);
  return all;
}

// Of devices that share one memory, fewer have more each.
bool ShareMemory(const TrainSettings& settings) {
  return settings.device != "cuda" || settings.virtual_devices;
}

// Of the machine's memory, by devices that bring none of their own.
int64_t DevicesOnMachine(const TrainSettings& settings, const RunPlan& plan) {
  return settings.device == "cuda" ? 0 : DeviceReservations(plan);
}

// Whether each GPU has room for its devices, and for the workspace that they take besides.
absl::Status CheckGpus(const TrainSettings& settings, const RunPlan& plan, const Machine& machine) {
  if (settings.device != "cuda") return absl::OkStatus();
  const bool shared = settings.virtual_devices;
  const absl::StatusOr<int64_t> free = LeastFreeGpuMemory(machine, shared ? 1 : settings.devices);
  if (!free.ok()) return settings.dry_run ? absl::OkStatus() : free.status();  // of GPUs elsewhere
  const int64_t workspace =
      machine.gpu_workspace(OpsSizes(settings)) * (shared ? settings.devices : 1);
  const int64_t reserved = shared ? DeviceReservations(plan) : LargestReservation(plan);
  const int64_t needed = reserved + workspace;
  if (needed <= *free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the run does not fit: it needs ", HumanBytes(needed), " (", WithCommas(needed),
                   " bytes, ", HumanBytes(workspace), " of them workspace of the kernels) on a GPU",
                   shared ? absl::StrCat(" for its ", settings.devices, " devices") : "",
                   ", which has ", HumanBytes(*free), " (", WithCommas(*free), " bytes) free"));
}

// What a setting costs in speed, in hundredths of a step's compute: rough numbers, of which only
// the order matters. Stage 3 gathers parameters in both passes; full checkpointing is a forward
// pass more, a third of all; an offloaded optimizer's bytes go over a bus, and the host updates
// them; checkpoints travel behind compute; smaller micro-batches make smaller products.
int Cost(const TrainSettings& settings, int halvings) {
  constexpr int kStage[] = {0, 1, 2, 10};
  constexpr int kCheckpointing[] = {0, 5, 33};
  int cost = kStage[settings.zero_stage] +
             kCheckpointing[static_cast<size_t>(settings.activation_checkpointing)];
  if (settings.offload_optimizer) cost += 25;
  if (settings.offload_activations) cost += 8;
  return cost + halvings * (settings.zero_stage >= 2 ? 9 : 6);
}

struct Candidate {
  TrainSettings settings;
  std::vector<std::string> flags;  // in which it differs from what was asked for
  int cost = 0;
};

// The flags in which `other` differs from `settings`.
std::vector<std::string> ChangedFlags(const TrainSettings& settings, const TrainSettings& other) {
  std::vector<std::string> flags;
  if (other.zero_stage != settings.zero_stage) {
    flags.push_back(absl::StrCat("--zero_stage=", other.zero_stage));
  }
  if (other.activation_checkpointing != settings.activation_checkpointing) {
    flags.push_back(absl::StrCat("--activation_checkpointing=",
                                 std::string(Name(other.activation_checkpointing))));
  }
  const std::string_view offload = OffloadName(other.offload_optimizer, other.offload_activations);
  if (offload != OffloadName(settings.offload_optimizer, settings.offload_activations)) {
    flags.push_back(absl::StrCat("--offload=", std::string(offload)));
  }
  if (other.micro_batch != settings.micro_batch) {
    flags.push_back(absl::StrCat("--micro_batch=", other.micro_batch));
    flags.push_back(absl::StrCat("--grad_accum=", other.grad_accum));
  }
  return flags;
}

// Whether `some` are all among `all`.
bool Among(const std::vector<std::string>& some, const std::vector<std::string>& all) {
  return std::all_of(some.begin(), some.end(), [&all](const std::string& flag) {
    return std::find(all.begin(), all.end(), flag) != all.end();
  });
}

// The global batch in micro-batches of 1/2, 1/4 and 1 sequence: where 2 divides it.
std::vector<std::pair<int64_t, int>> MicroBatches(int64_t micro_batch) {
  std::vector<std::pair<int64_t, int>> sizes = {{micro_batch, 0}};
  int halvings = 0;
  int64_t size = micro_batch;
  while (size % 2 == 0) {
    size /= 2;
    sizes.emplace_back(size, ++halvings);
  }
  if (size > 1) sizes.emplace_back(1, halvings + 2);
  // Of many, the first two and the last will do.
  if (sizes.size() > 4) sizes.erase(sizes.begin() + 3, sizes.end() - 1);
  return sizes;
}

std::vector<Candidate> Candidates(const ResolvedTrain& resolved) {
  const TrainSettings& settings = resolved.settings;
  std::vector<Candidate> candidates;
  for (int stage = 0; stage <= 3; ++stage) {
    if (settings.devices == 1 && stage != settings.zero_stage) continue;  // all alike
    for (const auto checkpointing :
         {ActivationCheckpointing::kNone, ActivationCheckpointing::kSelective,
          ActivationCheckpointing::kFull}) {
      for (const bool optimizer : {false, true}) {
        for (const bool activations : {false, true}) {
          if (activations && checkpointing == ActivationCheckpointing::kNone) continue;
          for (const auto& [micro_batch, halvings] : MicroBatches(settings.micro_batch)) {
            TrainSettings other = settings;
            other.zero_stage = stage;
            other.activation_checkpointing = checkpointing;
            other.offload_optimizer = optimizer;
            other.offload_activations = activations;
            other.micro_batch = micro_batch;
            other.grad_accum = settings.grad_accum * (settings.micro_batch / micro_batch);
            if (!FindFlag("grad_accum")->range.Contains(static_cast<double>(other.grad_accum))) {
              continue;
            }
            if (resolved.auto_grad_accum_dtype) {
              other.grad_accum_dtype = AutoGradAccumDType(other.dtype, other.grad_accum);
            }
            std::vector<std::string> flags = ChangedFlags(settings, other);
            if (flags.empty()) continue;  // the run as asked for, which is what does not fit
            // Each change of a flag weighs as much as 3% of a step.
            const int cost = Cost(other, halvings) + 3 * static_cast<int>(flags.size());
            candidates.push_back({other, std::move(flags), cost});
          }
        }
      }
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  return candidates;
}

std::string Needs(const FittingSettings& found) {
  std::string text = absl::StrCat(WithCommas(found.device_bytes), " bytes (",
                                  HumanBytes(found.device_bytes), ") on a device");
  if (found.host_bytes > 0) {
    absl::StrAppend(&text, ", ", HumanBytes(found.host_bytes), " on all host sides");
  }
  return text;
}

bool Derived(const ResolvedTrain& resolved, std::string_view name) {
  return std::any_of(resolved.flags.begin(), resolved.flags.end(), [&](const ResolvedFlag& flag) {
    return flag.name == name && flag.source == "derived";
  });
}

// Whether a device needs a tenth less, or more than that, with `other` than with `settings`.
bool SavesMuch(const TrainSettings& settings, const TrainSettings& other) {
  const absl::StatusOr<RunPlan> with = PlanRun(settings);
  const absl::StatusOr<RunPlan> without = PlanRun(other);
  return with.ok() && without.ok() &&
         LargestReservation(*without) <= LargestReservation(*with) / 10 * 9;
}

// What `least`, which does not fit with the rest of its settings, may still change: other results,
// another model, or another machine.
std::vector<std::string> OtherChanges(const ResolvedTrain& resolved, const TrainSettings& least,
                                      const Machine& machine) {
  std::vector<std::string> changes;
  if (least.dtype == DType::kFloat32) changes.push_back("--dtype=bf16");
  TrainSettings other = least;
  other.logits_bytes = least.model.vocab_size * SizeOf(least.dtype);  // one row at a time
  if (SavesMuch(least, other)) changes.push_back("a smaller --logits_bytes");
  other = least;
  other.bucket_bytes = 1;  // a parameter a bucket
  if (SavesMuch(least, other)) changes.push_back("a smaller --bucket_bytes");
  // A device's share of the memory grows where others go; a capacity that was given does not, nor
  // what a GPU of its own has.
  const absl::StatusOr<RunPlan> plan = PlanRun(least);
  const bool machine_short =
      plan.ok() &&
      (DevicesOnMachine(least, *plan) + HostReservations(*plan) > machine.available_memory ||
       !CheckGpus(least, *plan, machine).ok());
  const bool derived = Derived(resolved, "device_memory");
  if (least.devices > 1 && ((derived && ShareMemory(least)) || machine_short)) {
    changes.push_back("fewer --devices");
  }
  changes.push_back("a smaller --seq_len, --n_layer or --n_embd");
  if (!derived && plan.ok() && LargestReservation(*plan) > least.device_memory_bytes) {
    changes.push_back("where the machine has it, more --device_memory");
  }
  return changes;
}

}  // namespace

CudaOpsSizes OpsSizes(const TrainSettings& settings) {
  const ModelConfig& model = settings.model;
  return {.shape = {settings.micro_batch, model.seq_len, model.n_embd},
          .heads = model.n_head,
          .vocabulary = model.vocab_size};
}

int64_t HostReservations(const RunPlan& plan) {
  int64_t all = 0;
  for (const RankPlan& rank : plan.ranks) all += ReservedBytes(rank.host_regions);
  return all;
}

absl::Status CheckFit(const TrainSettings& settings, const RunPlan& plan, const Machine& machine) {
  const int64_t needed = LargestReservation(plan);
  if (needed > settings.device_memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the run does not fit: it needs ", HumanBytes(needed), " (", WithCommas(needed),
        " bytes) on a device, --device_memory is ", HumanBytes(settings.device_memory_bytes), " (",
        WithCommas(settings.device_memory_bytes), " bytes)"));
  }
  if (absl::Status status = CheckGpus(settings, plan, machine); !status.ok()) return status;
  const int64_t devices = DevicesOnMachine(settings, plan);
  const int64_t host = HostReservations(plan);
  if (devices + host > machine.available_memory) {
    if (devices == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the run does not fit: it needs ", HumanBytes(host), " (", WithCommas(host),
                       " bytes) of this machine's memory for --offload, which has ",
                       HumanBytes(machine.available_memory), " free"));
    }
    const std::string sides = host > 0
                                  ? absl::StrCat(", and ", HumanBytes(host), " (", WithCommas(host),
                                                 " bytes) on their host sides for --offload")
                                  : "";
    return absl::ResourceExhaustedError(
        absl::StrCat("the run does not fit: its ", settings.devices, " devices need ",
                     HumanBytes(devices), " (", WithCommas(devices), " bytes) together", sides,
                     ", this machine has ", HumanBytes(machine.available_memory), " free"));
  }
  return absl::OkStatus();
}

std::vector<FittingSettings> FindFitting(const ResolvedTrain& resolved, const Machine& machine,
                                         size_t most) {
  std::vector<FittingSettings> fitting;
  std::vector<std::vector<std::string>> shown;
  FittingSettings smallest;
  for (const Candidate& candidate : Candidates(resolved)) {
    // Where some flags do, the same and others are no news.
    if (std::any_of(shown.begin(), shown.end(),
                    [&](const auto& flags) { return Among(flags, candidate.flags); })) {
      continue;
    }
    const absl::StatusOr<RunPlan> plan = PlanRun(candidate.settings);
    if (!plan.ok()) continue;
    FittingSettings found = {.flags = absl::StrJoin(candidate.flags, " "),
                             .device_bytes = LargestReservation(*plan),
                             .host_bytes = HostReservations(*plan),
                             .fits = CheckFit(candidate.settings, *plan, machine).ok(),
                             .settings = candidate.settings};
    // How far it is from fitting a device, then what all of it takes.
    const auto need = [&](const FittingSettings& other) {
      const auto [capacity, devices] =
          std::pair(resolved.settings.device_memory_bytes, resolved.settings.devices);
      return std::pair(std::max<int64_t>(other.device_bytes - capacity, 0),
                       other.device_bytes * devices + other.host_bytes);
    };
    if (smallest.flags.empty() || need(found) < need(smallest)) smallest = found;
    if (!found.fits) continue;
    fitting.push_back(std::move(found));
    shown.push_back(candidate.flags);
    if (fitting.size() == most) return fitting;
  }
  if (fitting.empty() && !smallest.flags.empty()) fitting.push_back(std::move(smallest));
  return fitting;
}

std::string WhatWouldFit(const ResolvedTrain& resolved, const Machine& machine) {
  const std::vector<FittingSettings> found = FindFitting(resolved, machine, kMostShown);
  std::string text;
  if (!found.empty() && found[0].fits) {
    text = "These flags train the same model on the same batches and fit, the cheapest first:";
  } else {
    text = "No --zero_stage, --activation_checkpointing, --offload or --micro_batch makes it fit";
    text += found.empty() ? "." : "; the least is";
  }
  for (const FittingSettings& settings : found) {
    absl::StrAppend(&text, "\n  ", settings.flags, "\n      needs ", Needs(settings));
  }
  if (!found.empty() && found[0].fits) return text;
  const TrainSettings& least = found.empty() ? resolved.settings : found[0].settings;
  return absl::StrCat(
      text, "\nWhat is left: ", absl::StrJoin(OtherChanges(resolved, least, machine), "; "));
}

}  // namespace zerobox
