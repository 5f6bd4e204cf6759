// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt's functions, as far as ops/cuda/matmul.cpp calls them, each of which finds the real one
// when it is first called.
#include "ops/cuda/cublaslt.h"

#include <cublasLt.h>

#include "absl/strings/str_cat.h"
#include "ops/cuda/library.h"

namespace zerobox::cuda {
namespace {

const Library& CublasLt() {
  static const Library library(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR),
                               {kLoadersPath, "$CUDA_HOME/lib64", "/usr/local/cuda/lib64"});
  return library;
}

}  // namespace

std::string CublasLtProblem() { return CublasLt().problem(); }

}  // namespace zerobox::cuda

// Defines a function of cuBLASLt.
#define ZEROBOX_FORWARD(name, parameters, arguments)                                       \
  cublasStatus_t name parameters {                                                         \
    static auto* const function = ::zerobox::cuda::CublasLt().Find<decltype(name)>(#name); \
    return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function arguments;       \
  }

extern "C" {

ZEROBOX_FORWARD(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
ZEROBOX_FORWARD(cublasLtDestroy, (cublasLtHandle_t handle), (handle))
ZEROBOX_FORWARD(cublasLtMatrixLayoutCreate,
                (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols,
                 int64_t ld),
                (layout, type, rows, cols, ld))
ZEROBOX_FORWARD(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
ZEROBOX_FORWARD(cublasLtMatmulDescCreate,
                (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale),
                (desc, compute, scale))
ZEROBOX_FORWARD(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
ZEROBOX_FORWARD(cublasLtMatmulDescSetAttribute,
                (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                 const void* value, size_t bytes),
                (desc, attribute, value, bytes))
ZEROBOX_FORWARD(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
                (preference))
ZEROBOX_FORWARD(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
                (preference))
ZEROBOX_FORWARD(cublasLtMatmulPreferenceSetAttribute,
                (cublasLtMatmulPreference_t preference,
                 cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
                (preference, attribute, value, bytes))
ZEROBOX_FORWARD(cublasLtMatmulAlgoGetHeuristic,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                 cublasLtMatmulPreference_t preference, int requested,
                 cublasLtMatmulHeuristicResult_t results[], int* returned),
                (handle, desc, a, b, c, d, preference, requested, results, returned))
ZEROBOX_FORWARD(cublasLtMatmul,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                 const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                 cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                 cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                 const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                 cudaStream_t stream),
                (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                 algorithm, workspace, workspace_bytes, stream))

const char* cublasLtGetStatusName(cublasStatus_t status) {
  static auto* const function =
      ::zerobox::cuda::CublasLt().Find<decltype(cublasLtGetStatusName)>("cublasLtGetStatusName");
  return function == nullptr ? "cuBLASLt was not loaded" : function(status);
}

}  // extern "C"
