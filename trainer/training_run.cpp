// SPDX-License-Identifier: Apache-2.0
#include "trainer/training_run.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "data/count_model.h"
#include "trainer/commands.h"
#include "trainer/signals.h"

namespace zerobox {
namespace {

// Shows and writes what a run reports while it goes on.
class Reporter final : public RunObserver {
 public:
  Reporter(Screen& screen, RunFolder& folder, int64_t steps,
           std::function<void(const RunResult&)> on_failure)
      : screen_(screen),
        folder_(folder),
        progress_(screen, steps),
        on_failure_(std::move(on_failure)) {}
  void OnStep(const StepMetrics& metrics) override {
    folder_.Append(metrics);
    progress_.OnStep(metrics);
  }
  void OnEval(const EvalMetrics& metrics) override {
    folder_.Append(metrics);
    screen_.Print(EvalText(metrics, screen_.style()));
  }
  // Threads that hang cannot be joined, and what they use cannot be destroyed.
  [[noreturn]] void OnGivenUp(const RunResult& result) override {
    on_failure_(result);
    _exit(kFailed);
  }

 private:
  Screen& screen_;
  RunFolder& folder_;
  Progress progress_;
  const std::function<void(const RunResult&)> on_failure_;
};

absl::Status CheckBatch(const TrainSettings& settings, const Dataset& dataset) {
  if (settings.global_batch() <= dataset.train_sequences()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--data=", settings.data, ": wanted at least one global batch of ", settings.micro_batch,
      " micro_batch x ", settings.grad_accum, " grad_accum x ", settings.devices,
      " devices = ", settings.global_batch(), " sequences, found ", dataset.train_sequences(),
      " of ", settings.model.seq_len,
      " tokens to train on; give more data, or lower --micro_batch, --grad_accum, --devices or "
      "--seq_len"));
}

DerivedNumbers Derived(const TrainSettings& settings, const RunPlan& plan, const DataFacts& facts) {
  return {{"parameters", plan.parameters},
          {"padding", plan.padding},
          {"global_batch", settings.global_batch()},
          {"tokens_per_step", settings.global_batch() * settings.model.seq_len},
          {"train_tokens", facts.train_tokens},
          {"train_sequences", facts.train_sequences},
          {"validation_sequences", facts.validation_sequences},
          {"threads_per_device", settings.threads_per_device()},
          {"reserved_bytes", LargestReservation(plan)}};
}

}  // namespace

absl::StatusOr<RunData> OpenData(const TrainSettings& settings, Screen& screen) {
  using Clock = std::chrono::steady_clock;
  ReadingProgress progress(screen);
  const auto on_read = [&, begin = Clock::now()](int64_t bytes, int64_t all) {
    progress.OnRead(bytes, all, std::chrono::duration<double>(Clock::now() - begin).count());
  };
  absl::StatusOr<std::unique_ptr<Dataset>> dataset =
      Dataset::Open({.train = settings.data,
                     .validation = settings.val_data,
                     .sequence_length = settings.model.seq_len,
                     .vocabulary = settings.model.vocab_size,
                     .seed = settings.seed,
                     .on_read = on_read});
  if (!dataset.ok()) return dataset.status();
  if (absl::Status status = CheckBatch(settings, **dataset); !status.ok()) return status;
  const DataFacts facts = {.train_tokens = (*dataset)->train_tokens(),
                           .train_sequences = (*dataset)->train_sequences(),
                           .validation_sequences = (*dataset)->validation_sequences()};
  return RunData{.dataset = *std::move(dataset), .facts = facts};
}

absl::Status TrainingRun::Plan(ResolvedTrain resolved) {
  resolved_ = std::move(resolved);
  absl::StatusOr<RunPlan> plan = PlanRun(settings());
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  return absl::OkStatus();
}

std::string TrainingRun::HeaderText(const RunData& data) const {
  return Header(settings(), resolved_.model, plan_, data.dataset ? &data.facts : nullptr,
                resolved_.about_devices, screen_.style());
}

absl::Status TrainingRun::MakeFolder(const RunData& data, const std::string& out) {
  absl::StatusOr<std::unique_ptr<RunFolder>> folder =
      RunFolder::Create(out, ShortName(settings()), std::time(nullptr));
  if (!folder.ok()) return folder.status();
  folder_ = *std::move(folder);
  resolved_.settings.out = folder_->path();
  for (ResolvedFlag& flag : resolved_.flags) {
    if (flag.name == "out") flag.value = settings().out;
  }
  folder_->WriteConfig(resolved_.flags, Derived(settings(), plan_, data.facts));
  return folder_->status();
}

RunResult TrainingRun::Train(const RunData& data,
                             std::function<void(const RunResult&)> on_given_up) {
  Reporter reporter(screen_, *folder_, settings().steps, std::move(on_given_up));
  RunResult result =
      zerobox::Train(settings(), plan_, *data.dataset, &reporter, StopSignal, hooks_);
  if (result.status.ok() || result.steps > 0) {
    folder_->WriteMemory(plan_, result.ranks);
    folder_->WriteCommunication(plan_, result.ranks);
  }
  if (!result.trace_error.empty()) {
    screen_.Say(absl::StrCat("no step is shown in the report: ", result.trace_error));
  }
  return result;
}

std::vector<ReferenceLoss> CountModelLosses(const TrainSettings& settings, const Dataset& dataset) {
  std::vector<ReferenceLoss> losses;
  if (settings.eval_interval == 0) return losses;
  const std::vector<int64_t> sequences = EvaluationSequences(settings, dataset);
  for (int context = 0; context <= 2; ++context) {
    const absl::StatusOr<double> loss = CountModelLoss(
        dataset, settings.model.seq_len, settings.model.vocab_size, context, sequences);
    if (!loss.ok()) continue;  // a vocabulary too large to count pairs in
    losses.push_back(
        {absl::StrCat("counting, ", context, context == 1 ? " token" : " tokens", " of context"),
         *loss});
  }
  return losses;
}

std::string FailureText(const RunResult& result) {
  std::string message =
      absl::StrCat("a worker failed after step ", result.steps, ": ", result.status.message());
  for (size_t rank = 0; rank < result.where.size(); ++rank) {
    absl::StrAppend(&message, "\n  device ", rank, ": ", result.where[rank]);
  }
  return message;
}

std::string_view SignalName(int signal) {
  return signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
}

}  // namespace zerobox
