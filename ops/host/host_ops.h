// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the host device: Highway for vector code, OpenBLAS behind ops/host/matmul.h.
#ifndef ZEROBOX_OPS_HOST_HOST_OPS_H_
#define ZEROBOX_OPS_HOST_HOST_OPS_H_

#include <memory>

#include "ops/device/device.h"
#include "ops/ops.h"

namespace zerobox {

class HostDevice;
class ThreadTeam;

// Kernels that run in their turn on `stream` of `device`, over the threads of `team`, which serves
// no other stream. Device and team outlive them.
std::unique_ptr<Ops> MakeHostOps(HostDevice& device, StreamId stream, ThreadTeam& team);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_HOST_OPS_H_
