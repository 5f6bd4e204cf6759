// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions, as far as ops/cuda/nccl_group.cpp calls them, each of which finds the real one
// when it is first called.
#include "ops/cuda/nccl_library.h"

#include <nccl.h>

#include "ops/cuda/library.h"

namespace zerobox::cuda {
namespace {

const Library& Nccl() {
  static const Library library("libnccl.so.2",
                               {"$NCCL_HOME/lib", kLoadersPath, "$CUDA_HOME/lib64",
                                "$CUDA_HOME/lib", "/usr/local/cuda/lib64", "/usr/local/cuda/lib"},
                               "ncclCommInitRankConfig");
  return library;
}

}  // namespace

std::string NcclProblem() { return Nccl().problem(); }

}  // namespace zerobox::cuda

// Defines a function of NCCL.
#define ZEROBOX_FORWARD(name, parameters, arguments)                                   \
  ncclResult_t name parameters {                                                       \
    static auto* const function = ::zerobox::cuda::Nccl().Find<decltype(name)>(#name); \
    return function == nullptr ? ncclSystemError : function arguments;                 \
  }

extern "C" {

ZEROBOX_FORWARD(ncclGetUniqueId, (ncclUniqueId * id), (id))
ZEROBOX_FORWARD(ncclCommInitRankConfig,
                (ncclComm_t * communicator, int ranks, ncclUniqueId id, int rank,
                 ncclConfig_t* config),
                (communicator, ranks, id, rank, config))
ZEROBOX_FORWARD(ncclCommGetAsyncError, (ncclComm_t communicator, ncclResult_t* error),
                (communicator, error))
ZEROBOX_FORWARD(ncclCommFinalize, (ncclComm_t communicator), (communicator))
ZEROBOX_FORWARD(ncclCommDestroy, (ncclComm_t communicator), (communicator))
ZEROBOX_FORWARD(ncclCommAbort, (ncclComm_t communicator), (communicator))
ZEROBOX_FORWARD(ncclAllReduce,
                (const void* from, void* to, size_t elements, ncclDataType_t type,
                 ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream),
                (from, to, elements, type, operation, communicator, stream))
ZEROBOX_FORWARD(ncclReduceScatter,
                (const void* from, void* to, size_t elements, ncclDataType_t type,
                 ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream),
                (from, to, elements, type, operation, communicator, stream))
ZEROBOX_FORWARD(ncclAllGather,
                (const void* from, void* to, size_t elements, ncclDataType_t type,
                 ncclComm_t communicator, cudaStream_t stream),
                (from, to, elements, type, communicator, stream))
ZEROBOX_FORWARD(ncclBroadcast,
                (const void* from, void* to, size_t elements, ncclDataType_t type, int root,
                 ncclComm_t communicator, cudaStream_t stream),
                (from, to, elements, type, root, communicator, stream))

const char* ncclGetErrorString(ncclResult_t result) {
  static auto* const function =
      ::zerobox::cuda::Nccl().Find<decltype(ncclGetErrorString)>("ncclGetErrorString");
  return function == nullptr ? "NCCL was not loaded" : function(result);
}

const char* ncclGetLastError(ncclComm_t communicator) {
  static auto* const function =
      ::zerobox::cuda::Nccl().Find<decltype(ncclGetLastError)>("ncclGetLastError");
  return function == nullptr ? "" : function(communicator);
}

}  // extern "C"
