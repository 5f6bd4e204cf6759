// SPDX-License-Identifier: Apache-2.0
//
// zerobox train: flags -> settings -> data -> plan -> run folder -> run -> tables and files. All
// that can be refused is refused before the run folder is made.
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "data/count_model.h"
#include "data/dataset.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/fit.h"
#include "trainer/help.h"
#include "trainer/resolve.h"
#include "trainer/run_folder.h"
#include "trainer/screen.h"
#include "trainer/signals.h"
#include "trainer/tables.h"
#include "trainer/train.h"

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
    _exit(kWorkerFailed);
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

std::string_view SignalName(int signal) {
  return signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
}

class TrainCommand {
 public:
  TrainCommand(Screen& screen, const TrainHooks& hooks) : screen_(screen), hooks_(hooks) {}

  int Run(const CommandLine& line) {
    absl::StatusOr<ResolvedTrain> resolved = ResolveTrain(line, machine_);
    if (!resolved.ok()) return Refuse(resolved.status());
    resolved_ = *std::move(resolved);
    if (!settings().out.empty()) {
      if (absl::Status status = RunFolder::Check(settings().out); !status.ok())
        return Refuse(status);
    }
    if (!settings().data.empty()) {
      if (absl::Status status = OpenData(); !status.ok()) return Refuse(status);
    }
    absl::StatusOr<RunPlan> plan = PlanRun(settings());
    if (!plan.ok()) return Refuse(plan.status());
    plan_ = *std::move(plan);
    if (settings().dry_run) return DryRun();
    if (absl::Status status = CheckFit(settings(), plan_, machine_); !status.ok()) {
      return RefuseToFit(status);
    }
    return Train();
  }

 private:
  TrainSettings& settings() { return resolved_.settings; }

  int Refuse(const absl::Status& status) {
    screen_.Say(std::string(status.message()));
    return kRefused;
  }

  int RefuseToFit(const absl::Status& status) {
    screen_.Print(MemoryTable(settings(), plan_, {}, screen_.style()));
    screen_.Say(
        absl::StrCat(std::string(status.message()), "\n", WhatWouldFit(resolved_, machine_)));
    return kRefused;
  }

  absl::Status OpenData() {
    absl::StatusOr<std::unique_ptr<Dataset>> dataset =
        Dataset::Open({.train = settings().data,
                       .validation = settings().val_data,
                       .sequence_length = settings().model.seq_len,
                       .vocabulary = settings().model.vocab_size,
                       .seed = settings().seed});
    if (!dataset.ok()) return dataset.status();
    dataset_ = *std::move(dataset);
    facts_ = {.train_tokens = dataset_->train_tokens(),
              .train_sequences = dataset_->train_sequences(),
              .validation_sequences = dataset_->validation_sequences()};
    return CheckBatch(settings(), *dataset_);
  }

  std::string HeaderText() {
    return Header(settings(), resolved_.model, plan_, dataset_ ? &facts_ : nullptr,
                  resolved_.about_devices, screen_.style());
  }

  int DryRun() {
    const Style style = screen_.style();
    screen_.Print(HeaderText());
    screen_.Print(FlagsTable(resolved_.flags, style));
    screen_.Print(ProgramTable(settings(), plan_, style));
    screen_.Print(MemoryTable(settings(), plan_, {}, style));
    screen_.Print(TrafficTable(plan_, {}, style));
    if (absl::Status status = CheckFit(settings(), plan_, machine_); !status.ok()) {
      screen_.Say(
          absl::StrCat(std::string(status.message()), "\n", WhatWouldFit(resolved_, machine_)));
      return kRefused;
    }
    screen_.Print("\nA dry run: nothing was trained, nothing was written.\n");
    return screen_.out_ok() ? kDone : kRefused;
  }

  DerivedNumbers Derived() {
    const int64_t tokens = settings().global_batch() * settings().model.seq_len;
    return {{"parameters", plan_.parameters},
            {"padding", plan_.padding},
            {"global_batch", settings().global_batch()},
            {"tokens_per_step", tokens},
            {"train_tokens", facts_.train_tokens},
            {"train_sequences", facts_.train_sequences},
            {"validation_sequences", facts_.validation_sequences},
            {"threads_per_device", settings().threads_per_device()},
            {"reserved_bytes", LargestReservation(plan_)}};
  }

  absl::Status MakeFolder() {
    absl::StatusOr<std::unique_ptr<RunFolder>> folder =
        RunFolder::Create(settings().out, ShortName(settings()), std::time(nullptr));
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    settings().out = folder_->path();
    for (ResolvedFlag& flag : resolved_.flags) {
      if (flag.name == "out") flag.value = settings().out;
    }
    folder_->WriteConfig(resolved_.flags, Derived());
    screen_.LogTo([this](std::string_view text) { folder_->Log(text); });
    return folder_->status();
  }

  int Train() {
    // Where there is no room for the model now, there will be none when it is trained.
    absl::Status status = RunFolder::CheckRoom(settings().out, RunFolder::RoomFor(plan_));
    if (status.ok()) status = MakeFolder();
    if (!status.ok()) {
      screen_.LogTo([](std::string_view) {});
      if (folder_ != nullptr) folder_->Remove();
      return Refuse(status);
    }
    screen_.Print(HeaderText());
    screen_.Print(
        absl::StrCat("  ", screen_.style().Dim(Left("files", 10)), settings().out, "/\n\n"));
    // Until here a signal ends the program as usual; from here on it ends the run in order.
    CatchStopSignals();
    Reporter reporter(screen_, *folder_, settings().steps,
                      [this](const RunResult& result) { ReportFailure(result); });
    const RunResult result =
        zerobox::Train(settings(), plan_, *dataset_, &reporter, StopSignal, hooks_);
    if (result.status.ok() || result.steps > 0) {
      folder_->WriteMemory(plan_, result.ranks);
      folder_->WriteCommunication(plan_, result.ranks);
    }
    int code = kDone;
    if (!result.status.ok()) {
      code = ReportFailure(result);
    } else {
      if (result.steps > 0) ShowResult(result);
      if (result.stopped_by_signal != 0) {
        screen_.Say(absl::StrCat("stopped by ", std::string(SignalName(result.stopped_by_signal)),
                                 result.steps > 0 ? absl::StrCat(" after step ", result.steps,
                                                                 "; everything up to it is written")
                                                  : std::string(" before the first step")));
        code = kStoppedBySignal + result.stopped_by_signal;
      } else if (StopSignal() != 0) {  // while it wrote what follows the training
        code = kStoppedBySignal + StopSignal();
      }
    }
    if (!folder_->status().ok()) {
      screen_.Say(std::string(folder_->status().message()));
      if (code == kDone) code = kWorkerFailed;
    }
    screen_.LogTo([](std::string_view) {});
    return code;
  }

  int ReportFailure(const RunResult& result) {
    std::string message =
        absl::StrCat("a worker failed after step ", result.steps, ": ", result.status.message());
    for (size_t rank = 0; rank < result.where.size(); ++rank) {
      absl::StrAppend(&message, "\n  device ", rank, ": ", result.where[rank]);
    }
    screen_.Say(message);
    return kWorkerFailed;
  }

  void ShowResult(const RunResult& result) {
    const Style style = screen_.style();
    if (result.stopped_by_signal == 0 && settings().sample_bytes > 0) ShowSample();
    screen_.Print(MemoryTable(settings(), plan_, result.ranks, style));
    screen_.Print(TrafficTable(plan_, result.ranks, style) + ExposedCommunication(result, style));
    if (result.stopped_by_signal == 0) ShowYardsticks(result);
    if (result.skipped > 0) {
      screen_.Print(
          absl::StrCat("\nSkipped ", result.skipped, " of ", result.steps,
                       " steps: their gradient norm was not finite. If the last steps are "
                       "among them, the\n"
                       "training has diverged: lower --lr, or clip with --grad_clip.\n"));
    }
    const std::string sample = settings().out.starts_with("runs/")
                                   ? "zerobox sample"
                                   : absl::StrCat("zerobox sample --run=", settings().out);
    screen_.Print(absl::StrCat("\n", style.Bold("Files in " + settings().out), "\n",
                               "  model.safetensors    the trained model (", sample, ")\n",
                               "  metrics.jsonl        every step and evaluation\n",
                               "  memory.json          the memory table, for every device\n",
                               "  communication.json   the traffic table, for every device\n",
                               "  config.json          every setting and where it came from\n",
                               "  log.txt              what you see here\n"));
  }

  void ShowSample() {
    std::string text;
    const absl::Status status = Sample({.run = settings().out,
                                        .bytes = settings().sample_bytes,
                                        .seed = settings().seed,
                                        .threads = settings().threads},
                                       [&text](std::string_view piece) {
                                         text.append(piece);
                                         return StopSignal() == 0;
                                       });
    if (!status.ok()) {
      screen_.Say(absl::StrCat("no sample: ", status.message()));
      return;
    }
    screen_.Print(absl::StrCat("\n", screen_.style().Bold("What the model writes"), "\n",
                               SampleBlock(text, screen_.style())));
  }

  void ShowYardsticks(const RunResult& result) {
    if (result.eval_metrics.empty()) return;
    const std::vector<int64_t> sequences = EvaluationSequences(settings(), *dataset_);
    std::vector<Yardstick> yardsticks;
    for (int context = 0; context <= 2; ++context) {
      const absl::StatusOr<double> loss = CountModelLoss(
          *dataset_, settings().model.seq_len, settings().model.vocab_size, context, sequences);
      if (!loss.ok()) continue;  // a vocabulary too large to count pairs in
      yardsticks.push_back(
          {absl::StrCat("counting, ", context, context == 1 ? " token" : " tokens", " of context"),
           *loss});
    }
    yardsticks.push_back({absl::StrFormat("this model after %d steps", result.steps),
                          result.eval_metrics.back().val_loss, /*ours=*/true});
    screen_.Print(YardstickTable(yardsticks, screen_.style()));
  }

  Screen& screen_;
  const TrainHooks& hooks_;
  const Machine machine_ = ThisMachine();
  ResolvedTrain resolved_;
  RunPlan plan_;
  std::unique_ptr<Dataset> dataset_;
  DataFacts facts_;
  std::unique_ptr<RunFolder> folder_;
};

}  // namespace

int TrainProgram(std::span<const std::string> arguments, const TrainHooks& hooks) {
  Screen screen(OptionsOfThisProcess());
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, arguments);
  if (!line.ok()) {
    screen.Say(std::string(line.status().message()));
    return kRefused;
  }
  if (line->help || line->version) {
    screen.Print(line->help ? FlagsHelp(kTrainCommand) : VersionText());
    return screen.out_ok() ? kDone : kRefused;
  }
  return TrainCommand(screen, hooks).Run(*line);
}

}  // namespace zerobox
