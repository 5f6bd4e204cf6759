// SPDX-License-Identifier: Apache-2.0
#include "ops/device/plan_device.h"

#include "ops/plan_ops.h"

namespace zerobox {

PlanDevice::PlanDevice() : ops_(MakePlanOps()) {}
PlanDevice::~PlanDevice() = default;

std::unique_ptr<Event> PlanDevice::MakeEvent(std::string_view name) {
  return std::make_unique<Event>(name);
}

}  // namespace zerobox
