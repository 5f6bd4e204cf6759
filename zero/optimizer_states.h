// SPDX-License-Identifier: Apache-2.0
//
// OptimizerStates: AdamW's m and v for the elements that one rank updates, and the update itself.
// The ZeRO stages do not know where they live.
#ifndef ZEROBOX_ZERO_OPTIMIZER_STATES_H_
#define ZEROBOX_ZERO_OPTIMIZER_STATES_H_

#include <cstdint>

#include "ops/device/device.h"
#include "ops/optimizer.h"

namespace zerobox {

class OptimizerStates {
 public:
  // For `elements` elements: 2 x 4 bytes each, zero at first. The device outlives this.
  OptimizerStates(Device& device, int64_t elements, const OptimizerSettings& settings);

  // Begins a step whose gradient's squares add up to the partial `sums` (fp64): norm, clipping,
  // skipping and the learning rate are decided on the device (ops/optimizer.h).
  void Prepare(Buffer sums);
  // Updates parameters whose m and v stand at [offset, offset + parameters.elements).
  void Update(Buffer parameters, Buffer gradients, int64_t offset, bool decay);

  // A StepState, in device memory: that of the latest Prepare.
  Buffer step_state() const { return state_; }

 private:
  Device& device_;
  OptimizerSettings settings_;
  Buffer m_;
  Buffer v_;
  Buffer state_;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_OPTIMIZER_STATES_H_
