// SPDX-License-Identifier: Apache-2.0
//
// What a plan's bytes are for: parts by name, for the lines below the tables. They are computed
// from the settings, beside the walk of the step program, so that what they miss shows.
#ifndef ZEROBOX_TRAINER_PLAN_PARTS_H_
#define ZEROBOX_TRAINER_PLAN_PARTS_H_

#include <vector>

#include "trainer/results.h"
#include "trainer/settings.h"
#include "zero/layout.h"

namespace zerobox {

// Why a step sends something else than the paper's formula says.
std::vector<TrafficDifference> TrafficDifferences(const TrainSettings& settings,
                                                  const Layout& layout);

// All that a step copies; `paper` is ZeRO-Offload's formula (zero where nothing of it applies).
std::vector<CopiedPart> CopiedParts(const TrainSettings& settings, const Layout& layout,
                                    const CopiedBytes& paper);

// Of the categories of `rank`, in their order.
std::vector<MemoryNote> MemoryNotes(const TrainSettings& settings, const Layout& layout,
                                    const RankPlan& rank);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_PLAN_PARTS_H_
