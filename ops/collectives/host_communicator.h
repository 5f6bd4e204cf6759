// SPDX-License-Identifier: Apache-2.0
//
// Collectives between host devices of one process: each rank reduces or copies its own share.
#ifndef ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_
#define ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_

#include <memory>

#include "ops/collectives/group.h"
#include "ops/device/abort.h"
#include "ops/device/host_device.h"

namespace zerobox {

// Of host devices. May be destroyed once all have joined.
class HostGroup final : public Group {
 public:
  HostGroup(int size, Abort& abort);
  ~HostGroup() override;
  // `device` is a HostDevice. The communicator may be destroyed with calls enqueued.
  std::unique_ptr<Communicator> Join(int rank, Device& device) override;
  void set_call_hook(CallHook hook);  // before Join

 private:
  struct Meeting;
  class Party;
  class Member;
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_HOST_COMMUNICATOR_H_
