// SPDX-License-Identifier: Apache-2.0
//
// OptimizerStates: what a rank keeps of the parameters it owns for the optimizer alone (their
// reduced gradient, AdamW's m and v, and fp32 master weights in mixed precision) and the update
// itself. Here on the device; zero/offloaded_states.h is the difference to this one.
//
// A ZeRO stage hands over each bucket's reduced gradient, and in its Step
//
//   states.SumSquares(sums);        the stage all-reduces sums
//   states.Prepare(sums);           norm, clipping, skipping, learning rate
//   for each bucket:  states.Update(bucket, parameters);
//   states.Finish();
//
// and never asks where all this lives.
#ifndef ZEROBOX_ZERO_OPTIMIZER_STATES_H_
#define ZEROBOX_ZERO_OPTIMIZER_STATES_H_

#include <cstdint>
#include <vector>

#include "ops/device/device.h"
#include "ops/optimizer.h"
#include "zero/layout.h"
#include "zero/state_types.h"

namespace zerobox {

// The owned part of a bucket's gradient, on the device: its sum over ranks is there once `reduced`
// has happened.
struct ReducedGradient {
  Buffer part;
  const Event& reduced;
  bool add = false;  // to what other micro-batches of the step have brought; else it replaces that
};

// Used by one worker thread. Device and layout outlive it. All work is enqueued.
class OptimizerStates {
 public:
  OptimizerStates(Device& device, const Layout& layout, OwnedShards owned, StateTypes types,
                  const OptimizerSettings& settings);
  virtual ~OptimizerStates() = default;
  // Takes memory, zero at first: m, v, master weights. (The step state, which is always on the
  // device, is there from the beginning.)
  virtual void Allocate();
  // The memory of a gradient shard, for stages that keep no gradient themselves.
  virtual void AllocateGradients();

  // ---- gradients ----
  // A stage that keeps whole gradients: this one stays as it is until Update, and is zero after
  // Finish.
  virtual void Keep(const Bucket& bucket, const ReducedGradient& gradient);
  // A stage with transient gradients calls both, with the same gradient. Offer: its reduction is
  // enqueued, and once `reduced` has happened it may be fetched. Take: the last chance; what
  // compute does after this call may overwrite it.
  virtual void Offer(const Bucket&, const ReducedGradient&) {}
  virtual void Take(const Bucket& bucket, const ReducedGradient& gradient);

  // ---- the step ----
  // sums (fp64, one for each shard) = the squares of the owned gradient by shard, in bucket order,
  // padding left out; whoever computes a shard's sum computes the same bits. 0 for other shards.
  virtual void SumSquares(Buffer sums);
  // Begins the update for a gradient whose squares add up to `sums`: ops/optimizer.h.
  virtual void Prepare(Buffer sums);
  // Updates the owned part of a bucket, of which `parameters` holds at least that.
  virtual void Update(const Bucket& bucket, const Held& parameters);
  // Compute sees the updated parameters from here on.
  virtual void Finish() {}

  // ---- what is kept, for setting it up; work on it is enqueued with ops() ----
  virtual Ops& ops();
  // fp32 master weights of a bucket's owned part; an empty range where the parameters themselves
  // are these.
  Held Master(const Bucket& bucket) const { return OwnedPart(master_, bucket); }
  // A StepState, in device memory: that of the latest Prepare.
  Buffer step_state() const { return state_; }

 protected:
  Range OwnedRange(const Bucket& bucket) const;
  // A bucket's part of an array of all owned parts.
  Held OwnedPart(const Buffer& all, const Bucket& bucket) const;
  void KeepGradientsIn(Buffer shard);
  // Adds to the sums, in memory that `ops` reaches.
  void AddSquares(Ops& ops, Buffer sums) const;
  // AdamW over the owned part of a bucket, parameter by parameter, in memory that `ops` reaches.
  // `master` is empty where the parameters themselves are fp32.
  void UpdateOwned(Ops& ops, const Bucket& bucket, const Held& parameters, const Held& master,
                   Buffer state) const;

  Device& device_;
  const Layout& layout_;
  const OwnedShards owned_;
  const StateTypes types_;
  const OptimizerSettings settings_;
  std::vector<Held> gradients_;  // by bucket: the owned part, where SumSquares and Update find it
  Buffer master_, m_, v_;
  Buffer state_;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_OPTIMIZER_STATES_H_
