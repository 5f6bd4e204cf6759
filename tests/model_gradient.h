// SPDX-License-Identifier: Apache-2.0
//
// The model's gradient as training computes it, taken out whole: one step's micro-batches forward
// and backward under stage 0, on one host device of two threads.
#ifndef ZEROBOX_TESTS_MODEL_GRADIENT_H_
#define ZEROBOX_TESTS_MODEL_GRADIENT_H_

#include <vector>

#include "tests/reference.h"
#include "trainer/batch_feed.h"
#include "trainer/settings.h"

namespace zerobox {

struct ModelGradient {
  double loss_sum = 0;
  std::vector<reference::Array> gradients;  // by parameter, of `loss_scale` times loss_sum
};

// `weights` by parameter, rounded to their type. The micro-batches are of one shape, which may have
// fewer positions than the model; of the settings, it and all about the model and its activations
// count. Failures are GoogleTest's.
ModelGradient ComputeModelGradient(TrainSettings settings,
                                   const std::vector<reference::Array>& weights,
                                   const std::vector<HostBatch>& micro_batches, float loss_scale);

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_MODEL_GRADIENT_H_
