// SPDX-License-Identifier: Apache-2.0
//
// Worker: the thread of one device, from set-up to the saved model.
#ifndef ZEROBOX_TRAINER_WORKER_H_
#define ZEROBOX_TRAINER_WORKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ops/collectives/group.h"
#include "ops/device/abort.h"
#include "ops/device/host_device.h"
#include "trainer/board.h"
#include "trainer/replica.h"
#include "trainer/tracer.h"
#include "trainer/train.h"
#include "trainer/watch.h"
#include "zero/layout.h"

namespace zerobox {

// What the workers of a run share. `layout` and the rest outlive them.
struct RunContext {
  const TrainSettings& settings;
  const RunPlan& plan;
  const Dataset& dataset;
  const TrainHooks& hooks;
  const Layout& layout;
  const std::vector<int64_t>& eval_sequences;
  Abort& abort;
  Group& group;
  Board& board;
  StopPoint& stop;
  Barrier& barrier;
};

// Lives until the threads of all workers have ended: others may still read this device's memory.
class Worker {
 public:
  Worker(const RunContext& run, int rank);
  ~Worker();

  // The whole run, on the worker's own thread. An error, also one thrown by the standard library,
  // ends the run of all workers. Returns with the device's streams stopped.
  void Run();

  // At any time, from any thread.
  const RankStatus& status() const { return status_; }

  // After Run.
  const RankResult& result() const { return result_; }
  // Of the step that settings.trace_step says, if it was done; or why there is none.
  std::optional<RankTrace> TakeTrace() { return std::exchange(trace_, std::nullopt); }
  const std::string& trace_error() const { return trace_error_; }
  // What it was doing, or waiting for, when it ended.
  const std::string& where() const { return where_; }

 private:
  absl::Status SetUp();
  absl::Status MakeDevice();
  absl::Status TrainAndSave();
  absl::Status TrainStep(int64_t step);
  absl::Status PostSteps(int64_t last);  // waits for all that are not posted, up to `last`
  absl::Status Evaluate(int64_t step);
  absl::Status WaitForTheOthers();
  absl::Status KeepTrace();
  absl::Status Save();
  void Finish();
  int64_t Position(int64_t step, int64_t micro_batch) const;
  int64_t Targets(int64_t step) const;

  const RunContext run_;
  const TrainSettings& settings_;
  const int rank_;
  RankResult result_;
  std::optional<RankTrace> trace_;
  std::string trace_error_;
  std::string where_ = "not started";
  RankStatus status_;
  std::unique_ptr<Tracer> tracer_;  // null: nothing is recorded
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> disturbed_;  // by a test
  std::unique_ptr<Communicator> traced_;
  std::unique_ptr<Replica> replica_;
  int64_t posted_ = 0;     // the latest step of which the board knows
  int64_t evaluated_ = 0;  // the latest step behind which there was an evaluation
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_WORKER_H_
