// SPDX-License-Identifier: Apache-2.0
//
// PlanCommunicator: moves nothing and counts what a rank would send.
#ifndef ZEROBOX_OPS_COLLECTIVES_PLAN_COMMUNICATOR_H_
#define ZEROBOX_OPS_COLLECTIVES_PLAN_COMMUNICATOR_H_

#include "ops/collectives/communicator.h"

namespace zerobox {

class PlanCommunicator final : public Communicator {
 public:
  PlanCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Traffic traffic() const override { return traffic_; }

 private:
  void Call(Collective collective, Buffer buffer, int root, CallLabel label) override;
  int rank_;
  int size_;
  Traffic traffic_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_PLAN_COMMUNICATOR_H_
