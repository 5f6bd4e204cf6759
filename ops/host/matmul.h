// SPDX-License-Identifier: Apache-2.0
//
// One matrix product, on the calling thread.
#ifndef ZEROBOX_OPS_HOST_MATMUL_H_
#define ZEROBOX_OPS_HOST_MATMUL_H_

#include <cstdint>

#include "absl/status/status.h"

namespace zerobox {

// Loads OpenBLAS's pthread build, single-threaded, with a kernel chosen for this CPU whatever OMP_*
// and OPENBLAS_* variables say. Call once, early in main, before other threads exist; further calls
// return the first answer. FailedPrecondition names the package when the library is missing or a
// serial build (which is not safe to call from several threads).
absl::Status LoadMatmul();

// C (m, n) = alpha * op(A) (m, k) * op(B) (k, n) + beta * C, row-major, with leading dimensions.
struct MatmulArguments {
  bool transpose_a = false, transpose_b = false;
  int64_t m, n, k;
  float alpha = 1;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float beta = 0;  // 0: C is written without being read
  float* c;
  int64_t ldc;
};
void Matmul(const MatmulArguments& arguments);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_MATMUL_H_
