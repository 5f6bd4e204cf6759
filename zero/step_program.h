// SPDX-License-Identifier: Apache-2.0
//
// The step program: the order in which one micro-batch visits the layers of a model. It is known
// before the run and is plain data; it drives prefetch, the memory plan, the predicted traffic and
// --dry_run.
#ifndef ZEROBOX_ZERO_STEP_PROGRAM_H_
#define ZEROBOX_ZERO_STEP_PROGRAM_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zerobox {

using UnitId = int;       // a run of parameters that are gathered together
using ParameterId = int;  // index into the model's list of parameters

enum class Pass : uint8_t { kForward, kBackward };

// One layer's forward or backward. A unit may have several visits: the ends (token embedding,
// position embedding, final norm) have the lookup and the head.
struct Visit {
  int index = 0;  // in its program
  Pass pass = Pass::kForward;
  std::string layer;  // "lookup", "block 3", "head"
  UnitId unit = 0;
  bool needs_parameters = true;   // the lookup's backward needs none
  bool keeps_parameters = false;  // the unit is used again soon: Release leaves it gathered
};
using StepProgram = std::vector<Visit>;

// Where a micro-batch stands within its step.
struct MicroBatch {
  bool first = true;
  bool last = true;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STEP_PROGRAM_H_
