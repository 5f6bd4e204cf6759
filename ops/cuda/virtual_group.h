// SPDX-License-Identifier: Apache-2.0
//
// Collectives between ranks that share one GPU: copies and sums in its memory. The ranks meet on
// the host once in each call, the only place where a worker waits for another before its GPU has
// to.
#ifndef ZEROBOX_OPS_CUDA_VIRTUAL_GROUP_H_
#define ZEROBOX_OPS_CUDA_VIRTUAL_GROUP_H_

#include <memory>

#include "ops/collectives/group.h"
#include "ops/device/abort.h"

namespace zerobox::cuda {

// Of CudaDevices, all of the same GPU, whose memory must stay until the streams of all have
// stopped. At most kMostSummedRanks (ops/cuda/kernels.h); with one rank every call does nothing.
// `abort` outlives it.
std::unique_ptr<Group> MakeVirtualGroup(int size, CallHook hook, Abort& abort);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_VIRTUAL_GROUP_H_
