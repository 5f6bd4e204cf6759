// SPDX-License-Identifier: Apache-2.0
#include "zero/stages.h"

#include "zero/offloaded_states.h"
#include "zero/stage1.h"
#include "zero/stage2.h"
#include "zero/stage3.h"

namespace zerobox {

std::unique_ptr<Stage0> MakeStage(int stage, Device& device, Communicator& data_parallel,
                                  const Layout& layout, StateTypes types) {
  if (stage == 0 || data_parallel.size() == 1) {
    return std::make_unique<Stage0>(device, data_parallel, layout, types);
  }
  if (stage == 1) return std::make_unique<Stage1>(device, data_parallel, layout, types);
  if (stage == 2) return std::make_unique<Stage2>(device, data_parallel, layout, types);
  return std::make_unique<Stage3>(device, data_parallel, layout, types);
}

std::unique_ptr<OptimizerStates> MakeOptimizerStates(bool offload, Device& device,
                                                     const Layout& layout, OwnedShards owned,
                                                     StateTypes types,
                                                     const OptimizerSettings& settings) {
  if (offload) return std::make_unique<OffloadedStates>(device, layout, owned, types, settings);
  return std::make_unique<OptimizerStates>(device, layout, owned, types, settings);
}

}  // namespace zerobox
