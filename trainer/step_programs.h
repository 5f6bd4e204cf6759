// SPDX-License-Identifier: Apache-2.0
//
// The step programs of a GPT: the ends (unit 0) and its blocks (units 1 .. n_layer).
#ifndef ZEROBOX_TRAINER_STEP_PROGRAMS_H_
#define ZEROBOX_TRAINER_STEP_PROGRAMS_H_

#include <cstdint>

#include "zero/step_program.h"

namespace zerobox {

inline constexpr UnitId kEnds = 0;
constexpr UnitId BlockUnit(int64_t block) { return static_cast<UnitId>(block + 1); }
std::string UnitName(UnitId unit);  // "ends", "block 3"

// The layers of the ends; a block's is its unit's name.
inline constexpr char kLookup[] = "lookup";
inline constexpr char kHead[] = "head";

// Forward: lookup, blocks, head. Backward: the same reversed. The head and the last block keep
// their parameters from their forward to their backward visit; the lookup's backward needs none.
StepProgram TrainingProgram(int64_t n_layer);
// Forward only, for evaluation and sampling.
StepProgram ForwardProgram(int64_t n_layer);
// Each unit once, for reading parameters.
StepProgram ReadingProgram(int64_t n_layer);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_STEP_PROGRAMS_H_
