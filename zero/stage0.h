// SPDX-License-Identifier: Apache-2.0
//
// Stage 0: plain data parallelism. Every rank keeps everything: parameters, gradients and optimizer
// states, 16 bytes a parameter (ZeRO, arXiv:1910.02054, section 3.1). This is also the frame of the
// other stages: training is one loop for all of them,
//
//   for each micro-batch:     zero.Begin(program, micro_batch)
//     for visit in program:
//       w = zero.Acquire(visit)
//       model.Forward(visit, w), or Backward: asks zero.Gradient(p), adds to it, zero.Reduce(p)
//       zero.Release(visit)
//   zero.Step()
//
// and a stage is its answer to these verbs. Each stage's file is the difference to the one before.
#ifndef ZEROBOX_ZERO_STAGE0_H_
#define ZEROBOX_ZERO_STAGE0_H_

#include <memory>
#include <vector>

#include "ops/collectives/communicator.h"
#include "ops/device/device.h"
#include "zero/layout.h"
#include "zero/optimizer_states.h"
#include "zero/step_program.h"

namespace zerobox {

// Used by one worker thread. Device, communicator, layout and states outlive it. All work is
// enqueued; errors are the device's.
class Stage0 {
 public:
  Stage0(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types);
  virtual ~Stage0() = default;

  // Takes the memory that stays for the whole run, all zero; enough to read a model.
  virtual void AllocateParameters();
  // And what training needs. `states` are those of the shards that Owned says, `training` is what
  // every micro-batch of a step will run; both outlive this.
  void PrepareTraining(OptimizerStates& states, const StepProgram& training);

  // ---- the loop's verbs ----
  // `program` stays until the next Begin.
  void Begin(const StepProgram& program, MicroBatch micro_batch);
  // The whole parameters of the visit's unit, ready on the compute stream until Release: the flat
  // space from Layout::Unit(unit).begin on. Visits are acquired and released in program order.
  virtual Buffer Acquire(const Visit& visit);
  virtual void Release(const Visit&) {}
  // Where backward adds the gradient of a parameter; zero when the step begins (stages 2 and 3: the
  // micro-batch). Of units that backward visits once, at most two parameters are between their
  // Gradient and their Reduce.
  virtual Buffer Gradient(ParameterId parameter);
  // Backward has left this parameter's gradient for the last time in this micro-batch.
  void Reduce(ParameterId parameter);
  // After the last micro-batch: gradient norm, clipping, and the update of what this rank owns.
  void Step();

  // ---- who keeps what ----
  // Whose parts of every bucket this rank updates: all.
  virtual OwnedShards Owned() const { return {0, layout_.shards()}; }
  // The parameters of a bucket that stay here from step to step.
  virtual Held Parameters(const Bucket& bucket) const;
  // Compute has written all of them: initial weights.
  virtual void ParametersSet() {}

 protected:
  virtual void AllocateGradients();
  // All gradients of the bucket are in: all-reduce it, if this is the step's last micro-batch.
  virtual void ReduceBucket(const Bucket& bucket);
  // All buckets of the micro-batch have been through ReduceBucket.
  virtual void JoinReductions();
  // Step has updated what this rank owns of them.
  virtual void ParametersChanged() {}

  // The communication stream may read the bucket's gradient: compute has filled it.
  void HandToCommunication();
  // Stages that keep gradients whole.
  Buffer WholeGradient(const Bucket& bucket) const;

  Device& device_;
  Communicator& data_parallel_;
  const Layout& layout_;
  const StateTypes types_;
  OptimizerStates* states_ = nullptr;
  const StepProgram* training_ = nullptr;
  const StepProgram* program_ = nullptr;
  MicroBatch micro_batch_;
  Buffer parameters_;
  Buffer gradients_;
  std::unique_ptr<Event> reduced_;  // communication -> compute, to_host: gradients are reduced

 private:
  void SumSquares();

  std::vector<int> remaining_;  // by bucket: parameters that are not reduced in this micro-batch
  int remaining_buckets_ = 0;
  Buffer sums_;  // fp64 (N): squares of the gradient, by owner
  // compute -> communication: a bucket's gradient is complete; this rank's squares are summed.
  std::unique_ptr<Event> bucket_full_, squares_ready_;
  std::unique_ptr<Event> squares_known_;  // communication -> compute: everyone's are
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STAGE0_H_
