// SPDX-License-Identifier: Apache-2.0
//
// The runs of a comparison: every stage with every offload and every way of checkpointing.
#ifndef ZEROBOX_TRAINER_COMBINATIONS_H_
#define ZEROBOX_TRAINER_COMBINATIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/command_line.h"
#include "trainer/resolve.h"
#include "trainer/run_name.h"

namespace zerobox {

// Its name leaves out offload and checkpointing that are the same in all runs.
struct Combination : RunName {
  ResolvedTrain resolved;
};

// From --zero_stages, --offloads and --activation_checkpointings, or the flags of `train` for one
// value of each; the stages of one offload stand together. Reads the registry, which `line` was
// parsed into, and leaves it as it was. Errors: a list that is empty, has a value twice or an
// unknown one; a flag for one value beside that for several; and those of ResolveTrain, with the
// run that has them.
absl::StatusOr<std::vector<Combination>> ResolveCombinations(const CommandLine& line,
                                                             const Machine& machine);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_COMBINATIONS_H_
