// SPDX-License-Identifier: Apache-2.0
//
// zerobox train: flags -> settings -> data -> plan -> run folder -> run -> tables and files. All
// that can be refused is refused before the run folder is made.
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/fit.h"
#include "trainer/help.h"
#include "trainer/report.h"
#include "trainer/resolve.h"
#include "trainer/run_folder.h"
#include "trainer/screen.h"
#include "trainer/signals.h"
#include "trainer/tables.h"
#include "trainer/train.h"
#include "trainer/training_run.h"

namespace zerobox {
namespace {

constexpr const char* kTraceLine =
    "  trace.json           the timeline of a step, for ui.perfetto.dev\n";

class TrainCommand {
 public:
  TrainCommand(Screen& screen, const TrainHooks& hooks) : screen_(screen), run_(screen, hooks) {}

  // `command` is the command line that `line` was read from.
  int Run(const CommandLine& line, std::string command) {
    command_ = std::move(command);
    absl::StatusOr<ResolvedTrain> resolved = ResolveTrain(line, machine_);
    if (!resolved.ok()) return Refuse(resolved.status());
    if (!resolved->settings.out.empty()) {
      if (absl::Status status = RunFolder::Check(resolved->settings.out); !status.ok())
        return Refuse(status);
    }
    if (!resolved->settings.data.empty()) {
      absl::StatusOr<RunData> data = OpenData(resolved->settings, screen_);
      if (!data.ok()) return Refuse(data.status());
      data_ = *std::move(data);
    }
    if (absl::Status status = run_.Plan(*std::move(resolved)); !status.ok()) return Refuse(status);
    if (settings().dry_run) return DryRun();
    if (absl::Status status = CheckFit(settings(), plan(), machine_); !status.ok()) {
      return RefuseToFit(status);
    }
    return Train();
  }

 private:
  const TrainSettings& settings() const { return run_.settings(); }
  const RunPlan& plan() const { return run_.plan(); }

  int Refuse(const absl::Status& status) {
    screen_.Say(std::string(status.message()));
    return kRefused;
  }

  int RefuseToFit(const absl::Status& status) {
    screen_.Print(MemoryTable(settings(), plan(), {}, screen_.style()));
    screen_.Say(
        absl::StrCat(std::string(status.message()), "\n", WhatWouldFit(run_.resolved(), machine_)));
    return kRefused;
  }

  int DryRun() {
    const Style style = screen_.style();
    screen_.Print(run_.HeaderText(data_));
    screen_.Print(FlagsTable(run_.resolved().flags, style));
    screen_.Print(ProgramTable(settings(), plan(), style));
    screen_.Print(MemoryTable(settings(), plan(), {}, style));
    screen_.Print(TrafficTable(plan(), {}, style));
    if (absl::Status status = CheckFit(settings(), plan(), machine_); !status.ok()) {
      screen_.Say(absl::StrCat(std::string(status.message()), "\n",
                               WhatWouldFit(run_.resolved(), machine_)));
      return kRefused;
    }
    screen_.Print("\nA dry run: nothing was trained, nothing was written.\n");
    return screen_.out_ok() ? kDone : kRefused;
  }

  int Train() {
    // Until here a signal ends the program as usual; from here on, where there is something to
    // leave in order, it ends the run so.
    CatchStopSignals();
    // Where there is no room for the model now, there will be none when it is trained.
    absl::Status status = RunFolder::CheckRoom(settings().out, RunFolder::RoomFor(plan()));
    if (status.ok()) status = run_.MakeFolder(data_, settings().out);
    if (!status.ok()) {
      if (run_.folder() != nullptr) run_.folder()->Remove();
      return Refuse(status);
    }
    screen_.LogTo([this](std::string_view text) { run_.folder()->Log(text); });
    screen_.Print(run_.HeaderText(data_));
    screen_.Print(
        absl::StrCat("  ", screen_.style().Dim(Left("files", 10)), settings().out, "/\n\n"));
    const RunResult result =
        run_.Train(data_, [this](const RunResult& failed) { ReportFailure(failed); });
    int code = kDone;
    if (!result.status.ok()) {
      if (result.steps > 0) WriteReport(result);
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
    if (!run_.folder()->status().ok()) {
      screen_.Say(std::string(run_.folder()->status().message()));
      if (code == kDone) code = kFailed;
    }
    if (!screen_.out_ok()) {
      screen_.Say(absl::StrCat("what stdout did not take is in ", settings().out, "/log.txt"));
      if (code == kDone) code = kFailed;
    }
    screen_.LogTo([](std::string_view) {});
    return code;
  }

  int ReportFailure(const RunResult& result) {
    screen_.Say(FailureText(result));
    return kFailed;
  }

  void ShowResult(const RunResult& result) {
    const Style style = screen_.style();
    if (result.stopped_by_signal == 0 && settings().sample_bytes > 0) ShowSample();
    screen_.Print(MemoryTable(settings(), plan(), result.ranks, style));
    screen_.Print(TrafficTable(plan(), result.ranks, style) + ExposedCommunication(result, style));
    if (result.stopped_by_signal == 0) ShowYardsticks(result);
    WriteReport(result);
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
                               "  report.html          the run as a page, for a browser\n",
                               "  report.json          what the page shows (zerobox report)\n",
                               result.trace ? kTraceLine : "",
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
    references_ = CountModelLosses(settings(), *data_.dataset);
    std::vector<Yardstick> yardsticks;
    for (const ReferenceLoss& reference : references_) {
      yardsticks.push_back({reference.name, reference.loss});
    }
    yardsticks.push_back({absl::StrFormat("this model after %d steps", result.steps),
                          result.eval_metrics.back().val_loss, /*ours=*/true});
    screen_.Print(YardstickTable(yardsticks, screen_.style()));
  }

  void WriteReport(const RunResult& result) {
    run_.folder()->WriteReport({.command = command_,
                                .created = std::time(nullptr),
                                .resolved = &run_.resolved(),
                                .plan = &plan(),
                                .result = &result,
                                .failure = std::string(result.status.message()),
                                .references = references_});
  }

  Screen& screen_;
  std::string command_;
  TrainingRun run_;
  const Machine machine_ = ThisMachine();
  RunData data_;
  std::vector<ReferenceLoss> references_;
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
  std::vector<std::string> command = {"train"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return TrainCommand(screen, hooks).Run(*line, CommandText(command));
}

}  // namespace zerobox
