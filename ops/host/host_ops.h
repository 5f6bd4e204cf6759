// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the host device: Highway for vector code, OpenBLAS behind ops/host/matmul.h.
#ifndef ZEROBOX_OPS_HOST_HOST_OPS_H_
#define ZEROBOX_OPS_HOST_HOST_OPS_H_

#include <memory>

#include "ops/ops.h"

namespace zerobox {

class HostDevice;

// Kernels that run inline on `device`'s compute stream, over its threads. The device outlives them.
std::unique_ptr<Ops> MakeHostOps(HostDevice& device);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_HOST_OPS_H_
