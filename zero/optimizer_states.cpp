// SPDX-License-Identifier: Apache-2.0
#include "zero/optimizer_states.h"

#include "ops/ops.h"

namespace zerobox {

OptimizerStates::OptimizerStates(Device& device, int64_t elements,
                                 const OptimizerSettings& settings)
    : device_(device),
      settings_(settings),
      m_(device.Allocate(Region::kPersistent, Category::kOptimizerStates, DType::kFloat32, elements,
                         "AdamW m")),
      v_(device.Allocate(Region::kPersistent, Category::kOptimizerStates, DType::kFloat32, elements,
                         "AdamW v")),
      state_(device.Allocate(Region::kPersistent, Category::kWorkspace, DType::kInt64,
                             sizeof(StepState) / SizeOf(DType::kInt64), "step state")) {
  device.Zero(StreamId::kCompute, m_);
  device.Zero(StreamId::kCompute, v_);
  device.Zero(StreamId::kCompute, state_);
}

void OptimizerStates::Prepare(Buffer sums) { device_.ops().PrepareStep(state_, sums, settings_); }

void OptimizerStates::Update(Buffer parameters, Buffer gradients, int64_t offset, bool decay) {
  device_.ops().AdamW(parameters, {}, gradients, m_.Slice(offset, parameters.elements),
                      v_.Slice(offset, parameters.elements), decay, state_, settings_);
}

}  // namespace zerobox
