// SPDX-License-Identifier: Apache-2.0
//
// StepTrace: one training step as it was: what every rank's streams did and when, and the life of
// every allocation. Recorded by trainer/tracer.h; report.html and trace.json are drawn from it.
#ifndef ZEROBOX_TRAINER_STEP_TRACE_H_
#define ZEROBOX_TRAINER_STEP_TRACE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/device/device.h"
#include "ops/device/memory.h"

namespace zerobox {

// "forward", "all_gather": what an op did.
enum class OpKind : uint8_t {
  kForward,
  kRecompute,  // of what was not kept, before a backward
  kBackward,
  kNorm,    // of the gradient, and what AdamW needs to know of the step
  kUpdate,  // AdamW; on to_host where the optimizer is offloaded
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kCopy,  // to or from the host, as the stream says
};
std::string_view Name(OpKind kind);

enum class StepPhase : uint8_t { kForward, kBackward, kStep };
std::string_view Name(StepPhase phase);

// What was sent or copied.
enum class OpPurpose : uint8_t {
  kNone,
  kParameters,
  kGradients,
  kScalars,     // the gradient norm's, between ranks
  kBatch,       // tokens, up
  kResults,     // loss and norm, down
  kCheckpoint,  // activations, down in forward and up in backward
  kSquares,     // of an offloaded optimizer's gradients, up
  kState,       // what an offloaded AdamW needs to know of the step, down
};
std::string_view Name(OpPurpose purpose);

// The same on every rank.
struct TraceOp {
  OpKind kind = OpKind::kForward;
  StreamId stream = StreamId::kCompute;
  StepPhase phase = StepPhase::kForward;  // a prefetch's is that of the visit that it is for
  std::string layer;                      // the visit's: "lookup", "block 3", "head"; or ""
  int unit = -1;                          // -1: none
  int64_t elements = 0;                   // of a collective's buffer
  int64_t bytes = 0;                      // that one rank sent, or copied
  OpPurpose purpose = OpPurpose::kNone;
  int64_t micro_batch = -1;  // -1 in the phase kStep
  friend bool operator==(const TraceOp&, const TraceOp&) = default;
};

// Times are nanoseconds since the step began on the first rank that began it.
struct TraceSpan {
  int op = 0;
  int64_t begin_ns = 0, end_ns = 0;
};

// Which elements of the model an allocation has room for.
enum class Extent : uint8_t { kNone, kShard, kFull };
std::string_view Name(Extent extent);  // "", "shard", "full"

struct TraceRegion {
  Category category = Category::kWorkspace;
  Category holds = Category::kWorkspace;  // parameters, gradients, optimizer states; else workspace
  Extent extent = Extent::kNone;          // kNone: holds none of these three
  int unit = -1;                          // -1: all units
  int64_t bytes = 0;
  int64_t begin_ns = -1, end_ns = -1;  // -1: before the step, after it; alive in [begin, end)
  std::string label;
  friend bool operator==(const TraceRegion&, const TraceRegion&) = default;
};

// One rank's part.
struct RankTrace {
  int64_t step = 0;  // its number, from 1
  std::vector<TraceOp> ops;
  // Several of one op where its stream waited for another one meanwhile; none of the update of a
  // bucket of which the rank owns padding alone.
  std::vector<TraceSpan> spans;
  std::vector<TraceRegion> regions;
  int64_t begin_ns = 0, end_ns = 0;  // of the step, on std::chrono::steady_clock
};

// `ops` in the order in which they were enqueued, once for all ranks.
struct StepTrace {
  int64_t step = 0;
  int64_t duration_ns = 0;  // until the last rank's end
  std::vector<TraceOp> ops;
  struct Rank {
    std::vector<TraceSpan> spans;
    std::vector<TraceRegion> regions;
  };
  std::vector<Rank> ranks;
};

// Of all ranks of a run, at least one. Internal when they did not do the same ops of the same step.
absl::StatusOr<StepTrace> MergeTraces(std::vector<RankTrace> ranks);

// The most that lives at once, when that begins, and by category. The ledger's peak of the same
// step, to the byte.
struct TracePeak {
  int64_t bytes = 0;
  int64_t ns = 0;
  PerCategory<int64_t> categories{};
};
TracePeak PeakOf(std::span<const TraceRegion> regions);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_STEP_TRACE_H_
