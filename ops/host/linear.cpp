// SPDX-License-Identifier: Apache-2.0
//
// y = x w + bias and its gradients, and the tied head. A product is cut over the threads along the
// longer side of its result; each thread computes its part with a matrix product of its own. No
// result's bits depend on the cut (see matmul.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/linear.cpp"
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "ops/host/matmul.h"
#include "ops/host/simd-inl.h"
#include "ops/host/threads.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// sums (columns) += the sum over the rows of x, which is added up in fp32: rows in blocks, so that
// long sums keep their last digits, and columns so many at a time that totals stay in registers.
template <typename T, typename G>
HWY_INLINE void AddSumsOfRows(G* sums, const T* x, size_t rows, size_t stride, size_t columns) {
  constexpr size_t kRowBlock = 32;
  const hn::ScalableTag<float> d;
  ForLanes(d, columns, [&](size_t i, auto memory) HWY_ATTR {
    auto total = hn::Zero(d);
    for (size_t begin = 0; begin < rows; begin += kRowBlock) {
      const size_t end = std::min(rows, begin + kRowBlock);
      auto sum = hn::Zero(d);
      for (size_t row = begin; row < end; ++row) {
        sum = hn::Add(sum, memory.Load(d, x + row * stride + i));
      }
      total = hn::Add(total, sum);
    }
    memory.Store(d, hn::Add(memory.Load(d, sums + i), total), sums + i);
  });
}

void AddSumsOfFloats(float* sums, const float* x, size_t rows, size_t stride, size_t columns) {
  AddSumsOfRows(sums, x, rows, stride, columns);
}
void AddSumsOfBFloat16s(BFloat16* sums, const BFloat16* x, size_t rows, size_t stride,
                        size_t columns) {
  AddSumsOfRows(sums, x, rows, stride, columns);
}
void AddSumsOfBFloat16sToFloats(float* sums, const BFloat16* x, size_t rows, size_t stride,
                                size_t columns) {
  AddSumsOfRows(sums, x, rows, stride, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(AddSumsOfFloats);
HWY_EXPORT(AddSumsOfBFloat16s);
HWY_EXPORT(AddSumsOfBFloat16sToFloats);

namespace {

void AddSums(float* sums, const float* x, size_t rows, size_t stride, size_t columns) {
  HWY_DYNAMIC_DISPATCH(AddSumsOfFloats)(sums, x, rows, stride, columns);
}
void AddSums(BFloat16* sums, const BFloat16* x, size_t rows, size_t stride, size_t columns) {
  HWY_DYNAMIC_DISPATCH(AddSumsOfBFloat16s)(sums, x, rows, stride, columns);
}
void AddSums(float* sums, const BFloat16* x, size_t rows, size_t stride, size_t columns) {
  HWY_DYNAMIC_DISPATCH(AddSumsOfBFloat16sToFloats)(sums, x, rows, stride, columns);
}

// dbias += the sum of dy's rows.
template <typename T, typename G>
void AddBiasGradient(Threads& threads, G* dbias, const T* dy, int64_t rows, int64_t columns) {
  ForRanges(threads, columns, 64, [&](int64_t begin, int64_t end) {
    AddSums(dbias + begin, dy + begin, static_cast<size_t>(rows), static_cast<size_t>(columns),
            static_cast<size_t>(end - begin));
  });
}

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
  AddBiasGradient(threads, dbias, dy, rows, out);
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
#endif  // HWY_ONCE
