// SPDX-License-Identifier: Apache-2.0
//
// Collectives by NCCL, within this process: each rank has a communicator of its own, made and used
// by its worker's thread alone, on the communication stream of its GPU. Each call is one call of
// NCCL's, in place, and nothing is grouped.
//
// The communicators are non-blocking: a call returns at once, and may then be "in progress" until
// NCCL has connected what it needs, which may take all ranks. Only when it has left that state is
// its work in the stream, so an event is recorded behind it not before. A worker that waits for
// that, as one that waits for the GPU, sees when the run fails, and gives its own communicator up
// (ncclCommAbort) in Stop.
//
// In which order NCCL adds is its own affair, and not documented: it chooses an algorithm by the
// GPUs, how they are connected, the call's size and type, and the library's version. With all of
// these the same, each of its algorithms adds in a fixed order, and what it chooses does not depend
// on timing; so runs repeat, but their sums are not those of another number or kind of GPUs, nor to
// the bit the rank-ordered ones of host devices. Sums of bf16 are rounded to bf16 each time that a
// rank's part is added, unless the algorithm happens to be one that sums in fp32. All else that can
// be configured is left at NCCL's defaults (NCCL_* in the environment).
#ifndef ZEROBOX_OPS_CUDA_NCCL_GROUP_H_
#define ZEROBOX_OPS_CUDA_NCCL_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ops/cuda/cuda.h"

namespace zerobox::cuda {

// Of CudaDevices, each of another GPU. See MakeCudaGroup.
absl::StatusOr<std::unique_ptr<Group>> MakeNcclGroup(const CudaGroupOptions& options, Abort& abort);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_NCCL_GROUP_H_
