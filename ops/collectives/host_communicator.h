// SPDX-License-Identifier: Apache-2.0
//
// Collectives between host devices of one process: each rank reduces or copies its own share.
#ifndef ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_
#define ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "ops/collectives/communicator.h"
#include "ops/device/abort.h"
#include "ops/device/host_device.h"

namespace zerobox {

// What one rank knows of a call when it starts it.
struct CallInfo {
  int rank;
  int64_t number;  // calls of this group, from 0
  Collective collective;
  CallLabel label;
};
// For tests: called in the communication stream before the call begins; non-OK fails the device,
// with a message that names the call.
using CallHook = std::function<absl::Status(const CallInfo&)>;

// What the ranks of one group share: where they meet. May be destroyed once all have joined.
class HostGroup {
 public:
  HostGroup(int size, Abort& abort);
  ~HostGroup();
  // Each rank once. The communicator is used by `device`'s worker and not after the device is gone.
  // It may be destroyed with calls enqueued.
  std::unique_ptr<Communicator> Join(int rank, HostDevice& device);
  void set_call_hook(CallHook hook);  // before Join

 private:
  struct Meeting;
  class Party;
  class Member;
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_
