// SPDX-License-Identifier: Apache-2.0
//
// A run: plan it, train, and let a trained model write.
#ifndef ZEROBOX_TRAINER_TRAIN_H_
#define ZEROBOX_TRAINER_TRAIN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "trainer/results.h"
#include "trainer/settings.h"

namespace zerobox {

// Told about a run while it goes on: in step order, from one thread at a time.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void OnStep(const StepMetrics& metrics) = 0;
  virtual void OnEval(const EvalMetrics& metrics) = 0;
};

// What tests change inside a run.
struct TrainHooks {};

// Walks the step program against planning devices. Allocates nothing of the run.
absl::StatusOr<RunPlan> PlanRun(const TrainSettings& settings);

// Trains as planned, until `steps` are done, `stop_signal` returns the number of a signal (asked
// between steps; 0: go on) or a worker fails. Writes model.safetensors into settings.out and lets
// the model write settings.sample_bytes of text. `observer` may be nullptr.
RunResult Train(const TrainSettings& settings, const RunPlan& plan, const Dataset& dataset,
                RunObserver* observer, const std::function<int()>& stop_signal,
                const TrainHooks& hooks = {});

// The prompt and what the model of a run folder writes after it.
absl::StatusOr<std::string> Sample(const SampleSettings& settings, const ModelConfig& model);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TRAIN_H_
