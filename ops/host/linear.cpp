// SPDX-License-Identifier: Apache-2.0
//
// y = x w + bias and its gradients, and the tied head. Each thread computes its own rows of the
// result with a single-threaded matrix product: a product's bits depend on its shape, so the cuts
// are fixed by shape and thread count.
#include <algorithm>
#include <cstdint>

#include "ops/host/kernels.h"
#include "ops/host/matmul.h"
#include "ops/host/threads.h"

namespace zerobox::host {
namespace {

constexpr int64_t kRowGrain = 32;

// result (rows, columns) = left (rows, k) right^T or right + beta result, over the threads.
struct Product {
  const float* left;  // (rows, k), or (k, rows) when transposed
  bool transpose_left = false;
  const float* right;  // (k, columns), or (columns, k) when transposed
  bool transpose_right = false;
  float* result;
  int64_t rows, columns, k;
  float beta = 0;
};

void ComputeRows(const Product& p, int64_t begin, int64_t end) {
  const int64_t left_stride = p.transpose_left ? p.rows : p.k;
  Matmul({.transpose_a = p.transpose_left,
          .transpose_b = p.transpose_right,
          .m = end - begin,
          .n = p.columns,
          .k = p.k,
          .a = p.left + begin * (p.transpose_left ? 1 : left_stride),
          .lda = left_stride,
          .b = p.right,
          .ldb = p.transpose_right ? p.k : p.columns,
          .beta = p.beta,
          .c = p.result + begin * p.columns,
          .ldc = p.columns});
}

void Compute(Threads& threads, const Product& product) {
  ForRanges(threads, product.rows, kRowGrain,
            [&](int64_t begin, int64_t end) { ComputeRows(product, begin, end); });
}

}  // namespace

void LinearForward(Threads& threads, float* y, const float* x, const float* w, const float* bias,
                   int64_t rows, int64_t in, int64_t out) {
  const Product product{
      .left = x, .right = w, .result = y, .rows = rows, .columns = out, .k = in, .beta = 1};
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::copy_n(bias, out, y + row * out);
    ComputeRows(product, begin, end);
  });
}

void LinearBackward(Threads& threads, float* dx, float* dw, float* dbias, const float* dy,
                    const float* x, const float* w, int64_t rows, int64_t in, int64_t out) {
  // dx = dy w^T
  Compute(threads, {.left = dy,
                    .right = w,
                    .transpose_right = true,
                    .result = dx,
                    .rows = rows,
                    .columns = in,
                    .k = out});
  // dw += x^T dy
  Compute(threads, {.left = x,
                    .transpose_left = true,
                    .right = dy,
                    .result = dw,
                    .rows = in,
                    .columns = out,
                    .k = rows,
                    .beta = 1});
  AddColumnSums(threads, dbias, dy, rows, out);
}

void HeadForward(Threads& threads, float* logits, const float* x, const float* wte, int64_t rows,
                 int64_t channels, int64_t vocabulary) {
  Compute(threads, {.left = x,
                    .right = wte,
                    .transpose_right = true,
                    .result = logits,
                    .rows = rows,
                    .columns = vocabulary,
                    .k = channels});
}

void HeadBackward(Threads& threads, float* dx, float* dwte, const float* dlogits, const float* x,
                  const float* wte, int64_t rows, int64_t channels, int64_t vocabulary) {
  Compute(threads, {.left = dlogits,
                    .right = wte,
                    .result = dx,
                    .rows = rows,
                    .columns = channels,
                    .k = vocabulary});
  Compute(threads, {.left = dlogits,
                    .transpose_left = true,
                    .right = x,
                    .result = dwte,
                    .rows = vocabulary,
                    .columns = channels,
                    .k = rows,
                    .beta = 1});
}

}  // namespace zerobox::host
