// SPDX-License-Identifier: Apache-2.0
#include "zero/stages.h"

#include "zero/stage1.h"
#include "zero/stage2.h"
#include "zero/stage3.h"

namespace zerobox {

std::unique_ptr<Stage0> MakeStage(int stage, Device& device, Communicator& data_parallel,
                                  const Layout& layout) {
  std::unique_ptr<Stage0> zero;
  if (stage == 0 || data_parallel.size() == 1) {
    zero = std::make_unique<Stage0>(device, data_parallel, layout);
  } else if (stage == 1) {
    zero = std::make_unique<Stage1>(device, data_parallel, layout);
  } else if (stage == 2) {
    zero = std::make_unique<Stage2>(device, data_parallel, layout);
  } else {
    zero = std::make_unique<Stage3>(device, data_parallel, layout);
  }
  zero->AllocateParameters();
  zero->AllocateGradients();
  return zero;
}

}  // namespace zerobox
