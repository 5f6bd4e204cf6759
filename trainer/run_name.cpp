// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_name.h"

#include "absl/strings/str_cat.h"

namespace zerobox {

std::string RunName::LongLabel() const {
  std::string text = label;
  for (const std::string& detail : details) absl::StrAppend(&text, ", ", detail);
  return text;
}

RunName NameOfRun(const TrainSettings& settings, bool with_offload, bool with_checkpointing) {
  RunName run = {.name = absl::StrCat("zero", settings.zero_stage),
                 .label = absl::StrCat("ZeRO-", settings.zero_stage)};
  const std::string checkpointing(Name(settings.activation_checkpointing));
  if (with_checkpointing && settings.activation_checkpointing != ActivationCheckpointing::kNone) {
    absl::StrAppend(&run.name, "-", checkpointing);
    run.details.push_back(checkpointing + " checkpointing");
  }
  if (with_offload && (settings.offload_optimizer || settings.offload_activations)) {
    absl::StrAppend(&run.name, "-offload");
    if (settings.offload_optimizer) {
      absl::StrAppend(&run.name, "-optimizer");
      run.details.push_back("optimizer offloaded");
    }
    if (settings.offload_activations) {
      absl::StrAppend(&run.name, "-activations");
      run.details.push_back("activations offloaded");
    }
  }
  return run;
}

}  // namespace zerobox
