// SPDX-License-Identifier: Apache-2.0
//
// The host kernels in bf16: what they write is what the fp32 kernel computes from the same numbers,
// rounded once, bit by bit; and it agrees with the references in double precision to that rounding.
// For every SIMD target of this CPU, odd shapes, and 1, 2 and 3 threads. Matrix products and
// attention are in matmul_ops_test, AdamW is in adamw_test.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "tests/reference.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

using reference::Array;
using reference::Tokens;
using BFloat16s = Values<BFloat16>;

class Bf16KernelTest : public SimdTargetTest {};
ZEROBOX_FOR_EACH_SIMD_TARGET(Bf16KernelTest);

// One rounding to bf16 (2^-8 of an element) and a few of fp32, of the largest element.
constexpr double kRounding = 0x1p-8 + 1e-5;

// `actual` has the bits of `in_fp32`, rounded where it is bf16, and is near `expected`.
template <typename T>
void ExpectRounded(const Values<T>& actual, const Floats& in_fp32, const Array& expected,
                   const char* what) {
  EXPECT_TRUE(actual.HasTheBitsOf(in_fp32.As<T>())) << what;
  ExpectClose(actual, expected, kRounding, what);
}

// Calls test<G>() for both types of gradients.
template <typename Test>
void ForEachGradient(const Test& test) {
  test.template operator()<BFloat16>();
  test.template operator()<float>();
}

TEST_P(Bf16KernelTest, Gelu) {
  const int64_t n = 10001;
  const BFloat16s x = BFloat16s::Random(n, 1, 3), dout = BFloat16s::Random(n, 2);
  const Floats wide_x = x.As<float>(), wide_dout = dout.As<float>();
  for (const int count : {1, 2, 3}) {
    TestThreads threads(count);
    BFloat16s out(n), dx(n), in_place = dout;
    Floats wide_out(n), wide_dx(n);
    host::GeluForward(threads, out.data(), x.data(), n);
    host::GeluForward(threads, wide_out.data(), wide_x.data(), n);
    ExpectRounded(out, wide_out, reference::Gelu(x.Doubles()), "out");
    host::GeluBackward(threads, dx.data(), x.data(), dout.data(), n);
    host::GeluBackward(threads, wide_dx.data(), wide_x.data(), wide_dout.data(), n);
    ExpectRounded(dx, wide_dx, reference::GeluGradient(x.Doubles(), dout.Doubles()), "dx");
    host::GeluBackward(threads, in_place.data(), x.data(), in_place.data(), n);
    EXPECT_TRUE(in_place.HasTheBitsOf(dx));
  }
}

template <typename G>
void TestLayerNorm(int64_t rows, int64_t C, int threads_count) {
  TestThreads threads(threads_count);
  const BFloat16s x = BFloat16s::Random(rows * C, 1), weight = BFloat16s::Random(C, 2);
  const BFloat16s bias = BFloat16s::Random(C, 3), dout = BFloat16s::Random(rows * C, 4);
  const BFloat16s old_dx = BFloat16s::Random(rows * C, 5);
  const Values<G> old_dweight = Values<G>::Random(C, 6), old_dbias = Values<G>::Random(C, 7);
  const Floats fx = x.As<float>(), fweight = weight.As<float>(), fbias = bias.As<float>();
  const Floats fdout = dout.As<float>();
  const auto forward = reference::LayerNorm(x.Doubles(), weight.Doubles(), bias.Doubles(), rows);
  const auto gradients =
      reference::LayerNormGradient(dout.Doubles(), x.Doubles(), weight.Doubles(), rows);

  BFloat16s out(rows * C);
  Floats fout(rows * C), mean(rows), rstd(rows), fmean(rows), frstd(rows);
  host::LayerNormForward(threads, out.data(), mean.data(), rstd.data(), x.data(), weight.data(),
                         bias.data(), rows, C);
  host::LayerNormForward(threads, fout.data(), fmean.data(), frstd.data(), fx.data(),
                         fweight.data(), fbias.data(), rows, C);
  ExpectRounded(out, fout, forward.out, "out");
  EXPECT_TRUE(mean.HasTheBitsOf(fmean) && rstd.HasTheBitsOf(frstd));  // statistics stay fp32

  BFloat16s dx = old_dx;
  Values<G> dweight = old_dweight, dbias = old_dbias;
  Floats fdx = dx.As<float>(), fdweight = dweight.template As<float>();
  Floats fdbias = dbias.template As<float>();
  host::LayerNormBackward(threads, dx.data(), dweight.data(), dbias.data(), dout.data(), x.data(),
                          mean.data(), rstd.data(), weight.data(), rows, C);
  host::LayerNormBackward(threads, fdx.data(), fdweight.data(), fdbias.data(), fdout.data(),
                          fx.data(), mean.data(), rstd.data(), fweight.data(), rows, C);
  ExpectRounded(dx, fdx, old_dx.Doubles() + gradients.dx, "dx");
  ExpectRounded(dweight, fdweight, old_dweight.Doubles() + gradients.dweight, "dweight");
  ExpectRounded(dbias, fdbias, old_dbias.Doubles() + gradients.dbias, "dbias");
}

TEST_P(Bf16KernelTest, LayerNorm) {
  for (const auto& [rows, C] : {std::pair{7, 33}, {65, 128}, {129, 101}, {40, 384}}) {
    for (const int count : {1, 2, 3}) {
      TestLayerNorm<BFloat16>(rows, C, count);
      TestLayerNorm<float>(rows, C, count);
    }
  }
}

TEST_P(Bf16KernelTest, CrossEntropy) {
  for (const auto& [rows, V] : {std::pair{1, 2}, {7, 101}, {33, 256}, {3, 5003}}) {
    BFloat16s logits = BFloat16s::Random(rows * V, 1, 4);
    Tokens targets = RandomTokens(rows, V);
    if (rows > 2) targets[1] = targets[rows - 1] = -1;
    logits[0] = ToBFloat16(200);
    const Floats wide = logits.As<float>();
    for (const int count : {1, 2, 3}) {
      TestThreads threads(count);
      Floats losses(rows), wide_losses(rows), wide_gradient = wide;
      BFloat16s gradient = logits;
      host::CrossEntropyForward(threads, losses.data(), logits.data(), targets.data(), rows, V);
      host::CrossEntropyForward(threads, wide_losses.data(), wide.data(), targets.data(), rows, V);
      EXPECT_TRUE(losses.HasTheBitsOf(wide_losses));
      ExpectClose(losses, reference::CrossEntropy(logits.Doubles(), targets), 1e-6, "losses");
      host::CrossEntropyBackward(threads, gradient.data(), targets.data(), rows, V, 0.125f);
      host::CrossEntropyBackward(threads, wide_gradient.data(), targets.data(), rows, V, 0.125f);
      ExpectRounded(gradient, wide_gradient,
                    reference::CrossEntropyGradient(logits.Doubles(), targets, 0.125), "dlogits");
    }
  }
}

template <typename G>
void TestEmbedding(SequenceShape shape, float p, int threads_count) {
  const int64_t V = 11;  // small, so that tokens repeat
  const int64_t C = shape.channels, T = shape.positions, n = shape.elements();
  TestThreads threads(threads_count);
  const Tokens tokens = RandomTokens(shape.rows(), V);
  const BFloat16s wte = BFloat16s::Random(V * C, 1), wpe = BFloat16s::Random(T * C, 2);
  const BFloat16s dout = BFloat16s::Random(n, 3);
  const Floats fwte = wte.As<float>(), fwpe = wpe.As<float>(), fdout = dout.As<float>();
  const TestDropout dropout(p, shape.batch, DropoutSite::kEmbedding, T * C);
  const auto gradients =
      reference::EmbeddingGradient(dout.Doubles(), tokens, V, shape, dropout.factors);

  BFloat16s out(n);
  Floats fout(n);
  host::EmbeddingForward(threads, out.data(), tokens.data(), wte.data(), wpe.data(), shape,
                         dropout.mask);
  host::EmbeddingForward(threads, fout.data(), tokens.data(), fwte.data(), fwpe.data(), shape,
                         dropout.mask);
  ExpectRounded(out, fout,
                reference::Embedding(tokens, wte.Doubles(), wpe.Doubles(), shape, dropout.factors),
                "out");

  const Values<G> old_dwte = Values<G>::Random(V * C, 4), old_dwpe = Values<G>::Random(T * C, 5);
  Values<G> dwte = old_dwte, dwpe = old_dwpe;
  Floats fdwte = dwte.template As<float>(), fdwpe = dwpe.template As<float>();
  host::EmbeddingBackward(threads, dwte.data(), dwpe.data(), dout.data(), tokens.data(), shape,
                          dropout.mask);
  host::EmbeddingBackward(threads, fdwte.data(), fdwpe.data(), fdout.data(), tokens.data(), shape,
                          dropout.mask);
  ExpectRounded(dwte, fdwte, old_dwte.Doubles() + gradients.dwte, "dwte");
  ExpectRounded(dwpe, fdwpe, old_dwpe.Doubles() + gradients.dwpe, "dwpe");
}

TEST_P(Bf16KernelTest, Embedding) {
  for (const SequenceShape shape : {SequenceShape{1, 7, 33}, {3, 17, 101}, {2, 5, 1100}}) {
    for (const float p : {0.0f, 0.3f}) {
      for (const int count : {1, 2, 3}) {
        TestEmbedding<BFloat16>(shape, p, count);
        TestEmbedding<float>(shape, p, count);
      }
    }
  }
}

TEST_P(Bf16KernelTest, ResidualAndDropout) {
  for (const SequenceShape shape : {SequenceShape{1, 7, 33}, {3, 65, 33}, {2, 129, 101}}) {
    const int64_t n = shape.elements();
    const BFloat16s x = BFloat16s::Random(n, 1), branch = BFloat16s::Random(n, 2);
    const Floats fx = x.As<float>(), fbranch = branch.As<float>();
    for (const float p : {0.0f, 0.1f}) {
      const TestDropout dropout(p, shape.batch, DropoutSite::kMlpOutput,
                                shape.positions * shape.channels);
      Array expected = x.Doubles(), gradient = branch.Doubles();
      for (int64_t i = 0; i < n; ++i) {
        gradient[i] *= dropout.factors[i];
        expected[i] += gradient[i];
      }
      for (const int count : {1, 2, 3}) {
        TestThreads threads(count);
        BFloat16s out(n), over_x = x, dbranch(n);
        Floats fout(n), fdbranch(n);
        host::ResidualForward(threads, out.data(), x.data(), branch.data(), shape, dropout.mask);
        host::ResidualForward(threads, fout.data(), fx.data(), fbranch.data(), shape, dropout.mask);
        ExpectRounded(out, fout, expected, "out");
        host::ResidualForward(threads, over_x.data(), over_x.data(), branch.data(), shape,
                              dropout.mask);
        EXPECT_TRUE(over_x.HasTheBitsOf(out));
        host::DropoutBackward(threads, dbranch.data(), branch.data(), shape, dropout.mask);
        host::DropoutBackward(threads, fdbranch.data(), fbranch.data(), shape, dropout.mask);
        ExpectRounded(dbranch, fdbranch, gradient, "dbranch");
      }
    }
  }
}

TEST_P(Bf16KernelTest, SumsOfSquaresAreThoseOfTheSameNumbersInFp32) {
  for (const int64_t n : {1, 7, 33, 1000, 200003}) {
    const BFloat16s x = BFloat16s::Random(n, 1);
    const Floats wide = x.As<float>();
    for (const int count : {1, 3}) {
      TestThreads threads(count);
      double squares = 0.25, wide_squares = 0.25;
      host::AccumulateSquares(threads, &squares, x.data(), n);
      host::AccumulateSquares(threads, &wide_squares, wide.data(), n);
      EXPECT_EQ(squares, wide_squares);
      EXPECT_TRUE(squares > 0.25);
    }
  }
}

TEST_P(Bf16KernelTest, AddAndColumnSums) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {70, 33}, {33, 300}, {100, 130}}) {
    const int64_t n = rows * columns;
    const BFloat16s x = BFloat16s::Random(n, 1), y = BFloat16s::Random(n, 2);
    const Floats fx = x.As<float>();
    for (const int count : {1, 2, 3}) {
      TestThreads threads(count);
      BFloat16s to = y;
      Floats fto = y.As<float>();
      host::Add(threads, to.data(), x.data(), n);
      host::Add(threads, fto.data(), fx.data(), n);
      ExpectRounded(to, fto, x.Doubles() + y.Doubles(), "to");
      ForEachGradient([&]<typename G>() {
        const Values<G> before = Values<G>::Random(columns, 3);
        Values<G> sums = before;
        Floats fsums = before.template As<float>();
        host::AddColumnSums(threads, sums.data(), x.data(), rows, columns);
        host::AddColumnSums(threads, fsums.data(), fx.data(), rows, columns);
        ExpectRounded(sums, fsums, before.Doubles() + reference::ColumnSums(x.Doubles(), rows),
                      "sums");
      });
    }
  }
}

TEST_P(Bf16KernelTest, GradientsOfManyRowsAreRoundedOnce) {
  // 512 rows of 2^-9 are 1. Added to 1 row by row they would vanish, as bf16 numbers above 1 are
  // 2^-7 apart.
  const int64_t rows = 512, C = 37;
  const BFloat16s small(Array(rows * C, 0x1p-9)), one(Array(C, 1)), two(Array(C, 2));
  const BFloat16s zeros(Array(rows * C, 0)), weight = one;
  const Floats mean(Array(rows, -1)), rstd(Array(rows, 1));  // normalized: 1 everywhere
  const std::vector<int32_t> tokens(rows, 0);
  for (const int count : {1, 2}) {
    TestThreads threads(count);
    BFloat16s sums = one, dweight = one, dbias = one, dx = zeros, dwte = one, dwpe = one;
    host::AddColumnSums(threads, sums.data(), small.data(), rows, C);
    EXPECT_TRUE(sums.HasTheBitsOf(two));
    host::LayerNormBackward(threads, dx.data(), dweight.data(), dbias.data(), small.data(),
                            zeros.data(), mean.data(), rstd.data(), weight.data(), rows, C);
    EXPECT_TRUE(dweight.HasTheBitsOf(two) && dbias.HasTheBitsOf(two));
    host::EmbeddingBackward(threads, dwte.data(), dwpe.data(), small.data(), tokens.data(),
                            {rows, 1, C}, {});  // one position, one token
    EXPECT_TRUE(dwte.HasTheBitsOf(two) && dwpe.HasTheBitsOf(two));
  }
}

TEST_P(Bf16KernelTest, AnElementHasTheSameBitsWhereverItStands) {
  TestThreads threads(1);
  const int64_t n = 60;
  const BFloat16s x = BFloat16s::Random(n, 1, 2), y = BFloat16s::Random(n, 2);
  const auto run = [&](int64_t begin, int64_t count, int64_t shift) {
    const auto piece = [&](const BFloat16s& whole) {
      BFloat16s result(count, shift);
      std::copy_n(whole.data() + begin, count, result.data());
      return result;
    };
    const BFloat16s a = piece(x), b = piece(y);
    std::vector<BFloat16s> outs = {BFloat16s(count, shift), BFloat16s(count, shift), a};
    host::GeluForward(threads, outs[0].data(), a.data(), count);
    host::GeluBackward(threads, outs[1].data(), a.data(), b.data(), count);
    host::Add(threads, outs[2].data(), b.data(), count);
    return outs;
  };
  const auto whole = run(0, n, 0);
  for (int64_t begin = 0; begin < 17; ++begin) {
    for (const int64_t count : {1, 3, 8, 15, 16, 17, 40}) {
      const auto part = run(begin, count, begin % 5);
      for (size_t k = 0; k < whole.size(); ++k) {
        EXPECT_TRUE(part[k].GuardsAreIntact());
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(part[k][i].bits, whole[k][begin + i].bits) << k;
        }
      }
    }
  }
}

TEST(Bf16Fill, WritesTheRoundedNumbers) {
  for (const int count : {1, 3}) {
    TestThreads threads(count);
    BFloat16s constant(10001), normal(10001);
    Floats wide(10001);
    host::Fill(threads, constant.data(), constant.size(), 0.3f);
    host::FillNormal(threads, normal.data(), normal.size(), 9, 4, 17, 0.02f);
    host::FillNormal(threads, wide.data(), wide.size(), 9, 4, 17, 0.02f);
    EXPECT_TRUE(constant.GuardsAreIntact() && normal.GuardsAreIntact());
    EXPECT_EQ(constant[0].bits, 0x3E9A);  // 0.30078125
    EXPECT_EQ(constant[10000].bits, 0x3E9A);
    EXPECT_TRUE(normal.HasTheBitsOf(wide.As<BFloat16>()));
  }
}

}  // namespace
}  // namespace zerobox
