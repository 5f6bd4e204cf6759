// SPDX-License-Identifier: Apache-2.0
//
// One matrix product, on the calling thread.
#ifndef ZEROBOX_OPS_HOST_MATMUL_H_
#define ZEROBOX_OPS_HOST_MATMUL_H_

#include <cstdint>
#include <type_traits>

#include "ops/bfloat16.h"

namespace zerobox {

// C (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C, row-major, with leading dimensions. Each of
// A, B and C is float or BFloat16; arithmetic is fp32, and an element of C is rounded to its type
// once, whatever k is. C overlaps neither A nor B.
//
// Bits: an element of C depends on its row of op(A), its column of op(B), what it was (or its
// bias), alpha, beta and k, and on the SIMD target; not on m, n, where it stands, or leading
// dimensions. So a product that is cut into rows and columns over threads is the same for every
// cut. Bf16 has the bits of the same numbers in fp32, but that MultipliesBFloat16InPairs() takes
// numbers and sums below 2^-126 for 0.
template <typename A = float, typename B = A, typename C = A>
struct MatmulArguments {
  bool transpose_a = false, transpose_b = false;
  int64_t m, n, k;
  float alpha = 1;  // A is multiplied by it first, in fp32
  const A* a;
  int64_t lda;
  const B* b;
  int64_t ldb;
  float beta = 0;  // 0: C is written without being read
  C* c;
  int64_t ldc;
  const C* bias = nullptr;  // (n): added to every row, in the place of beta C
};

namespace host {

// The same with types that are known at run time.
struct MatmulCall {
  struct Matrix {
    const void* data;
    int64_t stride;
    bool is_bfloat16, transpose;
  };
  int64_t m, n, k;
  float alpha, beta;
  Matrix a, b;
  void* c;
  int64_t ldc;
  bool c_is_bfloat16;
  const void* bias;
};
void Run(const MatmulCall& call);

// Whether the CPU multiplies two products of bf16 with one instruction (AVX512_BF16), which then do
// what is in bf16 and not scaled by alpha.
bool MultipliesBFloat16InPairs();

}  // namespace host

template <typename A = float, typename B = A, typename C = A>
void Matmul(const MatmulArguments<A, B, C>& x) {
  constexpr auto kIsBFloat16 = []<typename T>(const T*) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, BFloat16>);
    return std::is_same_v<T, BFloat16>;
  };
  host::Run({.m = x.m,
             .n = x.n,
             .k = x.k,
             .alpha = x.alpha,
             .beta = x.beta,
             .a = {x.a, x.lda, kIsBFloat16(x.a), x.transpose_a},
             .b = {x.b, x.ldb, kIsBFloat16(x.b), x.transpose_b},
             .c = x.c,
             .ldc = x.ldc,
             .c_is_bfloat16 = kIsBFloat16(static_cast<const C*>(x.c)),
             .bias = x.bias});
}

}  // namespace zerobox

#endif  // ZEROBOX_OPS_HOST_MATMUL_H_
