// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/group.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "ops/view.h"

namespace zerobox {
std::string Describe(const CallInfo& call) {
  std::string name(Name(call.collective));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string unit = call.label.unit < 0 ? "" : absl::StrCat(", unit ", call.label.unit);
  return absl::StrCat(name, " number ", call.number, " (", View(Name(call.label.purpose)), unit,
                      ")");
}

absl::Status Ask(const CallHook& hook, const CallInfo& call) {
  if (!hook) return absl::OkStatus();
  absl::Status status = hook(call);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(Describe(call), ": ", status.message()));
}

}  // namespace zerobox
