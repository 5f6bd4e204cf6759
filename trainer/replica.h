// SPDX-License-Identifier: Apache-2.0
//
// Replica: one rank's model, ZeRO stage and optimizer on one device, and the training loop's body.
// The same code runs on a real device and, for the plan, on one that only counts.
#ifndef ZEROBOX_TRAINER_REPLICA_H_
#define ZEROBOX_TRAINER_REPLICA_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/collectives/communicator.h"
#include "ops/device/device.h"
#include "trainer/batch_feed.h"
#include "trainer/gpt.h"
#include "trainer/settings.h"
#include "zero/stages.h"

namespace zerobox {

// What the host learns of one step.
struct StepOutcome {
  double loss_sum = 0;  // over this rank's target tokens, nats
  StepState state;
  double exposed_seconds = 0;                    // the device's SecondsExposed in this step
  std::chrono::steady_clock::time_point done{};  // when the device was done with it
};

// Fills a micro-batch; empty when planning.
using FillMicroBatch = std::function<void(int64_t micro_batch, HostBatch& batch)>;
using FillBatch = std::function<void(HostBatch& batch)>;
// Receives a whole parameter in host memory, in the type it is trained in.
using ParameterSink =
    std::function<absl::Status(ParameterId parameter, std::span<const std::byte> bytes)>;
// Fills a whole parameter in host memory.
using ParameterSource = std::function<void(ParameterId parameter, std::span<float> values)>;

// Used by the worker thread of its device. Device, communicator and layout outlive it.
class Replica {
 public:
  Replica(Device& device, Communicator& communicator, const Layout& layout,
          const TrainSettings& settings);

  // Each parameter as InitialValueOf says or, for tests, as `given` fills it.
  void InitializeWeights(const ParameterSource& given = nullptr);
  // Enqueues one step: every micro-batch forward and backward, then the update. The gradient is
  // that of the sum of the losses times `loss_scale`. At most two steps await their Outcome.
  void TrainStep(const FillMicroBatch& fill, float loss_scale);
  // Waits for the first TrainStep whose outcome was not yet asked for.
  absl::StatusOr<StepOutcome> Outcome();
  // The sum of the losses of one batch. No step awaits its Outcome.
  absl::StatusOr<double> EvaluateBatch(const FillBatch& fill);
  // Gathers every parameter in turn, on all ranks together; hands it over where `sink` is set.
  absl::Status ReadParameters(const ParameterSink& sink);

 private:
  void InitializeParts(Ops& ops, const Bucket& bucket, const Held& held,
                       const ParameterSource& given);
  // What is copied to the host, and the copy's event.
  struct Result {
    StepOutcome outcome;
    int64_t first_wait = 0, end_wait = 0;  // the device's communication_waits of the step
    // to_host -> host: it is copied; -> compute: what it was copied from may be overwritten.
    std::unique_ptr<Event> read;
  };
  void StartLossSum();
  // The result after the latest one, which becomes that; to_host may read what compute has left.
  Result& BeginResult();
  Result& Latest() { return results_[results_begun_ % 2]; }
  void RunMicroBatch(MicroBatch where, const Batch& batch, float loss_scale);
  absl::Status ReadUnit(UnitId unit, Buffer w, const ParameterSink& sink);

  Device& device_;
  const Layout& layout_;
  const TrainSettings settings_;
  const StepProgram training_, forward_, reading_;
  Gpt model_;
  std::unique_ptr<Stage0> zero_;
  std::unique_ptr<OptimizerStates> states_;
  BatchFeed feed_;
  Buffer loss_sum_;                       // fp64 (1)
  std::unique_ptr<Event> results_ready_;  // compute -> to_host: loss and step state are final
  // They live as long as the device may copy: a wait for the copy can end before, when the run
  // fails. So does parameter_.
  std::array<Result, 2> results_;
  int64_t results_begun_ = 0, results_waited_for_ = 0;
  std::vector<std::byte> parameter_;
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_REPLICA_H_
