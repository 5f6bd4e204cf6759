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
//   zero.Step(states)
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

// A stretch of the flat space and the memory that holds it on this rank.
struct Held {
  Range range;
  Buffer buffer;
  Buffer Slice(Range part) const { return buffer.Slice(part.begin - range.begin, part.size()); }
};

// Used by one worker thread. Device, communicator and layout outlive it. All work is enqueued;
// errors are the device's.
class Stage0 {
 public:
  Stage0(Device& device, Communicator& data_parallel, const Layout& layout);
  virtual ~Stage0() = default;

  // Takes the memory that stays for the whole run; parameters alone are enough to read a model.
  virtual void AllocateParameters();
  virtual void AllocateGradients();

  // ---- the loop's verbs ----
  // `program` stays until the next Begin.
  void Begin(const StepProgram& program, MicroBatch micro_batch);
  // The whole parameters of the visit's unit, ready on the compute stream until Release: the flat
  // space from Layout::Unit(unit).begin on. Visits are acquired and released in program order.
  virtual Buffer Acquire(const Visit& visit);
  virtual void Release(const Visit&) {}
  // Where backward adds the gradient of a parameter; zero at its first use in the step (stages 2
  // and 3: in the micro-batch). Of units that backward visits once, at most two parameters are
  // between their Gradient and their Reduce.
  virtual Buffer Gradient(ParameterId parameter);
  // Backward has left this parameter's gradient for the last time in this micro-batch.
  void Reduce(ParameterId parameter);
  // After the last micro-batch: gradient norm, clipping, and the update of what this rank owns.
  void Step(OptimizerStates& states);

  // ---- who keeps what ----
  // Elements whose optimizer states this rank keeps.
  int64_t owned_elements() const;
  // The parameters of a bucket that stay here from step to step.
  virtual Held Parameters(const Bucket& bucket) const;
  // Compute has written all of them: initial weights.
  virtual void ParametersSet() {}

 protected:
  struct Shards {
    int first, count;
  };
  // Whose parts of every bucket this rank updates: all.
  virtual Shards Owned() const { return {0, layout_.shards()}; }
  // The reduced gradient of a bucket, as far as this rank keeps it.
  virtual Held Gradients(const Bucket& bucket) const;
  // All gradients of the bucket are in: all-reduce it, if this is the step's last micro-batch.
  virtual void ReduceBucket(BucketId bucket);
  // All buckets of the micro-batch have been through ReduceBucket.
  virtual void JoinReductions();
  // Step has updated the owned part of the unit.
  virtual void ParametersChanged(UnitId) {}

  // True the first time the bucket's gradient is asked for in this micro-batch.
  bool FirstUse(BucketId bucket);
  // The communication stream may read the bucket's gradient: compute has filled it.
  void HandToCommunication();

  Device& device_;
  Communicator& data_parallel_;
  const Layout& layout_;
  const StepProgram* program_ = nullptr;
  MicroBatch micro_batch_;
  Buffer parameters_;
  Buffer gradients_;

 private:
  Range OwnedRange(const Bucket& bucket) const;
  void SumSquares();
  void UpdateBucket(const Bucket& bucket, OptimizerStates& states);

  std::vector<bool> in_use_;    // by bucket, in this micro-batch
  std::vector<int> remaining_;  // parameters of the bucket that are not reduced yet
  int remaining_buckets_ = 0;
  Buffer sums_;  // fp64 (N): squares of the gradient, by owner
  // compute -> communication: a bucket's gradient is complete; this rank's squares are summed.
  std::unique_ptr<Event> bucket_full_, squares_ready_;
  // communication -> compute: gradients are reduced; everyone's squares are known.
  std::unique_ptr<Event> reduced_, squares_known_;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STAGE0_H_
