// SPDX-License-Identifier: Apache-2.0
//
// Matrix products against references in double precision, and against themselves: which bits they
// promise. For every SIMD target of this CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/host/kernels.h"
#include "ops/host/matmul.h"
#include "tests/reference.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

using Bf16s = Values<BFloat16>;

class MatmulTest : public SimdTargetTest {};
ZEROBOX_FOR_EACH_SIMD_TARGET(MatmulTest);

struct Case {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1, beta = 0;
  bool bias = false;
};

// Tails of every kind: of panels, tiles, vectors, blocks, and of the steps over k (384).
constexpr std::array<std::array<int64_t, 3>, 12> kShapes = {{{1, 1, 1},
                                                             {3, 5, 7},
                                                             {64, 64, 32},
                                                             {64, 11, 65},
                                                             {17, 33, 129},
                                                             {15, 48, 385},
                                                             {130, 101, 33},
                                                             {1, 300, 40},
                                                             {300, 1, 40},
                                                             {29, 70, 801},
                                                             {5, 9, 1153},
                                                             {171, 40, 4}}};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [m, n, k] : kShapes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        cases.push_back({m, n, k, ta, tb});
        cases.push_back({m, n, k, ta, tb, 0.3f, 1});
        cases.push_back({m, n, k, ta, tb, 1, -0.7f});
        cases.push_back({m, n, k, ta, tb, 1, 0, true});
      }
    }
  }
  return cases;
}

template <typename A, typename B, typename C>
MatmulArguments<A, B, C> Arguments(const Case& x, const Values<A>& a, const Values<B>& b,
                                   Values<C>& c, const Values<C>& bias) {
  return {.transpose_a = x.transpose_a,
          .transpose_b = x.transpose_b,
          .m = x.m,
          .n = x.n,
          .k = x.k,
          .alpha = x.alpha,
          .a = a.data(),
          .lda = x.transpose_a ? x.m : x.k,
          .b = b.data(),
          .ldb = x.transpose_b ? x.k : x.n,
          .beta = x.beta,
          .c = c.data(),
          .ldc = x.n,
          .bias = x.bias ? bias.data() : nullptr};
}

// What C holds before: NaN where it must not be read.
template <typename C>
Values<C> Before(const Case& x) {
  return x.beta == 0 ? Values<C>(x.m * x.n) : Values<C>::Random(x.m * x.n, 3);
}

template <typename A, typename B, typename C>
void ExpectTheReference(double tolerance) {
  Case last{0, 0, 0};
  Values<A> a(0);
  Values<B> b(0);
  reference::Array product;
  for (const Case& x : Cases()) {
    if (x.m != last.m || x.n != last.n || x.k != last.k || x.transpose_a != last.transpose_a ||
        x.transpose_b != last.transpose_b) {
      a = Values<A>::Random(x.m * x.k, 1);
      b = Values<B>::Random(x.k * x.n, 2);
      product =
          reference::Product(a.Doubles(), x.transpose_a, b.Doubles(), x.transpose_b, x.m, x.n, x.k);
      last = x;
    }
    const auto bias = Values<C>::Random(x.n, 4);
    Values<C> c = Before<C>(x);
    reference::Array expected = product;
    for (int64_t i = 0; i < x.m * x.n; ++i) {
      expected[i] *= x.alpha;
      if (x.beta != 0) expected[i] += double{x.beta} * ToFloat(c[i]);
      if (x.bias) expected[i] += ToFloat(bias[i % x.n]);
    }
    Matmul(Arguments(x, a, b, c, bias));
    SCOPED_TRACE(testing::Message() << x.m << " x " << x.n << " x " << x.k << ", transposed "
                                    << x.transpose_a << x.transpose_b << ", alpha " << x.alpha
                                    << ", beta " << x.beta << ", bias " << x.bias);
    ExpectClose(c, expected, tolerance, "c");
  }
}

TEST_P(MatmulTest, AgreesWithTheReferenceInEveryType) {
  ExpectTheReference<float, float, float>(2e-6);
  ExpectTheReference<BFloat16, BFloat16, float>(2e-6);
  ExpectTheReference<float, BFloat16, float>(2e-6);
  ExpectTheReference<BFloat16, float, float>(2e-6);
  ExpectTheReference<BFloat16, BFloat16, BFloat16>(4e-3);
  ExpectTheReference<float, BFloat16, BFloat16>(4e-3);
}

// bf16 is storage: the product is that of the same numbers in fp32, rounded once, whatever k is.
TEST_P(MatmulTest, InBf16IsTheFp32ProductOfTheSameNumbersRoundedOnce) {
  for (const Case& x : Cases()) {
    const Bf16s a = Bf16s::Random(x.m * x.k, 1), b = Bf16s::Random(x.k * x.n, 2);
    const Bf16s bias = Bf16s::Random(x.n, 4);
    Bf16s c = Before<BFloat16>(x);
    const Floats wide_a = a.As<float>(), wide_b = b.As<float>(), wide_bias = bias.As<float>();
    Floats wide_c = c.As<float>();
    Matmul(Arguments(x, a, b, c, bias));
    Matmul(Arguments(x, wide_a, wide_b, wide_c, wide_bias));
    EXPECT_TRUE(c.HasTheBitsOf(wide_c.As<BFloat16>())) << x.m << " " << x.n << " " << x.k;
    EXPECT_TRUE(c.GuardsAreIntact());
    Floats unrounded = Before<float>(x);
    Floats wide_unrounded = unrounded;
    Matmul(Arguments(x, a, b, unrounded, wide_bias));
    Matmul(Arguments(x, wide_a, wide_b, wide_unrounded, wide_bias));
    EXPECT_TRUE(unrounded.HasTheBitsOf(wide_unrounded)) << x.m << " " << x.n << " " << x.k;
  }
}

bool CpuMultipliesBFloat16() {
  std::stringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  return text.str().find(" avx512_bf16") != std::string::npos;
}

// Tells which instructions the test above was about, and what sets them apart.
TEST_P(MatmulTest, OnlyInPairsAreNumbersBelowTwoToTheMinus126TakenForZero) {
  const float tiny = std::ldexp(1.0f, -120), small = std::ldexp(1.0f, -10);
  Bf16s a(1), b(1);
  Floats c(1);
  a[0] = ToBFloat16(tiny);
  b[0] = ToBFloat16(small);
  const bool in_pairs = host::MultipliesBFloat16InPairs();
  const std::string target = hwy::TargetName(GetParam());
  EXPECT_EQ(in_pairs, target.starts_with("AVX3") && CpuMultipliesBFloat16());
  for (const float alpha : {1.0f, 0.5f}) {  // scaled is multiplied in fp32
    Matmul(Arguments({.m = 1, .n = 1, .k = 1, .alpha = alpha}, a, b, c, Floats(0)));
    EXPECT_EQ(c[0], alpha == 1 && in_pairs ? 0 : alpha * std::ldexp(1.0f, -130));
  }
}

// Each part of C, computed from its rows and columns alone, has the bits of the whole product.
template <typename T>
void ExpectEqualParts(const Case& x) {
  const auto a = Values<T>::Random(x.m * x.k, 1), b = Values<T>::Random(x.k * x.n, 2);
  const auto bias = Values<T>::Random(x.n, 4);
  Values<T> whole = Before<T>(x), parts = whole;
  const auto arguments = Arguments(x, a, b, whole, bias);
  Matmul(arguments);
  const std::array<int64_t, 5> rows = {0, x.m / 7, x.m / 3, std::min(x.m, x.m / 3 + 1), x.m};
  const std::array<int64_t, 5> columns = {0, x.n / 5, x.n / 2, std::min(x.n, x.n / 2 + 3), x.n};
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    for (size_t j = 0; j + 1 < columns.size(); ++j) {
      auto part = arguments;
      part.m = rows[i + 1] - rows[i];
      part.n = columns[j + 1] - columns[j];
      part.a += rows[i] * (x.transpose_a ? 1 : arguments.lda);
      part.b += columns[j] * (x.transpose_b ? arguments.ldb : 1);
      part.c = parts.data() + rows[i] * x.n + columns[j];
      if (x.bias) part.bias += columns[j];
      Matmul(part);
    }
  }
  EXPECT_TRUE(parts.HasTheBitsOf(whole)) << x.m << " x " << x.n << " x " << x.k;
}

TEST_P(MatmulTest, AnElementHasTheSameBitsHoweverRowsAndColumnsAreCut) {
  for (const Case& x : Cases()) {
    ExpectEqualParts<float>(x);
    ExpectEqualParts<BFloat16>(x);
  }
  // Several blocks of rows in cache, and of columns.
  ExpectEqualParts<float>({400, 4200, 9, false, true, 1, 1});
  ExpectEqualParts<BFloat16>({1100, 1100, 390, true, false});
}

TEST_P(MatmulTest, LeadingDimensionsReachIntoLargerMatrices) {
  // 20 x 30 = 20 x 8 times 8 x 30, each a part of a matrix with NaN elsewhere.
  const int64_t m = 20, n = 30, k = 8, lda = 11, ldb = 37, ldc = 41;
  Floats a(m * lda), b(k * ldb), c(m * ldc);
  reference::Array dense_a(m * k), dense_b(k * n);
  for (int64_t i = 0; i < m * k; ++i) {
    a[i / k * lda + i % k] = static_cast<float>(NormalAt(1, 1, i));
  }
  for (int64_t i = 0; i < k * n; ++i) {
    b[i / n * ldb + i % n] = static_cast<float>(NormalAt(1, 2, i));
  }
  for (int64_t i = 0; i < m * k; ++i) dense_a[i] = a[i / k * lda + i % k];
  for (int64_t i = 0; i < k * n; ++i) dense_b[i] = b[i / n * ldb + i % n];
  Matmul({.m = m,
          .n = n,
          .k = k,
          .a = a.data(),
          .lda = lda,
          .b = b.data(),
          .ldb = ldb,
          .c = c.data(),
          .ldc = ldc});
  const reference::Array expected = reference::Product(dense_a, false, dense_b, false, m, n, k);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      if (j < n) {
        EXPECT_TRUE(std::abs(c[i * ldc + j] - expected[i * n + j]) <= 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(c[i * ldc + j]));
      }
    }
  }
}

// A row or column that is not finite spoils its own elements, all of them, and no others: what
// fills up panels and tiles meets no element of C.
template <typename T>
void ExpectOneSpoiledRowOrColumn() {
  const int64_t m = 19, n = 37, k = 21;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t at : {3, 20}) {  // of k: 20 is the last, which has no pair
      for (const bool in_a : {true, false}) {
        Values<T> a = Values<T>::Random(m * k, 1), b = Values<T>::Random(k * n, 2), c(m * n);
        (in_a ? a[(m - 1) * k + at] : b[at * n + n - 1]) = FromFloat<T>(bad);
        Matmul(Arguments({m, n, k}, a, b, c, Values<T>(0)));
        for (int64_t i = 0; i < m * n; ++i) {
          EXPECT_EQ(std::isfinite(ToFloat(c[i])), in_a ? i / n != m - 1 : i % n != n - 1) << i;
        }
      }
    }
  }
}

TEST_P(MatmulTest, NaNAndInfinitySpoilTheirRowAndColumnAndNoOthers) {
  ExpectOneSpoiledRowOrColumn<float>();
  ExpectOneSpoiledRowOrColumn<BFloat16>();
}

TEST_P(MatmulTest, OfNoTermsIsWhatIsAdded) {
  const Floats nothing(0), bias = Floats::Random(6, 4);
  Floats c = Floats::Random(5 * 6, 3);
  const Floats before = c;
  Matmul(Arguments({.m = 5, .n = 6, .k = 0, .beta = 1}, nothing, nothing, c, bias));
  EXPECT_TRUE(c.HasTheBitsOf(before));
  Matmul(Arguments({.m = 5, .n = 6, .k = 0, .bias = true}, nothing, nothing, c, bias));
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(c[i], bias[i % 6]);
  Matmul(Arguments({.m = 5, .n = 6, .k = 0}, nothing, nothing, c, bias));
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(c[i], 0);
  Floats untouched(4);
  Matmul(Arguments({.m = 0, .n = 2, .k = 2}, untouched, untouched, untouched, nothing));
  Matmul(Arguments({.m = 2, .n = 0, .k = 2}, untouched, untouched, untouched, nothing));
  for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(untouched[i]));
}

TEST_P(MatmulTest, IsTheSameFromSeveralThreadsAtOnce) {
  const Case x{60, 250, 400};
  const Floats a = Floats::Random(x.m * x.k, 1), b = Floats::Random(x.k * x.n, 2), none(0);
  Floats expected(x.m * x.n);
  Matmul(Arguments(x, a, b, expected, none));
  std::vector<Floats> results(6, Floats(x.m * x.n));
  {
    std::vector<std::jthread> threads;
    for (Floats& c : results) {
      threads.emplace_back([&] {
        for (int i = 0; i < 5; ++i) Matmul(Arguments(x, a, b, c, none));
      });
    }
  }
  for (const Floats& c : results) EXPECT_TRUE(c.HasTheBitsOf(expected));
}

template <typename T, typename G>
struct LinearResults {
  Values<T> y, dx, logits, dhidden;
  Values<G> dw, dbias, dwte;
};

// A linear layer, and a head of vocabulary `in` and width `out`, on `count` threads.
template <typename T, typename G>
LinearResults<T, G> ComputeLinear(int count, int64_t rows, int64_t in, int64_t out) {
  const auto x = Values<T>::Random(rows * in, 1), w = Values<T>::Random(in * out, 2, 0.3);
  const auto bias = Values<T>::Random(out, 3), dy = Values<T>::Random(rows * out, 4);
  LinearResults<T, G> r{.y = Values<T>(rows * out),
                        .dx = Values<T>(rows * in),
                        .logits = Values<T>(rows * in),
                        .dhidden = Values<T>(rows * out),
                        .dw = Values<G>::Random(in * out, 5),
                        .dbias = Values<G>::Random(out, 6),
                        .dwte = Values<G>::Random(in * out, 7)};
  TestThreads threads(count);
  host::LinearForward(threads, r.y.data(), x.data(), w.data(), bias.data(), rows, in, out);
  host::LinearBackward(threads, r.dx.data(), r.dw.data(), r.dbias.data(), dy.data(), x.data(),
                       w.data(), rows, in, out);
  host::HeadForward(threads, r.logits.data(), dy.data(), w.data(), rows, out, in);
  host::HeadBackward(threads, r.dhidden.data(), r.dwte.data(), x.data(), dy.data(), w.data(), rows,
                     out, in);
  EXPECT_TRUE(r.y.GuardsAreIntact() && r.dx.GuardsAreIntact() && r.logits.GuardsAreIntact() &&
              r.dhidden.GuardsAreIntact() && r.dw.GuardsAreIntact() && r.dbias.GuardsAreIntact() &&
              r.dwte.GuardsAreIntact());
  return r;
}

template <typename T, typename G>
void ExpectEqualBits(const LinearResults<T, G>& a, const LinearResults<T, G>& b) {
  EXPECT_TRUE(a.y.HasTheBitsOf(b.y));
  EXPECT_TRUE(a.dx.HasTheBitsOf(b.dx));
  EXPECT_TRUE(a.logits.HasTheBitsOf(b.logits));
  EXPECT_TRUE(a.dhidden.HasTheBitsOf(b.dhidden));
  EXPECT_TRUE(a.dw.HasTheBitsOf(b.dw));
  EXPECT_TRUE(a.dbias.HasTheBitsOf(b.dbias));
  EXPECT_TRUE(a.dwte.HasTheBitsOf(b.dwte));
}

TEST_P(MatmulTest, ALinearLayerHasTheSameBitsOnEveryNumberOfThreads) {
  for (const auto& [rows, in, out] :
       {std::array{1, 1, 1}, {7, 33, 99}, {129, 101, 33}, {200, 64, 256}, {450, 70, 40}}) {
    const auto floats = ComputeLinear<float, float>(1, rows, in, out);
    const auto bf16s = ComputeLinear<BFloat16, BFloat16>(1, rows, in, out);
    const auto mixed = ComputeLinear<BFloat16, float>(1, rows, in, out);
    for (const int count : {2, 3, 8}) {
      ExpectEqualBits(ComputeLinear<float, float>(count, rows, in, out), floats);
      ExpectEqualBits(ComputeLinear<BFloat16, BFloat16>(count, rows, in, out), bf16s);
      ExpectEqualBits(ComputeLinear<BFloat16, float>(count, rows, in, out), mixed);
    }
  }
}

// Inputs and old gradients are the same numbers in all types here, so each result in bf16 is the
// rounded result in fp32.
TEST_P(MatmulTest, ALinearLayerInBf16IsThatInFp32RoundedOnce) {
  const int64_t rows = 450, in = 70, out = 40;
  const auto x = Bf16s::Random(rows * in, 1), w = Bf16s::Random(in * out, 2, 0.3);
  const auto bias = Bf16s::Random(out, 3), dy = Bf16s::Random(rows * out, 4);
  Bf16s y(rows * out), dx(rows * in), dw = w, dbias = bias;
  Floats wide_y(rows * out), wide_dx(rows * in), wide_dw = w.As<float>();
  Floats wide_dbias = bias.As<float>(), mixed_dw = wide_dw, mixed_dbias = wide_dbias;
  Bf16s mixed_dx(rows * in);
  const Floats wide_x = x.As<float>(), wide_w = w.As<float>(), wide_dy = dy.As<float>();
  const Floats wide_bias = bias.As<float>();
  TestThreads threads(2);
  host::LinearForward(threads, y.data(), x.data(), w.data(), bias.data(), rows, in, out);
  host::LinearForward(threads, wide_y.data(), wide_x.data(), wide_w.data(), wide_bias.data(), rows,
                      in, out);
  EXPECT_TRUE(y.HasTheBitsOf(wide_y.As<BFloat16>()));
  host::LinearBackward(threads, dx.data(), dw.data(), dbias.data(), dy.data(), x.data(), w.data(),
                       rows, in, out);
  host::LinearBackward(threads, mixed_dx.data(), mixed_dw.data(), mixed_dbias.data(), dy.data(),
                       x.data(), w.data(), rows, in, out);
  host::LinearBackward(threads, wide_dx.data(), wide_dw.data(), wide_dbias.data(), wide_dy.data(),
                       wide_x.data(), wide_w.data(), rows, in, out);
  EXPECT_TRUE(dx.HasTheBitsOf(wide_dx.As<BFloat16>()));
  EXPECT_TRUE(dw.HasTheBitsOf(wide_dw.As<BFloat16>()));
  EXPECT_TRUE(dbias.HasTheBitsOf(wide_dbias.As<BFloat16>()));
  EXPECT_TRUE(mixed_dx.HasTheBitsOf(dx));
  EXPECT_TRUE(mixed_dw.HasTheBitsOf(wide_dw));
  EXPECT_TRUE(mixed_dbias.HasTheBitsOf(wide_dbias));
}

// Attention too computes in fp32 on the widened numbers. Backward takes what forward wrote, so it
// is compared from the same output.
TEST_P(MatmulTest, AttentionInBf16IsThatInFp32RoundedOnceAndTheSameOnEveryNumberOfThreads) {
  struct AttentionCase {
    SequenceShape shape;
    int64_t heads;
    float p;
  };
  for (const AttentionCase& c : {AttentionCase{{1, 1, 4}, 1, 0},
                                 {{3, 17, 33}, 3, 0.2f},
                                 {{2, 129, 80}, 2, 0},
                                 {{1, 200, 64}, 2, 0.1f}}) {
    const auto [shape, heads, p] = c;
    const int64_t n = shape.elements(), T = shape.positions;
    const TestDropout dropout(p, shape.batch, DropoutSite::kAttention, heads * T * T);
    const Bf16s qkv = Bf16s::Random(3 * n, 1, 1.5), dout = Bf16s::Random(n, 2);
    const Floats wide_qkv = qkv.As<float>(), wide_dout = dout.As<float>();
    Floats wide_out(n), l(shape.rows() * heads), wide_dqkv(3 * n);
    TestThreads one(1);
    host::AttentionForward(one, wide_out.data(), l.data(), wide_qkv.data(), shape, heads,
                           dropout.mask);
    const Bf16s expected = wide_out.As<BFloat16>();
    const Floats wide_expected = expected.As<float>();
    host::AttentionBackward(one, wide_dqkv.data(), wide_dout.data(), wide_qkv.data(),
                            wide_expected.data(), l.data(), shape, heads, dropout.mask);
    for (const int count : {1, 2, 5}) {
      TestThreads threads(count);
      Bf16s out(n), dqkv(3 * n);
      Floats logsumexp(shape.rows() * heads), again(n), dagain(3 * n);
      host::AttentionForward(threads, out.data(), logsumexp.data(), qkv.data(), shape, heads,
                             dropout.mask);
      EXPECT_TRUE(out.HasTheBitsOf(expected));
      EXPECT_TRUE(logsumexp.HasTheBitsOf(l));
      host::AttentionBackward(threads, dqkv.data(), dout.data(), qkv.data(), out.data(),
                              logsumexp.data(), shape, heads, dropout.mask);
      EXPECT_TRUE(dqkv.HasTheBitsOf(wide_dqkv.As<BFloat16>()));
      EXPECT_TRUE(out.GuardsAreIntact() && dqkv.GuardsAreIntact());
      host::AttentionForward(threads, again.data(), logsumexp.data(), wide_qkv.data(), shape, heads,
                             dropout.mask);
      EXPECT_TRUE(again.HasTheBitsOf(wide_out));
      host::AttentionBackward(threads, dagain.data(), wide_dout.data(), wide_qkv.data(),
                              wide_expected.data(), logsumexp.data(), shape, heads, dropout.mask);
      EXPECT_TRUE(dagain.HasTheBitsOf(wide_dqkv));
    }
  }
}

}  // namespace
}  // namespace zerobox
