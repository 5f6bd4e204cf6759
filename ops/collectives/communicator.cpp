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

}  // namespace zerobox
