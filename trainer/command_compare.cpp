// SPDX-License-Identifier: Apache-2.0
//
// zerobox compare: the same steps with every stage, offload and way of checkpointing that is asked
// for, one after the other; then a table, and the files of all of them in one folder. All that can
// be refused is refused before the folder is made.
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/combinations.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/comparison.h"
#include "trainer/fit.h"
#include "trainer/help.h"
#include "trainer/memory_picture.h"
#include "trainer/report.h"
#include "trainer/run_equality.h"
#include "trainer/run_folder.h"
#include "trainer/screen.h"
#include "trainer/signals.h"
#include "trainer/table_rows.h"
#include "trainer/tables.h"
#include "trainer/training_run.h"

namespace zerobox {
namespace {

// Of the search for a difference: its steps are not shown.
class SearchObserver final : public RunObserver {
 public:
  explicit SearchObserver(std::function<void(const RunResult&)> on_given_up)
      : on_given_up_(std::move(on_given_up)) {}
  void OnStep(const StepMetrics& /*metrics*/) override {}
  void OnEval(const EvalMetrics& /*metrics*/) override {}
  // As in a run: threads that hang cannot be joined, and what they use cannot be destroyed.
  [[noreturn]] void OnGivenUp(const RunResult& result) override {
    on_given_up_(result);
    _exit(kFailed);
  }

 private:
  const std::function<void(const RunResult&)> on_given_up_;
};

class CompareCommand {
 public:
  CompareCommand(Screen& screen, const std::vector<TrainHooks>& hooks)
      : screen_(screen), hooks_(hooks) {}
  ~CompareCommand() {
    screen_.LogTo([](std::string_view) {});
  }
  CompareCommand(const CompareCommand&) = delete;
  CompareCommand& operator=(const CompareCommand&) = delete;

  // `command` is the command line that `line` was read from.
  int Run(const CommandLine& line, std::string command) {
    comparison_.command = std::move(command);
    absl::StatusOr<std::vector<Combination>> combinations = ResolveCombinations(line, machine_);
    if (!combinations.ok()) return Refuse(combinations.status());
    combinations_ = *std::move(combinations);
    hooks_.resize(std::max(hooks_.size(), combinations_.size()));
    if (!settings().out.empty()) {
      if (absl::Status status = RunFolder::Check(settings().out); !status.ok())
        return Refuse(status);
    }
    if (!settings().data.empty()) {
      absl::StatusOr<RunData> data = OpenData(settings(), screen_);
      if (!data.ok()) return Refuse(data.status());
      data_ = *std::move(data);
    }
    if (absl::Status status = PlanAll(); !status.ok()) return Refuse(status);
    if (settings().dry_run) return DryRun();
    if (AllTooLarge()) return RefuseToFit();
    return Compare();
  }

 private:
  // Of the first run; the others differ in stage, offload and checkpointing alone.
  const TrainSettings& settings() const { return combinations_.front().resolved.settings; }

  int Refuse(const absl::Status& status) {
    screen_.Say(std::string(status.message()));
    return kRefused;
  }

  absl::Status PlanAll() {
    for (size_t i = 0; i < combinations_.size(); ++i) {
      TrainingRun& run = training_.emplace_back(screen_, hooks_[i]);
      if (absl::Status status = run.Plan(combinations_[i].resolved); !status.ok()) return status;
      ComparedRun& compared = comparison_.runs.emplace_back();
      compared.combination = &combinations_[i];
      compared.plan = &run.plan();
      compared.largest_model = FindLargestModel(run.settings());
      absl::Status fits = CheckFit(run.settings(), run.plan(), machine_);
      if (fits.ok()) continue;
      if (!absl::IsResourceExhausted(fits)) return fits;
      compared.end = RunEnd::kDoesNotFit;
      compared.failure = std::string(fits.message());
    }
    return absl::OkStatus();
  }

  bool AllTooLarge() const {
    return std::all_of(comparison_.runs.begin(), comparison_.runs.end(),
                       [](const auto& run) { return run.end == RunEnd::kDoesNotFit; });
  }

  int RefuseToFit() {
    screen_.Print(CompareTable(comparison_, screen_.style()));
    screen_.Say(absl::StrCat("none of the runs fits; ", comparison_.runs.front().combination->name,
                             ": ", comparison_.runs.front().failure, "\n",
                             WhatWouldFit(combinations_.front().resolved, machine_)));
    return kRefused;
  }

  int DryRun() {
    if (AllTooLarge()) return RefuseToFit();
    screen_.Print(CompareTable(comparison_, screen_.style()));
    screen_.Print("\nA dry run: nothing was trained, nothing was written.\n");
    return screen_.out_ok() ? kDone : kRefused;
  }

  absl::Status MakeFolder() {
    int64_t room = 0;
    for (const ComparedRun& run : comparison_.runs) {
      if (run.end != RunEnd::kDoesNotFit) room += RunFolder::RoomFor(*run.plan);
    }
    if (absl::Status status = RunFolder::CheckRoom(settings().out, room); !status.ok()) {
      return status;
    }
    absl::StatusOr<std::unique_ptr<RunFolder>> folder =
        RunFolder::CreateForRuns(settings().out, CompareName(settings()), std::time(nullptr));
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    comparison_.folder = folder_->path();
    // Everything, and in the folder of each run what was shown meanwhile.
    screen_.LogTo([this](std::string_view text) {
      folder_->Log(text);
      if (running_ != nullptr) running_->Log(text);
    });
    return absl::OkStatus();
  }

  int Compare() {
    references_ = CountModelLosses(settings(), *data_.dataset);
    // Until here a signal ends the program as usual; from here on it ends the runs in order.
    CatchStopSignals();
    if (absl::Status status = MakeFolder(); !status.ok()) return Refuse(status);
    int code = kDone;
    for (size_t i = 0; i < training_.size() && code == kDone; ++i) {
      if (comparison_.runs[i].end == RunEnd::kDoesNotFit) continue;
      code = StopSignal() != 0 ? kStoppedBySignal + StopSignal() : TrainOne(i);
    }
    ShowAndWrite();
    // While it wrote what follows the last run.
    if (code == kDone && StopSignal() != 0) code = kStoppedBySignal + StopSignal();
    if (code > kStoppedBySignal) {
      screen_.Say(absl::StrCat("stopped by ", std::string(SignalName(code - kStoppedBySignal)),
                               "; what was done is written"));
    }
    absl::Status status = folder_->status();
    for (TrainingRun& run : training_) {
      if (status.ok() && run.folder() != nullptr) status = run.folder()->status();
    }
    if (!status.ok()) {
      screen_.Say(std::string(status.message()));
      if (code == kDone) code = kFailed;
    }
    if (!screen_.out_ok()) {
      screen_.Say(absl::StrCat("what stdout did not take is in ", comparison_.folder, "/log.txt"));
      if (code == kDone) code = kFailed;
    }
    return code;
  }

  int TrainOne(size_t i) {
    TrainingRun& run = training_[i];
    ComparedRun& compared = comparison_.runs[i];
    const std::string& name = compared.combination->name;
    const absl::Status made = run.MakeFolder(data_, absl::StrCat(comparison_.folder, "/", name));
    if (!made.ok()) {
      return Fail(compared, made, std::string(made.message()));
    }
    running_ = run.folder();
    screen_.Print(TableTitle(absl::StrCat("Run ", i + 1, " of ", training_.size(), ": ", name),
                             screen_.style()));
    screen_.Print(run.HeaderText(data_) + "\n");
    results_.push_back(run.Train(data_, [&](const RunResult& failed) {
      Fail(compared, failed.status, FailureText(failed));
      running_ = nullptr;
      ShowAndWrite();
    }));
    const RunResult& result = results_.back();
    int code = kDone;
    if (!result.status.ok()) code = Fail(compared, result.status, FailureText(result));
    if (result.steps > 0 && !result.ranks.empty()) {
      compared.result = &result;
      WriteReport(compared, run);
    }
    if (code != kDone) {
      running_ = nullptr;
      return code;
    }
    if (result.stopped_by_signal != 0) {
      compared.end = RunEnd::kStopped;
      code = kStoppedBySignal + result.stopped_by_signal;
    } else {
      compared.end = RunEnd::kDone;
      CompareToReference(compared, i);
    }
    running_ = nullptr;
    return code;
  }

  int Fail(ComparedRun& run, const absl::Status& status, const std::string& message) {
    screen_.Say(absl::StrCat(run.combination->name, ": ", message));
    run.end = RunEnd::kFailed;
    run.failure = std::string(status.message());
    return kFailed;
  }

  // After the run was done.
  void CompareToReference(ComparedRun& run, size_t index) {
    const ComparedRun& reference = *comparison_.reference();
    if (&reference == &run) {
      reference_index_ = index;
      return;
    }
    TrainingRun& with = training_[reference_index_];
    run.equality_promised = EqualityIsPromised(with.settings(), training_[index].settings());
    run.loss_difference = FirstDifferentLoss(*reference.result, *run.result);
    Equality& equality = run.equality.emplace(
        Equality{.reference = reference.combination->name, .losses_equal = !run.loss_difference});
    const auto element =
        FirstDifferentElement(settings().model, with.folder()->path(), running_->path());
    if (element.ok()) {
      equality.parameters_equal = !*element;
      equality.first_difference = *element;
    } else {
      screen_.Say(absl::StrCat("the models of ", reference.combination->name, " and ",
                               run.combination->name,
                               " cannot be compared: ", element.status().message()));
    }
    if (equality.equal() == false && settings().device == "host") {
      FindDifference(reference, run, index);
    }
  }

  // Where runs are promised to be repeated to the bit.
  void FindDifference(const ComparedRun& reference, ComparedRun& run, size_t index) {
    screen_.Say(absl::StrCat(run.combination->name, " differs from ", reference.combination->name,
                             "; looking for where it does"));
    SearchObserver observer([&](const RunResult& failed) {
      screen_.Say(absl::StrCat("not found: ", FailureText(failed)));
      running_ = nullptr;
      ShowAndWrite();
    });
    const TrainSettings& with = training_[reference_index_].settings();
    const auto found =
        FindFirstDifference({with, hooks_[reference_index_], *reference.result},
                            {training_[index].settings(), hooks_[index], *run.result},
                            run.loss_difference, *data_.dataset, StopSignal, observer);
    if (found.ok()) {
      run.equality->first_difference = *found;
    } else {
      screen_.Say(absl::StrCat("not found: ", found.status().message()));
    }
  }

  ReportRun ReportOf(const ComparedRun& run, const TrainingRun& training) const {
    return {.id = run.combination->name,
            .label = run.combination->LongLabel(),
            .command = comparison_.command,
            .created = created_,
            .resolved = &training.resolved(),
            .plan = run.plan,
            .result = run.result,
            .failure = run.failure,
            .references = references_,
            .largest_model = run.largest_model};
  }

  // The page of one run, in its folder.
  void WriteReport(const ComparedRun& run, TrainingRun& training) {
    training.folder()->WriteReport(ReportOf(run, training));
  }

  // Whether both files were written.
  bool WriteReports() {
    std::vector<NamedReport> reports;
    for (size_t i = 0; i < training_.size(); ++i) {
      const ComparedRun& run = comparison_.runs[i];
      if (run.result == nullptr && run.end != RunEnd::kDoesNotFit) continue;
      ReportRun report = ReportOf(run, training_[i]);
      report.equality = run.equality;
      reports.push_back({run.combination->name, MakeReport(report)});
    }
    if (reports.empty()) return false;
    absl::StatusOr<ReportObject> merged = MergeReports(std::move(reports));
    if (!merged.ok()) {
      screen_.Say(absl::StrCat("no report: ", merged.status().message()));
      return false;
    }
    SetMaker(*merged, comparison_.command, created_);
    (*merged)["title"] = absl::StrCat(Plural(std::ssize((*merged)["runs"]), "run", "runs"), " of ",
                                      combinations_.front().resolved.model, ", compared");
    const bool written = folder_->Write("report.json", ReportText(*merged));
    return folder_->Write("report.html", ReportPage(*merged)) && written;
  }

  void ShowAndWrite() {
    const Style style = screen_.style();
    screen_.Print(CompareTable(comparison_, style));
    screen_.Print("\n" + Lines(" ", Verdict(comparison_), 2));
    std::string files;
    if (WriteReports()) {
      files =
          "  report.html          all runs as a page, for a browser\n"
          "  report.json          what the page shows (zerobox report)\n";
    }
    if (folder_->Write("compare.json", CompareText(comparison_))) {
      files += "  compare.json         the table, with every number whole\n";
    }
    if (folder_->Write("memory.png", DrawMemory(FigureOf(comparison_)).Png())) {
      files += "  memory.png           what a device holds, run by run\n";
    }
    screen_.Print(absl::StrCat("\n", style.Bold("Files in " + comparison_.folder), "\n", files,
                               "  log.txt              what you see here\n"));
    for (TrainingRun& run : training_) {
      if (run.folder() == nullptr) continue;
      const std::string folder = run.folder()->path().substr(comparison_.folder.size() + 1) + "/";
      screen_.Print(absl::StrCat("  ", Left(folder, 20), " the files of that run\n"));
    }
  }

  Screen& screen_;
  std::vector<TrainHooks> hooks_;
  const Machine machine_ = ThisMachine();
  const std::time_t created_ = std::time(nullptr);
  std::vector<Combination> combinations_;
  RunData data_;
  // By combination. Results are in the order in which runs were done.
  std::deque<TrainingRun> training_;
  std::deque<RunResult> results_;
  Comparison comparison_;
  size_t reference_index_ = 0;
  std::vector<ReferenceLoss> references_;
  std::unique_ptr<RunFolder> folder_;
  RunFolder* running_ = nullptr;  // that of the run which goes on
};

}  // namespace

int CompareProgram(std::span<const std::string> arguments, const std::vector<TrainHooks>& hooks) {
  Screen screen(OptionsOfThisProcess());
  const absl::StatusOr<CommandLine> line = ParseArguments(kCompareCommand, arguments);
  if (!line.ok()) {
    screen.Say(std::string(line.status().message()));
    return kRefused;
  }
  if (line->help || line->version) {
    screen.Print(line->help ? FlagsHelp(kCompareCommand) : VersionText());
    return screen.out_ok() ? kDone : kRefused;
  }
  std::vector<std::string> command = {"compare"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return CompareCommand(screen, hooks).Run(*line, CommandText(command));
}

}  // namespace zerobox
