// SPDX-License-Identifier: Apache-2.0
//
// Whether two runs of the same steps came to the same, bit by bit, and if not, where they first
// parted.
#ifndef ZEROBOX_TRAINER_RUN_EQUALITY_H_
#define ZEROBOX_TRAINER_RUN_EQUALITY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "trainer/report.h"
#include "trainer/results.h"
#include "trainer/settings.h"
#include "trainer/train.h"

namespace zerobox {

// Whether zerobox promises equal bits for these two (docs/determinism.md): on host devices, where
// gradients are summed in the same order. NCCL chooses its own.
bool EqualityIsPromised(const TrainSettings& reference, const TrainSettings& other);

// The first loss of a step, or of an evaluation, whose bits differ.
struct LossDifference {
  int64_t step = 0;
  bool evaluation = false;  // after that step
  double reference = 0, value = 0;
  // After which the parameters differ, unless the loss itself was computed in another way.
  int64_t steps_before() const { return evaluation ? step : step - 1; }
};
std::optional<LossDifference> FirstDifferentLoss(const RunResult& reference,
                                                 const RunResult& other);

// The first element, in the order of the layout, whose bits differ; `step` stays 0.
// The files are those of two run folders with a model of this shape.
absl::StatusOr<std::optional<Equality::Difference>> FirstDifferentElement(
    const ModelConfig& config, const std::string& reference_folder,
    const std::string& other_folder);

// A run that can be done again.
struct RepeatableRun {
  const TrainSettings& settings;
  const TrainHooks& hooks;
};
// Of two runs that differ: the first step after which a parameter does, and its first element; or
// the first loss, with no parameter, where that differs before any parameter. Does parts of both
// again and writes nothing. `loss` is their first different one; without one, the parameters differ
// at the end. Fails where a run does, or was stopped.
absl::StatusOr<Equality::Difference> FindFirstDifference(const RepeatableRun& reference,
                                                         const RepeatableRun& other,
                                                         const std::optional<LossDifference>& loss,
                                                         const Dataset& dataset,
                                                         const std::function<int()>& stop_signal);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RUN_EQUALITY_H_
