// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/posted_call.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "ops/view.h"

namespace zerobox {
namespace {

bool AreTheSame(const PostedCall& a, const PostedCall& b) {
  return a.number == b.number && a.collective == b.collective &&
         a.buffer.elements == b.buffer.elements && a.buffer.dtype == b.buffer.dtype &&
         a.root == b.root && a.label.purpose == b.label.purpose && a.label.unit == b.label.unit;
}

std::string DescribeFully(int rank, const PostedCall& call) {
  const std::string root =
      call.collective == Collective::kBroadcast ? absl::StrCat(" from rank ", call.root) : "";
  return absl::StrCat(Describe(InfoOf(rank, call)), " of ", call.buffer.elements, " ",
                      View(Name(call.buffer.dtype)), " elements", root);
}

}  // namespace

CallInfo InfoOf(int rank, const PostedCall& call) {
  return {rank, call.number, call.collective, call.label};
}

absl::Status CheckSameCall(std::span<const PostedCall> calls) {
  for (size_t r = 1; r < calls.size(); ++r) {
    if (AreTheSame(calls[0], calls[r])) continue;
    return absl::InternalError(absl::StrCat(
        "the ranks of a group do not make the same call: rank 0 is in ", DescribeFully(0, calls[0]),
        ", but rank ", r, " is in ", DescribeFully(static_cast<int>(r), calls[r]),
        ". All ranks must make the same calls in the same order"));
  }
  return absl::OkStatus();
}

Buffer PartOf(const Buffer& whole, int rank, int size) {
  const int64_t begin = rank * whole.elements / size;
  return whole.Slice(begin, (rank + 1) * whole.elements / size - begin);
}

}  // namespace zerobox
