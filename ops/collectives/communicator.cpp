// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/communicator.h"

#include <cstddef>

namespace zerobox {
namespace {

CollectiveCount Difference(const CollectiveCount& a, const CollectiveCount& b) {
  return {a.calls - b.calls, a.bytes_sent - b.bytes_sent};
}

}  // namespace

std::string_view Name(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kBroadcast:
      return "broadcast";
  }
  return "";
}

std::string_view Name(Purpose purpose) {
  switch (purpose) {
    case Purpose::kParameters:
      return "parameters";
    case Purpose::kGradients:
      return "gradients";
    case Purpose::kScalars:
      return "scalars";
  }
  return "";
}

Traffic operator-(const Traffic& a, const Traffic& b) {
  Traffic difference;
  for (size_t c = 0; c < kCollectives; ++c) {
    difference.collectives[c] = Difference(a.collectives[c], b.collectives[c]);
  }
  difference.scalars = Difference(a.scalars, b.scalars);
  return difference;
}

// An all-reduce is a reduce-scatter and an all-gather: every part but the own goes to its owner,
// then the own part to all others.
int64_t BytesSent(Collective collective, const Buffer& buffer, int rank, int size, int root) {
  const int64_t elements = buffer.elements, others = size - 1;
  const int64_t part = (rank + 1) * elements / size - rank * elements / size;
  switch (collective) {
    case Collective::kAllGather:
      return others * part * SizeOf(buffer.dtype);
    case Collective::kReduceScatter:
      return (elements - part) * SizeOf(buffer.dtype);
    case Collective::kAllReduce:
      return (elements - part + others * part) * SizeOf(buffer.dtype);
    case Collective::kBroadcast:
      return rank == root ? others * buffer.bytes() : 0;
  }
  return 0;
}

void Count(Traffic& traffic, Collective collective, CallLabel label, int64_t bytes_sent) {
  CollectiveCount& count = label.purpose == Purpose::kScalars
                               ? traffic.scalars
                               : traffic.collectives[static_cast<size_t>(collective)];
  ++count.calls;
  count.bytes_sent += bytes_sent;
}

}  // namespace zerobox
