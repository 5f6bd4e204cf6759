// SPDX-License-Identifier: Apache-2.0
//
// Abseil's string_view of a standard one. Where Abseil was built as C++14, as Debian's was, it is a
// type of its own, which no standard one turns into by itself.
#ifndef ZEROBOX_OPS_VIEW_H_
#define ZEROBOX_OPS_VIEW_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace zerobox {

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace zerobox

#endif  // ZEROBOX_OPS_VIEW_H_
