// SPDX-License-Identifier: Apache-2.0
//
// What a run is called, by its stage, offload and way of checkpointing.
#ifndef ZEROBOX_TRAINER_RUN_NAME_H_
#define ZEROBOX_TRAINER_RUN_NAME_H_

#include <string>
#include <vector>

#include "trainer/settings.h"

namespace zerobox {

struct RunName {
  std::string name;                  // "zero2-full-offload-optimizer", for a folder or a link
  std::string label;                 // "ZeRO-2"
  std::vector<std::string> details;  // "full checkpointing", "optimizer offloaded"

  std::string LongLabel() const;  // "ZeRO-2, full checkpointing, optimizer offloaded"
};

// With offload and checkpointing where these are not none, unless they are left out.
RunName NameOfRun(const TrainSettings& settings, bool with_offload = true,
                  bool with_checkpointing = true);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RUN_NAME_H_
