// SPDX-License-Identifier: Apache-2.0
//
// Whether a run fits its devices and the machine, and which settings would make it fit. A plan
// allocates nothing, so trying them is cheap.
#ifndef ZEROBOX_TRAINER_FIT_H_
#define ZEROBOX_TRAINER_FIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/cuda/cuda.h"
#include "trainer/resolve.h"
#include "trainer/results.h"
#include "trainer/settings.h"

namespace zerobox {

// ResourceExhausted, with wanted and found bytes, where a device's reservation exceeds
// --device_memory, those of a GPU's devices with their workspaces exceed its free memory, or those
// of host devices and all host sides exceed the machine's.
absl::Status CheckFit(const TrainSettings& settings, const RunPlan& plan, const Machine& machine);

// Other settings for the same model and the same global batch: stage, checkpointing, offload and
// size of the micro-batch.
struct FittingSettings {
  std::string flags;  // what to add to the command line, in the order of its flags
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  // of all host sides
  bool fits = false;
  TrainSettings settings;
};
// The first `most` that fit, in the order of what they cost in speed and how much they change, none
// with all the flags of one before it; or, where none fits, the one that needs the least. Empty
// where there is nothing to change.
std::vector<FittingSettings> FindFitting(const ResolvedTrain& resolved, const Machine& machine,
                                         size_t most);
// The same as a text of several lines, for whoever was refused.
std::string WhatWouldFit(const ResolvedTrain& resolved, const Machine& machine);

// What the ops' workspace on a GPU is made for.
CudaOpsSizes OpsSizes(const TrainSettings& settings);

// Bytes that all host sides reserve together.
int64_t HostReservations(const RunPlan& plan);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_FIT_H_
