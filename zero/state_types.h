// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_ZERO_STATE_TYPES_H_
#define ZEROBOX_ZERO_STATE_TYPES_H_

#include "ops/device/buffer.h"

namespace zerobox {

// How model states are stored: fp32 everywhere, or mixed precision (arXiv:1710.03740, section 3.1):
// parameters in bf16 beside fp32 master weights, gradients in bf16 or fp32.
struct StateTypes {
  DType parameters = DType::kFloat32;
  DType gradients = DType::kFloat32;  // kept and sent so
  bool mixed() const { return parameters != DType::kFloat32; }
  friend bool operator==(const StateTypes&, const StateTypes&) = default;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STATE_TYPES_H_
