// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_OPS_DEVICE_GUARDED_H_
#define ZEROBOX_OPS_DEVICE_GUARDED_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace zerobox {

// Runs `work`, which returns a Status, with exceptions turned into one.
template <typename Work>
absl::Status Guarded(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "the machine has no memory left for the program itself; use a smaller --device_memory");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  }
}

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_GUARDED_H_
