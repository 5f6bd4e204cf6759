// SPDX-License-Identifier: Apache-2.0
//
// One run of a command that trains: from its resolved flags to the files in its folder. A command
// opens the data, plans, checks what is to be checked, and only then makes the folder and trains.
#ifndef ZEROBOX_TRAINER_TRAINING_RUN_H_
#define ZEROBOX_TRAINER_TRAINING_RUN_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "trainer/report.h"
#include "trainer/resolve.h"
#include "trainer/results.h"
#include "trainer/run_folder.h"
#include "trainer/screen.h"
#include "trainer/tables.h"
#include "trainer/train.h"

namespace zerobox {

// What is trained on; runs may share it. Without a dataset in a dry run that was given none.
struct RunData {
  std::unique_ptr<Dataset> dataset;
  DataFacts facts;
};
// Refuses data that is shorter than one global batch. Shows progress where reading takes long.
absl::StatusOr<RunData> OpenData(const TrainSettings& settings, Screen& screen);

class TrainingRun {
 public:
  // `hooks` are for tests. Screen and hooks outlive the run.
  TrainingRun(Screen& screen, const TrainHooks& hooks) : screen_(screen), hooks_(hooks) {}

  absl::Status Plan(ResolvedTrain resolved);
  const ResolvedTrain& resolved() const { return resolved_; }
  const TrainSettings& settings() const { return resolved_.settings; }
  const RunPlan& plan() const { return plan_; }

  std::string HeaderText(const RunData& data) const;

  // Makes `out`, or where that is empty a folder in runs/, and writes config.json.
  absl::Status MakeFolder(const RunData& data, const std::string& out);
  RunFolder* folder() { return folder_.get(); }  // null before MakeFolder

  // Trains and shows progress; writes the metrics while it does, memory and communication at the
  // end. Where workers do not come back `on_given_up` is called, which says so, and the process
  // ends with kFailed.
  RunResult Train(const RunData& data, std::function<void(const RunResult&)> on_given_up);

 private:
  Screen& screen_;
  const TrainHooks& hooks_;
  ResolvedTrain resolved_;
  RunPlan plan_;
  std::unique_ptr<RunFolder> folder_;
};

// The losses of models that only count, on the same sequences; none where nothing is evaluated.
std::vector<ReferenceLoss> CountModelLosses(const TrainSettings& settings, const Dataset& dataset);

// "a worker failed after step 3: ..", and where each device was.
std::string FailureText(const RunResult& result);
// "Ctrl-C", "SIGTERM" or "SIGHUP".
std::string_view SignalName(int signal);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TRAINING_RUN_H_
