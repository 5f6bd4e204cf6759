// SPDX-License-Identifier: Apache-2.0
//
// The kernels that run on the host: vector code in Highway.
#ifndef ZEROBOX_OPS_HOST_HOST_OPS_H_
#define ZEROBOX_OPS_HOST_HOST_OPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "ops/host/threads.h"
#include "ops/ops.h"

namespace zerobox {

class HostDevice;
enum class StreamId : uint8_t;

// Kernels that run on `stream` of `device` (kCompute, or kToHost for the host side), over its
// threads. The device outlives them.
std::unique_ptr<Ops> MakeHostOps(HostDevice& device, StreamId stream);

// The same for another kind of device: `enqueue` puts work into a stream of it, as
// HostDevice::Enqueue does; `threads` are those that run the kernels, used in the work only.
using EnqueueWork = std::function<void(std::string_view name, std::function<absl::Status()> work)>;
std::unique_ptr<Ops> MakeHostOps(EnqueueWork enqueue, std::unique_ptr<host::Threads> threads);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_HOST_OPS_H_
