// SPDX-License-Identifier: Apache-2.0
//
// OpenBLAS, opened at run time. Which of its builds a Debian system links against is a choice of
// the administrator (an alternative), so the build and the kernel that we get are checked.
#ifndef ZEROBOX_OPS_HOST_OPENBLAS_H_
#define ZEROBOX_OPS_HOST_OPENBLAS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace zerobox {

// cblas_sgemm with the enumerations of cblas.h as int: order 101 is row-major, transpose 111 is no
// and 112 is yes.
using Sgemm = void(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

struct OpenBlas {
  Sgemm* sgemm = nullptr;
  std::string file;  // that was opened
  std::string core;  // the family of kernels that runs: "SkylakeX", "Haswell", ...
};

// Where to look, best first.
std::span<const char* const> OpenBlasFiles();

// The kernels to ask for on this CPU, "" where OpenBLAS may choose. On the newest CPUs it may not:
// version 0.3.21 picks kernels there that give wrong results.
std::string_view OpenBlasCore();

// Opens the first of `files` that can be opened, single-threaded, with the kernels `core`. Removes
// the variables OMP_*, OPENBLAS_* and GOTO_* from the environment, so no other thread may be
// running. FailedPrecondition when there is no library, or not a fit one.
absl::StatusOr<OpenBlas> OpenOpenBlas(std::span<const char* const> files, std::string_view core);

// Whether an OpenBLAS is fit: `parallel` is what its openblas_get_parallel returns, 0 for a serial
// build, 1 for pthreads, 2 for OpenMP.
absl::Status CheckOpenBlas(std::string_view file, int parallel, std::string_view core,
                           std::string_view wanted_core);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_OPENBLAS_H_
