// SPDX-License-Identifier: Apache-2.0
//
// PostedCall: what a rank posts where the ranks of a group meet on the host.
#ifndef ZEROBOX_OPS_COLLECTIVES_POSTED_CALL_H_
#define ZEROBOX_OPS_COLLECTIVES_POSTED_CALL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "ops/collectives/group.h"

namespace zerobox {

struct PostedCall {
  int64_t number = 0;  // calls of this group, from 0
  Collective collective = Collective::kAllGather;
  Buffer buffer;
  int root = 0;
  CallLabel label{};
};
CallInfo InfoOf(int rank, const PostedCall& call);

// OK when all make the same call, each with memory of its own. calls[r] is that of rank r.
absl::Status CheckSameCall(std::span<const PostedCall> calls);

// Part `rank` of `size` of a buffer, which is this rank's: see BytesSent.
Buffer PartOf(const Buffer& whole, int rank, int size);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_POSTED_CALL_H_
