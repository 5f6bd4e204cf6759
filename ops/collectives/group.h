// SPDX-License-Identifier: Apache-2.0
//
// Group: the ranks that make the same collective calls, and where they meet. One per run and group.
#ifndef ZEROBOX_OPS_COLLECTIVES_GROUP_H_
#define ZEROBOX_OPS_COLLECTIVES_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ops/collectives/communicator.h"
#include "ops/device/device.h"

namespace zerobox {

// What one rank knows of a call when it starts it.
struct CallInfo {
  int rank;
  int64_t number;  // calls of this group, from 0
  Collective collective;
  CallLabel label;
};
// "all-gather number 17 (parameters, unit 3)"
std::string Describe(const CallInfo& call);

// For tests: called before each call, where it begins (host devices: in the communication stream;
// GPUs: where the worker enqueues it). Non-OK fails the device, with a message that names the call.
using CallHook = std::function<absl::Status(const CallInfo&)>;
// OK, or the hook's answer with the call's name before it.
absl::Status Ask(const CallHook& hook, const CallInfo& call);

class Group {
 public:
  virtual ~Group() = default;
  // Each rank once, on the thread of `device`'s worker, which alone uses the communicator, and not
  // after the device is gone. It may wait for the other ranks to join. What fails is the device's
  // failure; the communicator then does nothing.
  virtual std::unique_ptr<Communicator> Join(int rank, Device& device) = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_GROUP_H_
