// SPDX-License-Identifier: Apache-2.0
//
// y = x w + bias and its gradients, and the tied head. A product is cut over the threads along the
// longer side of its result; each thread computes its part with a matrix product of its own. No
// result's bits depend on the cut (see matmul.h).
#include <cstdint>

#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "ops/host/matmul.h"
#include "ops/host/threads.h"

namespace zerobox::host {
namespace {

constexpr int64_t kGrain = 32;  // rows or columns that are worth a thread

// result (rows, columns) = left (rows, k) right (k, columns) + beta result, or + bias.
template <typename T, typename R>
struct Product {
  const T* left;  // (rows, k), or (k, rows) when transposed
  bool transpose_left = false;
  const T* right;  // (k, columns), or (columns, k) when transposed
  bool transpose_right = false;
  R* result;
  int64_t rows, columns, k;
  float beta = 0;
  const R* bias = nullptr;
};

template <typename T, typename R>
void Compute(Threads& threads, const Product<T, R>& p) {
  const MatmulArguments<T, T, R> whole{.transpose_a = p.transpose_left,
                                       .transpose_b = p.transpose_right,
                                       .m = p.rows,
                                       .n = p.columns,
                                       .k = p.k,
                                       .a = p.left,
                                       .lda = p.transpose_left ? p.rows : p.k,
                                       .b = p.right,
                                       .ldb = p.transpose_right ? p.k : p.columns,
                                       .beta = p.beta,
                                       .c = p.result,
                                       .ldc = p.columns,
                                       .bias = p.bias};
  if (p.rows >= p.columns) {
    ForRanges(threads, p.rows, kGrain, [&](int64_t begin, int64_t end) {
      MatmulArguments<T, T, R> part = whole;
      part.m = end - begin;
      part.a += begin * (p.transpose_left ? 1 : whole.lda);
      part.c += begin * whole.ldc;
      Matmul(part);
    });
  } else {
    ForRanges(threads, p.columns, kGrain, [&](int64_t begin, int64_t end) {
      MatmulArguments<T, T, R> part = whole;
      part.n = end - begin;
      part.b += begin * (p.transpose_right ? whole.ldb : 1);
      part.c += begin;
      if (part.bias != nullptr) part.bias += begin;
      Matmul(part);
    });
  }
}

}  // namespace

template <typename T>
void LinearForward(Threads& threads, T* y, const T* x, const T* w, const T* bias, int64_t rows,
                   int64_t in, int64_t out) {
  Compute<T, T>(
      threads,
      {.left = x, .right = w, .result = y, .rows = rows, .columns = out, .k = in, .bias = bias});
}

template <typename T, typename G>
void LinearBackward(Threads& threads, T* dx, G* dw, G* dbias, const T* dy, const T* x, const T* w,
                    int64_t rows, int64_t in, int64_t out) {
  // dx = dy w^T
  Compute<T, T>(threads, {.left = dy,
                          .right = w,
                          .transpose_right = true,
                          .result = dx,
                          .rows = rows,
                          .columns = in,
                          .k = out});
  // dw += x^T dy
  Compute<T, G>(threads, {.left = x,
                          .transpose_left = true,
                          .right = dy,
                          .result = dw,
                          .rows = in,
                          .columns = out,
                          .k = rows,
                          .beta = 1});
  AddColumnSums(threads, dbias, dy, rows, out);
}

template <typename T>
void HeadForward(Threads& threads, T* logits, const T* x, const T* wte, int64_t rows,
                 int64_t channels, int64_t vocabulary) {
  Compute<T, T>(threads, {.left = x,
                          .right = wte,
                          .transpose_right = true,
                          .result = logits,
                          .rows = rows,
                          .columns = vocabulary,
                          .k = channels});
}

template <typename T, typename G>
void HeadBackward(Threads& threads, T* dx, G* dwte, const T* dlogits, const T* x, const T* wte,
                  int64_t rows, int64_t channels, int64_t vocabulary) {
  Compute<T, T>(threads, {.left = dlogits,
                          .right = wte,
                          .result = dx,
                          .rows = rows,
                          .columns = channels,
                          .k = vocabulary});
  Compute<T, G>(threads, {.left = dlogits,
                          .transpose_left = true,
                          .right = x,
                          .result = dwte,
                          .rows = vocabulary,
                          .columns = channels,
                          .k = rows,
                          .beta = 1});
}

template void LinearForward(Threads&, float*, const float*, const float*, const float*, int64_t,
                            int64_t, int64_t);
template void LinearForward(Threads&, BFloat16*, const BFloat16*, const BFloat16*, const BFloat16*,
                            int64_t, int64_t, int64_t);
template void LinearBackward(Threads&, float*, float*, float*, const float*, const float*,
                             const float*, int64_t, int64_t, int64_t);
template void LinearBackward(Threads&, BFloat16*, BFloat16*, BFloat16*, const BFloat16*,
                             const BFloat16*, const BFloat16*, int64_t, int64_t, int64_t);
template void LinearBackward(Threads&, BFloat16*, float*, float*, const BFloat16*, const BFloat16*,
                             const BFloat16*, int64_t, int64_t, int64_t);
template void HeadForward(Threads&, float*, const float*, const float*, int64_t, int64_t, int64_t);
template void HeadForward(Threads&, BFloat16*, const BFloat16*, const BFloat16*, int64_t, int64_t,
                          int64_t);
template void HeadBackward(Threads&, float*, float*, const float*, const float*, const float*,
                           int64_t, int64_t, int64_t);
template void HeadBackward(Threads&, BFloat16*, BFloat16*, const BFloat16*, const BFloat16*,
                           const BFloat16*, int64_t, int64_t, int64_t);
template void HeadBackward(Threads&, BFloat16*, float*, const BFloat16*, const BFloat16*,
                           const BFloat16*, int64_t, int64_t, int64_t);

}  // namespace zerobox::host
