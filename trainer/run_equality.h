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
  // That were done when it was computed.
  int64_t steps_before() const { return evaluation ? step : step - 1; }
};
std::optional<LossDifference> FirstDifferentLoss(const RunResult& reference,
                                                 const RunResult& other);

// The first element, in the order of the layout, whose bits differ; without a step.
// The files are those of two run folders with a model of this shape.
absl::StatusOr<std::optional<Equality::Difference>> FirstDifferentElement(
    const ModelConfig& config, const std::string& reference_folder,
    const std::string& other_folder);

// A run that can be done again, and what it came to.
struct RepeatableRun {
  const TrainSettings& settings;
  const TrainHooks& hooks;
  const RunResult& result;
};
// Of two runs that differ: a step after which a parameter does and before which none did, and its
// first element; or the first different loss, with no parameter, where all parameters were equal
// before it. Parameters are compared as they are kept, in bf16 rounded, and the step is found by
// halving: it is the first unless all of them were equal once more after they had differed.
//
// Does parts of both again and writes nothing. `loss` is their first different one; without one,
// the parameters differ at the end. `observer` is told where workers do not come back. Fails where
// a run does, was stopped, or where what is done again does not come to the losses of `result`.
absl::StatusOr<Equality::Difference> FindFirstDifference(const RepeatableRun& reference,
                                                         const RepeatableRun& other,
                                                         const std::optional<LossDifference>& loss,
                                                         const Dataset& dataset,
                                                         const std::function<int()>& stop_signal,
                                                         RunObserver& observer);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RUN_EQUALITY_H_
