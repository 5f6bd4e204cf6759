// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/plan_communicator.h"

namespace zerobox {

void PlanCommunicator::Call(Collective collective, Buffer buffer, int root, CallLabel label) {
  Count(traffic_, collective, label, BytesSent(collective, buffer, rank_, size_, root));
}

}  // namespace zerobox
