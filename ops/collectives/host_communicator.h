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
// For tests: called in the communication stream before the call begins; non-OK fails the device.
using CallHook = std::function<absl::Status(const CallInfo&)>;

// What the ranks of one group share: where they meet. Outlives its communicators.
class HostGroup {
 public:
  HostGroup(int size, Abort& abort);
  ~HostGroup();
  // `device` outlives the communicator. Each rank once.
  std::unique_ptr<Communicator> Join(int rank, HostDevice& device);
  void set_call_hook(CallHook hook);  // before Join

 private:
  class Member;
  struct Meeting;
  std::unique_ptr<Meeting> meeting_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_
