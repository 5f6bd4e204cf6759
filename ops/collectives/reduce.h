// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the host's collectives.
#ifndef ZEROBOX_OPS_COLLECTIVES_REDUCE_H_
#define ZEROBOX_OPS_COLLECTIVES_REDUCE_H_

#include <span>

#include "ops/device/buffer.h"

namespace zerobox {

// to[i] = ((from[0][i] + from[1][i]) + from[2][i]) + ..., in this order, whatever the alignment and
// however the work is cut. fp32 in fp32; bf16 in fp32, rounded once at the end to the nearest, ties
// to even; fp64 in fp64; integers wrap. `to` may be one of `from`; otherwise they do not overlap.
// All of one dtype and size.
void SumInOrder(Buffer to, std::span<const Buffer> from);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_REDUCE_H_
