// SPDX-License-Identifier: Apache-2.0
//
// What a run has to say: its plan before it starts, its measurements while and after it runs. The
// tables on the screen and the files in the run folder are written from these and nothing else.
#ifndef ZEROBOX_TRAINER_RESULTS_H_
#define ZEROBOX_TRAINER_RESULTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/collectives/communicator.h"
#include "ops/device/device.h"
#include "ops/device/memory.h"
#include "trainer/step_trace.h"
#include "zero/state_types.h"
#include "zero/step_program.h"

namespace zerobox {

// A difference between what the paper's formula says a collective sends and what it will send here.
struct TrafficDifference {
  Collective collective;
  std::string reason;  // "padding", "last block kept from its forward to its backward"
  int64_t bytes;       // + more than the paper, - less
};

// What a walk of the step program against a planning device says about one rank.
struct RankPlan {
  Ledger memory;          // peak over a whole run; live: after the last step
  RegionBytes regions{};  // what the pool reserves; its sum must fit the device
  Ledger host_memory;     // the same two of the device's host side
  RegionBytes host_regions{};
  Traffic step_traffic;  // of one steady step
  CopiedBytes step_copies;
};
int64_t ReservedBytes(const RegionBytes& regions);

// A named part of what a step copies.
struct CopiedPart {
  std::string what;  // "batches"
  CopiedBytes bytes;
};

// A named part of a category, for the explanation below the memory table.
struct MemoryNote {
  Category category;
  std::string what;   // "gradient of the ends (token and position embedding, final norm), whole"
  int64_t bytes;      // or another number, where `what` begins with its unit
  bool host = false;  // of the device's host side
};

struct RunPlan {
  int64_t parameters = 0;  // Psi: tied weights once, no padding
  int64_t padding = 0;     // elements over the whole model
  StateTypes types;
  std::vector<RankPlan> ranks;
  std::array<int64_t, kCollectives> paper_bytes{};  // per rank and step, from zero/formulas
  std::vector<TrafficDifference> differences;
  CopiedBytes paper_copies;  // of an offloaded optimizer, per rank and step, from zero/formulas
  std::vector<CopiedPart> copies;  // sum to what is copied in a step
  std::vector<MemoryNote> notes;
  std::vector<Visit> program;
};

// One training step, from all ranks together.
struct StepMetrics {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the target tokens of the global batch, nats
  double grad_norm = 0;  // before clipping
  double clip = 1;       // what gradients were multiplied by
  double lr = 0;
  int64_t tokens = 0;    // trained on so far, this step included
  int64_t position = 0;  // samples seen so far, this step included
  int64_t epoch = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double exposed_seconds = 0;  // that computing stood still for communication; mean of the ranks
  bool skipped = false;
};
struct EvalMetrics {
  int64_t step = 0;
  double val_loss = 0;
};

struct RankResult {
  Ledger memory;  // live: after the last step
  Ledger host_memory;
  int64_t capacity_bytes = 0;
  Traffic step_traffic;  // counted in one steady step
  CopiedBytes step_copies;
  int64_t poisoned_bytes = 0;  // see MemoryPool::PoisonFreshMemory
  int64_t host_poisoned_bytes = 0;
};

struct RunResult {
  absl::Status status;             // the first error of a failed run
  std::vector<std::string> where;  // failed run: per rank, what it waited for or its phase
  int64_t steps = 0;               // done
  int64_t skipped = 0;
  int stopped_by_signal = 0;
  std::vector<StepMetrics> step_metrics;
  std::vector<EvalMetrics> eval_metrics;
  std::vector<RankResult> ranks;
  std::optional<StepTrace> trace;  // of the step that settings.trace_step says, if it was reached
  std::string trace_error;         // why there is none all the same, or ""
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RESULTS_H_
