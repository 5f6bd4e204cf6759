// SPDX-License-Identifier: Apache-2.0
//
// Training on the devices of one machine, from one process: plan first, then run.
#ifndef ZEROBOX_TRAINER_TRAIN_H_
#define ZEROBOX_TRAINER_TRAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "ops/collectives/group.h"
#include "ops/device/abort.h"
#include "ops/device/recorder.h"
#include "trainer/results.h"
#include "trainer/settings.h"
#include "trainer/watch.h"

namespace zerobox {

// Told of every step and evaluation while a run goes on: in step order, one call at a time, from
// the workers' threads.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void OnStep(const StepMetrics& metrics) = 0;
  virtual void OnEval(const EvalMetrics& metrics) = 0;
  // On the thread that called Train, once, when the run has failed and some workers do not come
  // back: what is known of it, and `where` they are. The run can no longer be ended in order; if
  // this returns, Train goes on waiting for them.
  virtual void OnGivenUp(const RunResult& /*result*/) {}
};

// For tests: ways to disturb a run, or to watch it.
struct TrainHooks {
  CallHook call;  // before each collective call of each rank
  // On each worker's thread: what its replica uses instead of its communicator, which stays.
  std::function<std::unique_ptr<Communicator>(Communicator& communicator)> communicator;
  // Multiplies the scale of the loss of one rank's step; NaN makes its gradient non-finite.
  std::function<double(int rank, int64_t step)> loss_scale;
  // On each worker's thread once its device is set up; memory beyond the plan, `extra_bytes` of it,
  // is there for what this allocates.
  std::function<void(int rank, Device& device)> after_setup;
  int64_t extra_bytes = 0;
  bool poison = false;            // see MemoryPool::PoisonFreshMemory
  bool threaded_compute = false;  // see HostDeviceOptions
  std::string drop_wait;          // see HostDeviceOptions
  Recorder* recorder = nullptr;
  WatchHooks watch;
  // Fills a parameter's initial values, instead of the model's own; on the threads of all ranks.
  std::function<void(const std::string& name, float* values, int64_t elements)> initial_parameter;
  // The trained parameters, one at a time, on the thread of rank 0; as floats, whatever their type.
  std::function<void(const std::string& name, const float* values, int64_t elements)> parameter;
};

// Walks a rank's real step program against a planning device: memory, traffic. Shards are of equal
// size, so every rank has the same plan. Allocates nothing, whatever the model's size.
// InvalidArgument when the settings make no layout.
absl::StatusOr<RunPlan> PlanRun(const TrainSettings& settings);

// Trains, evaluates, and writes settings.out/model.safetensors (if `out` is not empty). `plan` is
// that of the same settings. `stop_signal` is asked before each step; not 0: the run ends there, in
// order. An error in one worker stops all, and so does a worker that is silent for longer than
// settings.collective_timeout_seconds.
RunResult Train(const TrainSettings& settings, const RunPlan& plan, const Dataset& dataset,
                RunObserver* observer, const std::function<int()>& stop_signal,
                const TrainHooks& hooks = {});

// Which held-out sequences an evaluation looks at: eval_batches global batches, or all there are,
// spread evenly.
std::vector<int64_t> EvaluationSequences(const TrainSettings& settings, const Dataset& dataset);

// Loads run/model.safetensors onto one host device and continues the prompt; `write` receives the
// text piece by piece, the prompt first, until it returns false. Bytes are written as they are;
// tokens of a vocabulary beyond 256 as numbers, separated by spaces, and so a prompt gives them.
absl::Status Sample(const SampleSettings& settings,
                    const std::function<bool(std::string_view)>& write);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TRAIN_H_
