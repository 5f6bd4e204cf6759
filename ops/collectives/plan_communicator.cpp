// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/plan_communicator.h"

#include <cassert>

namespace zerobox {

void PlanCommunicator::AllReduceSum(Buffer whole, CallLabel label) {
  Call(Collective::kAllReduce, whole, 0, label);
}

void PlanCommunicator::ReduceScatterSum(Buffer whole, CallLabel label) {
  assert(whole.elements % size_ == 0);
  Call(Collective::kReduceScatter, whole, 0, label);
}

void PlanCommunicator::AllGather(Buffer whole, CallLabel label) {
  assert(whole.elements % size_ == 0);
  Call(Collective::kAllGather, whole, 0, label);
}

void PlanCommunicator::Broadcast(Buffer buffer, int root, CallLabel label) {
  Call(Collective::kBroadcast, buffer, root, label);
}

void PlanCommunicator::Call(Collective collective, const Buffer& buffer, int root,
                            CallLabel label) {
  if (size_ == 1) return;
  Count(traffic_, collective, label, BytesSent(collective, buffer, rank_, size_, root));
}

}  // namespace zerobox
