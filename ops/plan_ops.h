// SPDX-License-Identifier: Apache-2.0
//
// The ops of a planning device: every call does nothing, so that a step program can be walked
// without memory behind its buffers.
#ifndef ZEROBOX_OPS_PLAN_OPS_H_
#define ZEROBOX_OPS_PLAN_OPS_H_

#include <memory>

#include "ops/ops.h"

namespace zerobox {

std::unique_ptr<Ops> MakePlanOps();

}  // namespace zerobox

#endif  // ZEROBOX_OPS_PLAN_OPS_H_
