// SPDX-License-Identifier: Apache-2.0
#include "trainer/step_trace.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

std::string Describe(const std::vector<TraceOp>& ops, size_t i) {
  if (i >= ops.size()) return "nothing";
  return absl::StrCat(std::string(Name(ops[i].kind)), " of unit ", ops[i].unit, " on ",
                      std::string(Name(ops[i].stream)));
}

absl::Status CheckSame(std::span<const RankTrace> ranks) {
  const RankTrace& first = ranks[0];
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const RankTrace& other = ranks[rank];
    if (other.step != first.step) {
      return absl::InternalError(absl::StrCat("device ", rank, " recorded step ", other.step,
                                              ", device 0 step ", first.step));
    }
    const auto [a, b] =
        std::mismatch(first.ops.begin(), first.ops.end(), other.ops.begin(), other.ops.end());
    if (a == first.ops.end() && b == other.ops.end()) continue;
    const auto op = static_cast<size_t>(a - first.ops.begin());
    return absl::InternalError(absl::StrCat("op ", op, " of step ", first.step, ": device ", rank,
                                            " did ", Describe(other.ops, op), ", device 0 ",
                                            Describe(first.ops, op)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
      return "forward";
    case OpKind::kRecompute:
      return "recompute";
    case OpKind::kBackward:
      return "backward";
    case OpKind::kNorm:
      return "norm";
    case OpKind::kUpdate:
      return "update";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kCopy:
      return "copy";
  }
  return "";
}

std::string_view Name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward:
      return "forward";
    case StepPhase::kBackward:
      return "backward";
    case StepPhase::kStep:
      return "step";
  }
  return "";
}

std::string_view Name(OpPurpose purpose) {
  switch (purpose) {
    case OpPurpose::kNone:
      return "";
    case OpPurpose::kParameters:
      return "parameters";
    case OpPurpose::kGradients:
      return "gradients";
    case OpPurpose::kScalars:
      return "scalars";
    case OpPurpose::kBatch:
      return "batch";
    case OpPurpose::kResults:
      return "results";
    case OpPurpose::kCheckpoint:
      return "checkpoint";
    case OpPurpose::kSquares:
      return "squares";
    case OpPurpose::kState:
      return "state";
  }
  return "";
}

std::string_view Name(Extent extent) {
  switch (extent) {
    case Extent::kNone:
      return "";
    case Extent::kShard:
      return "shard";
    case Extent::kFull:
      return "full";
  }
  return "";
}

absl::StatusOr<StepTrace> MergeTraces(std::vector<RankTrace> ranks) {
  assert(!ranks.empty());
  if (absl::Status status = CheckSame(ranks); !status.ok()) return status;
  StepTrace merged;
  merged.step = ranks[0].step;
  merged.ops = std::move(ranks[0].ops);
  int64_t begin = ranks[0].begin_ns;
  int64_t end = begin;
  for (const RankTrace& rank : ranks) {
    begin = std::min(begin, rank.begin_ns);
    end = std::max(end, rank.end_ns);
  }
  merged.duration_ns = end - begin;
  // A batch may be on its way before its step begins.
  const auto since = [begin](int64_t ns) { return std::max<int64_t>(0, ns - begin); };
  for (RankTrace& rank : ranks) {
    StepTrace::Rank& to = merged.ranks.emplace_back();
    to.spans = std::move(rank.spans);
    for (TraceSpan& span : to.spans) {
      span.begin_ns = since(span.begin_ns);
      span.end_ns = since(span.end_ns);
    }
    to.regions = std::move(rank.regions);
    for (TraceRegion& region : to.regions) {
      for (int64_t* ns : {&region.begin_ns, &region.end_ns}) {
        if (*ns >= 0) *ns = since(*ns);
      }
    }
  }
  return merged;
}

TracePeak PeakOf(std::span<const TraceRegion> regions) {
  std::map<int64_t, PerCategory<int64_t>> changes;  // of living bytes, by time
  for (const TraceRegion& region : regions) {
    const auto category = static_cast<size_t>(region.category);
    changes[std::max<int64_t>(0, region.begin_ns)][category] += region.bytes;
    if (region.end_ns >= 0) changes[region.end_ns][category] -= region.bytes;
  }
  TracePeak peak;
  PerCategory<int64_t> now{};
  int64_t total = 0;
  for (const auto& [ns, change] : changes) {
    for (size_t category = 0; category < now.size(); ++category) {
      now[category] += change[category];
      total += change[category];
    }
    if (total > peak.bytes) peak = {total, ns, now};
  }
  return peak;
}

}  // namespace zerobox
