// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the host device: vector code in Highway.
#ifndef ZEROBOX_OPS_HOST_HOST_OPS_H_
#define ZEROBOX_OPS_HOST_HOST_OPS_H_

#include <cstdint>
#include <memory>

#include "ops/ops.h"

namespace zerobox {

class HostDevice;
enum class StreamId : uint8_t;

// Kernels that run on `stream` of `device` (kCompute, or kToHost for the host side), over its
// threads. The device outlives them.
std::unique_ptr<Ops> MakeHostOps(HostDevice& device, StreamId stream);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_HOST_OPS_H_
