// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/plan_communicator.h"

#include <cassert>
#include <cstddef>

namespace zerobox {

// An all-reduce is a reduce-scatter and an all-gather of parts [r S / N, (r + 1) S / N), rounded
// down: this rank sends every part but its own to its owner, then its own part to all others.
void PlanCommunicator::AllReduceSum(Buffer whole, CallLabel label) {
  const int64_t part = (rank_ + 1) * whole.elements / size_ - rank_ * whole.elements / size_;
  const int64_t sent = (whole.elements - part) + (size_ - 1) * part;
  Count(Collective::kAllReduce, sent * SizeOf(whole.dtype), label);
}

void PlanCommunicator::ReduceScatterSum(Buffer whole, CallLabel label) {
  assert(whole.elements % size_ == 0);
  Count(Collective::kReduceScatter, (size_ - 1) * (whole.bytes() / size_), label);
}

void PlanCommunicator::AllGather(Buffer whole, CallLabel label) {
  assert(whole.elements % size_ == 0);
  Count(Collective::kAllGather, (size_ - 1) * (whole.bytes() / size_), label);
}

void PlanCommunicator::Broadcast(Buffer buffer, int root, CallLabel label) {
  Count(Collective::kBroadcast, rank_ == root ? (size_ - 1) * buffer.bytes() : 0, label);
}

void PlanCommunicator::Count(Collective collective, int64_t bytes_sent, CallLabel label) {
  if (size_ == 1) return;
  CollectiveCount& count = label.purpose == Purpose::kScalars
                               ? traffic_.scalars
                               : traffic_.collectives[static_cast<size_t>(collective)];
  ++count.calls;
  count.bytes_sent += bytes_sent;
}

}  // namespace zerobox
