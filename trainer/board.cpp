// SPDX-License-Identifier: Apache-2.0
#include "trainer/board.h"

#include <algorithm>
#include <utility>

namespace zerobox {
namespace {

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

Board::Board(const TrainSettings& settings, const Dataset& dataset, RunObserver* observer)
    : settings_(settings),
      dataset_(dataset),
      observer_(observer),
      eval_losses_(settings.devices),
      eval_targets_(settings.devices) {}

void Board::PostSetUp() {
  const std::lock_guard lock(mutex_);
  step_began_ = std::chrono::steady_clock::now();
}

void Board::PostStep(int rank, int64_t step, const StepOutcome& outcome, int64_t targets) {
  const std::lock_guard lock(mutex_);
  PostsOfStep& posts = open_steps_[step];
  posts.losses.resize(settings_.devices);
  posts.exposed.resize(settings_.devices);
  posts.losses[rank] = outcome.loss_sum;
  posts.exposed[rank] = outcome.exposed_seconds;
  posts.done = std::max(posts.done, outcome.done);
  if (++posts.ranks < settings_.devices) return;
  const int64_t position = step * settings_.global_batch();
  StepMetrics metrics{
      .step = step,
      .loss = Sum(posts.losses) / static_cast<double>(std::max<int64_t>(1, targets)),
      .grad_norm = outcome.state.gradient_norm,
      .clip = outcome.state.clip_scale,
      .lr = outcome.state.learning_rate,
      .tokens = position * settings_.model.seq_len,
      .position = position,
      .epoch = dataset_.Epoch(position - 1),
      .step_seconds = std::chrono::duration<double>(posts.done - step_began_).count(),
      .exposed_seconds = Sum(posts.exposed) / settings_.devices,
      .skipped = outcome.state.skip != 0,
  };
  metrics.tokens_per_second = static_cast<double>(settings_.global_batch()) *
                              static_cast<double>(settings_.model.seq_len) / metrics.step_seconds;
  step_began_ = posts.done;
  open_steps_.erase(step);
  steps_.push_back(metrics);
  if (observer_ != nullptr) observer_->OnStep(metrics);
}

void Board::PostEval(int rank, int64_t step, double loss_sum, int64_t targets) {
  const std::lock_guard lock(mutex_);
  eval_losses_[rank] = loss_sum;
  eval_targets_[rank] = targets;
  if (++evals_posted_ < settings_.devices) return;
  evals_posted_ = 0;
  int64_t all_targets = 0;
  for (const int64_t t : eval_targets_) all_targets += t;
  const EvalMetrics metrics{
      .step = step,
      .val_loss = Sum(eval_losses_) / static_cast<double>(std::max<int64_t>(1, all_targets))};
  evals_.push_back(metrics);
  step_began_ = std::chrono::steady_clock::now();  // the evaluation is no part of the next step
  if (observer_ != nullptr) observer_->OnEval(metrics);
}

void Board::MoveTo(RunResult& result) {
  result.steps = static_cast<int64_t>(steps_.size());
  result.skipped =
      std::count_if(steps_.begin(), steps_.end(), [](const auto& step) { return step.skipped; });
  result.step_metrics = std::move(steps_);
  result.eval_metrics = std::move(evals_);
}

StopPoint::StopPoint(int64_t steps, std::function<int()> stop_signal)
    : stop_signal_(std::move(stop_signal)), last_(steps) {}

bool StopPoint::Continue(int64_t step) {
  const std::lock_guard lock(mutex_);
  if (signal_ == 0 && stop_signal_ && (signal_ = stop_signal_()) != 0) {
    last_ = std::min(last_, started_);  // finish what some rank has begun
  }
  if (step > last_) return false;
  started_ = std::max(started_, step);
  return true;
}

bool Barrier::Arrive() {
  int64_t wanted = 0;
  point_.Notify([&] { wanted = (arrived_++ / ranks_ + 1) * ranks_; });
  return point_.WaitUntil([&] { return arrived_ >= wanted; });
}

}  // namespace zerobox
