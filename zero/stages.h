// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_ZERO_STAGES_H_
#define ZEROBOX_ZERO_STAGES_H_

#include <memory>

#include "zero/stage0.h"

namespace zerobox {

// Stage 0..3. With one rank a shard is the whole, so every stage is stage 0.
std::unique_ptr<Stage0> MakeStage(int stage, Device& device, Communicator& data_parallel,
                                  const Layout& layout, StateTypes types);

// On the device, or offloaded to its host side.
std::unique_ptr<OptimizerStates> MakeOptimizerStates(bool offload, Device& device,
                                                     const Layout& layout, OwnedShards owned,
                                                     StateTypes types,
                                                     const OptimizerSettings& settings);

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STAGES_H_
