// SPDX-License-Identifier: Apache-2.0
//
// Board: where the workers of a run post what they measured; once all ranks have posted a step, it
// becomes metrics. With StopPoint and Barrier, the only thing they share besides the collectives.
#ifndef ZEROBOX_TRAINER_BOARD_H_
#define ZEROBOX_TRAINER_BOARD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "data/dataset.h"
#include "ops/device/abort.h"
#include "trainer/replica.h"
#include "trainer/results.h"
#include "trainer/train.h"

namespace zerobox {

// Thread-safe. Every rank posts every step and every evaluation, in order.
class Board {
 public:
  Board(const TrainSettings& settings, const Dataset& dataset, RunObserver* observer);
  // A rank is set up. The first step's time begins when the last one is.
  void PostSetUp();
  // `targets`: those of the whole global batch.
  void PostStep(int rank, int64_t step, const StepOutcome& outcome, int64_t targets);
  // This rank's share of an evaluation.
  void PostEval(int rank, int64_t step, double loss_sum, int64_t targets);
  // After the workers have joined.
  void MoveTo(RunResult& result);

 private:
  const TrainSettings& settings_;
  const Dataset& dataset_;
  RunObserver* observer_;
  std::mutex mutex_;
  // Vectors are by rank: sums are taken in rank order.
  struct PostsOfStep {
    std::vector<double> losses, exposed;
    std::chrono::steady_clock::time_point done{};  // by the last device
    int ranks = 0;
  };
  // Those steps that some ranks have posted and others have not: a device that runs ahead of its
  // worker (Device::steps_ahead) may be done with the next step before a slow worker posts this
  // one.
  std::map<int64_t, PostsOfStep> open_steps_;
  std::vector<double> eval_losses_;
  std::vector<int64_t> eval_targets_;
  int evals_posted_ = 0;  // ranks
  // When the step that goes on began.
  std::chrono::steady_clock::time_point step_began_{};
  std::vector<StepMetrics> steps_;
  std::vector<EvalMetrics> evals_;
};

// Decides, for all ranks alike, after which step a run ends that was asked to stop. Thread-safe.
class StopPoint {
 public:
  StopPoint(int64_t steps, std::function<int()> stop_signal);
  // Whether to run `step`, which the calling rank is about to begin.
  bool Continue(int64_t step);
  int signal() const { return signal_; }

 private:
  const std::function<int()> stop_signal_;
  std::mutex mutex_;
  int64_t last_;         // the last step of the run
  int64_t started_ = 0;  // by the rank that is furthest
  int signal_ = 0;
};

// Where the ranks of a run wait for each other: before an evaluation and before the model is saved,
// so that a failure there costs no rank the step that all have done. Thread-safe.
class Barrier {
 public:
  Barrier(int ranks, Abort& abort) : ranks_(ranks), point_(abort) {}
  // Until every rank has called it as often. False when the run has failed before.
  bool Arrive();

 private:
  const int ranks_;
  WaitPoint point_;
  int64_t arrived_ = 0;  // calls of all ranks; guarded by point_
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_BOARD_H_
