// SPDX-License-Identifier: Apache-2.0
//
// The host kernels against the references in double precision, for every SIMD target of this CPU,
// odd shapes, and 1, 2 and 3 threads. Tolerances are relative to the largest element expected: a
// few roundings of fp32 (6e-8) where an element is computed by itself, more where sums of many
// terms are taken.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "ops/host/kernels.h"
#include "tests/reference.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

using reference::Array;
using reference::Tokens;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class KernelTest : public SimdTargetTest {};
ZEROBOX_FOR_EACH_SIMD_TARGET(KernelTest);

TEST_P(KernelTest, GeluIsTheTanhForm) {
  Floats x = Floats::Random(10001, 1, 3);
  x[0] = -30;
  x[1] = 30;
  x[2] = 0;
  x[3] = -1e-20f;
  const Floats dout = Floats::Random(x.size(), 2);
  for (const int count : {1, 2, 3}) {
    TestThreads threads(count);
    Floats out(x.size()), dx(x.size());
    host::GeluForward(threads, out.data(), x.data(), x.size());
    ExpectClose(out, reference::Gelu(x.Doubles()), 2e-7, "gelu");
    host::GeluBackward(threads, dx.data(), x.data(), dout.data(), x.size());
    ExpectClose(dx, reference::GeluGradient(x.Doubles(), dout.Doubles()), 3e-7, "dx");
    Floats in_place = dout;
    host::GeluBackward(threads, in_place.data(), x.data(), in_place.data(), x.size());
    EXPECT_TRUE(in_place.HasTheBitsOf(dx));
  }
}

TEST_P(KernelTest, GeluIsAccurateInItsTails) {
  // Each element relative to itself: x (1 + tanh u) / 2 computed as written would lose all digits.
  TestThreads threads(1);
  for (double x = -4; x < 4; x += 0.01) {
    const float input = static_cast<float>(x);
    float out;
    host::GeluForward(threads, &out, &input, 1);
    const double u = 0.7978845608028654 * (input + 0.044715 * std::pow(input, 3));
    const double expected = input / (1 + std::exp(-2 * u));
    EXPECT_TRUE(std::abs(out - expected) <= 2e-6 * std::abs(expected)) << x;
  }
}

TEST_P(KernelTest, NaNAndInfinityDoNotVanish) {
  TestThreads threads(1);
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const int64_t at : {0, 16, 18}) {
      Floats x = Floats::Random(19, 1), ones = Floats(Array(19, 1)), out(19), dx(19);
      x[at] = bad;
      host::GeluForward(threads, out.data(), x.data(), 19);
      EXPECT_FALSE(std::isfinite(out[at])) << bad;
      ones[at] = bad;
      x[at] = 1;
      host::GeluBackward(threads, dx.data(), x.data(), ones.data(), 19);
      EXPECT_FALSE(std::isfinite(dx[at])) << bad;
      Floats row = Floats::Random(19, 1), zeros = Floats(Array(19, 0)), mean(1), rstd(1);
      row[at] = bad;
      host::LayerNormForward(threads, out.data(), mean.data(), rstd.data(), row.data(), ones.data(),
                             zeros.data(), 1, 19);
      EXPECT_TRUE(std::isnan(out[0])) << bad;
      if (bad < 0) continue;  // a logit of minus infinity is a probability of 0
      const int32_t target = 1;
      Floats logits = row, loss(1);
      host::CrossEntropyForward(threads, loss.data(), logits.data(), &target, 1, 19);
      EXPECT_FALSE(std::isfinite(loss[0])) << bad;
      host::CrossEntropyBackward(threads, logits.data(), &target, 1, 19, 1);
      EXPECT_TRUE(std::isnan(logits[at])) << bad;
      double squares = 0;
      host::AccumulateSquares(threads, &squares, row.data(), 19);
      EXPECT_FALSE(std::isfinite(squares)) << bad;
    }
  }
}

TEST_P(KernelTest, LayerNormAgreesWithTheReference) {
  for (const auto& [rows, C] : {std::pair{1, 1}, {7, 33}, {65, 128}, {129, 101}, {40, 384}}) {
    Floats x = Floats::Random(rows * C, 1);
    for (int64_t i = 0; i < x.size(); ++i) x[i] += 3;
    const Floats weight = Floats::Random(C, 2), bias = Floats::Random(C, 3);
    const Floats dout = Floats::Random(rows * C, 4), old = Floats::Random(rows * C, 5);
    const auto forward = reference::LayerNorm(x.Doubles(), weight.Doubles(), bias.Doubles(), rows);
    const auto gradients =
        reference::LayerNormGradient(dout.Doubles(), x.Doubles(), weight.Doubles(), rows);
    for (const int count : {1, 2, 3}) {
      TestThreads threads(count);
      Floats out(rows * C), mean(rows), rstd(rows);
      host::LayerNormForward(threads, out.data(), mean.data(), rstd.data(), x.data(), weight.data(),
                             bias.data(), rows, C);
      ExpectClose(out, forward.out, 2e-6, "out");
      ExpectClose(mean, forward.mean, 1e-6, "mean");
      ExpectClose(rstd, forward.rstd, 1e-6, "rstd");
      Floats dx = old, dweight = weight, dbias = bias;  // gradients are added to
      host::LayerNormBackward(threads, dx.data(), dweight.data(), dbias.data(), dout.data(),
                              x.data(), mean.data(), rstd.data(), weight.data(), rows, C);
      if (C > 1) ExpectClose(dx, old.Doubles() + gradients.dx, 1e-5, "dx");
      ExpectClose(dweight, weight.Doubles() + gradients.dweight, 3e-6, "dweight");
      ExpectClose(dbias, bias.Doubles() + gradients.dbias, 3e-6, "dbias");
    }
  }
}

TEST_P(KernelTest, CrossEntropyAgreesWithTheReferenceAndIgnoresTargetMinusOne) {
  for (const auto& [rows, V] : {std::pair{1, 2}, {7, 101}, {33, 256}, {3, 5003}}) {
    Floats logits = Floats::Random(rows * V, 1, 4);
    Tokens targets = RandomTokens(rows, V);
    if (rows > 2) targets[1] = targets[rows - 1] = -1;
    logits[0] = 200;  // an exponential of this overflows
    for (const int count : {1, 2, 3}) {
      TestThreads threads(count);
      Floats losses(rows), gradient = logits;
      host::CrossEntropyForward(threads, losses.data(), logits.data(), targets.data(), rows, V);
      ExpectClose(losses, reference::CrossEntropy(logits.Doubles(), targets), 1e-6, "loss");
      host::CrossEntropyBackward(threads, gradient.data(), targets.data(), rows, V, 0.125f);
      ExpectClose(gradient, reference::CrossEntropyGradient(logits.Doubles(), targets, 0.125), 1e-6,
                  "dlogits");
      if (rows > 2) {
        EXPECT_EQ(losses[1], 0);
        for (int64_t i = V; i < 2 * V; ++i) EXPECT_EQ(gradient[i], 0);
      }
    }
  }
}

TEST_P(KernelTest, EmbeddingAgreesWithTheReference) {
  const int64_t V = 11;  // small, so that tokens repeat
  for (const SequenceShape shape : {SequenceShape{1, 7, 33}, {3, 17, 101}, {2, 5, 1100}}) {
    const int64_t C = shape.channels, T = shape.positions;
    const Tokens tokens = RandomTokens(shape.rows(), V);
    const Floats wte = Floats::Random(V * C, 1), wpe = Floats::Random((T + 2) * C, 2);
    const Floats dout = Floats::Random(shape.elements(), 3);
    for (const float p : {0.0f, 0.3f}) {
      const TestDropout dropout(p, shape.batch, DropoutSite::kEmbedding, T * C);
      const Array expected =
          reference::Embedding(tokens, wte.Doubles(), wpe.Doubles(), shape, dropout.factors);
      auto gradients =
          reference::EmbeddingGradient(dout.Doubles(), tokens, V, shape, dropout.factors);
      gradients.dwpe.resize((T + 2) * C);  // positions behind T have no gradient
      for (const int count : {1, 2, 3}) {
        TestThreads threads(count);
        Floats out(shape.elements());
        host::EmbeddingForward(threads, out.data(), tokens.data(), wte.data(), wpe.data(), shape,
                               dropout.mask);
        ExpectClose(out, expected, 2e-7, "out");
        Floats dwte = wte, dwpe = wpe;
        host::EmbeddingBackward(threads, dwte.data(), dwpe.data(), dout.data(), tokens.data(),
                                shape, dropout.mask);
        ExpectClose(dwte, wte.Doubles() + gradients.dwte, 1e-6, "dwte");
        ExpectClose(dwpe, wpe.Doubles() + gradients.dwpe, 1e-6, "dwpe");
      }
    }
  }
}

TEST_P(KernelTest, ResidualAndDropoutAgreeWithTheReferenceAlsoInPlace) {
  for (const SequenceShape shape : {SequenceShape{1, 7, 33}, {3, 65, 33}, {2, 129, 101}}) {
    const int64_t n = shape.elements();
    const Floats x = Floats::Random(n, 1), branch = Floats::Random(n, 2);
    for (const float p : {0.0f, 0.1f, 0.5f}) {
      const TestDropout dropout(p, shape.batch, DropoutSite::kMlpOutput,
                                shape.positions * shape.channels);
      Array expected = x.Doubles(), gradient = branch.Doubles();
      for (int64_t i = 0; i < n; ++i) {
        expected[i] += dropout.factors[i] * branch[i];
        gradient[i] *= dropout.factors[i];
      }
      for (const int count : {1, 2, 3}) {
        TestThreads threads(count);
        Floats out(n), over_x = x, over_branch = branch, dbranch(n), in_place = branch;
        host::ResidualForward(threads, out.data(), x.data(), branch.data(), shape, dropout.mask);
        ExpectClose(out, expected, 2e-7, "out");
        host::ResidualForward(threads, over_x.data(), over_x.data(), branch.data(), shape,
                              dropout.mask);
        EXPECT_TRUE(over_x.HasTheBitsOf(out));
        host::ResidualForward(threads, over_branch.data(), x.data(), over_branch.data(), shape,
                              dropout.mask);
        EXPECT_TRUE(over_branch.HasTheBitsOf(out));
        host::DropoutBackward(threads, dbranch.data(), branch.data(), shape, dropout.mask);
        ExpectClose(dbranch, gradient, 2e-7, "dbranch");
        host::DropoutBackward(threads, in_place.data(), in_place.data(), shape, dropout.mask);
        EXPECT_TRUE(in_place.HasTheBitsOf(dbranch));
      }
    }
  }
}

TEST_P(KernelTest, AttentionAgreesWithTheReference) {
  struct Case {
    SequenceShape shape;
    int64_t heads;
  };
  for (const Case& c : {Case{{1, 1, 4}, 1},
                        {{3, 7, 33}, 3},
                        {{1, 17, 32}, 1},
                        {{2, 65, 33}, 3},
                        {{1, 129, 48}, 2},
                        {{1, 200, 16}, 1}}) {
    const auto [shape, heads] = c;
    const int64_t T = shape.positions;
    const Floats qkv = Floats::Random(3 * shape.elements(), 1, 1.5);
    const Floats dout = Floats::Random(shape.elements(), 2);
    for (const float p : {0.0f, 0.2f}) {
      const TestDropout dropout(p, shape.batch, DropoutSite::kAttention, heads * T * T);
      const auto expected = reference::Attention(qkv.Doubles(), shape, heads, dropout.factors);
      const Array gradient = reference::AttentionGradient(dout.Doubles(), qkv.Doubles(), shape,
                                                          heads, dropout.factors);
      for (const int count : {1, 2, 3}) {
        TestThreads threads(count);
        Floats out(shape.elements()), logsumexp(shape.rows() * heads), dqkv(qkv.size());
        host::AttentionForward(threads, out.data(), logsumexp.data(), qkv.data(), shape, heads,
                               dropout.mask);
        ExpectClose(out, expected.out, 3e-6, "out");
        ExpectClose(logsumexp, expected.logsumexp, 1e-6, "logsumexp");
        host::AttentionBackward(threads, dqkv.data(), dout.data(), qkv.data(), out.data(),
                                logsumexp.data(), shape, heads, dropout.mask);
        ExpectClose(dqkv, gradient, 5e-6, "dqkv");
      }
    }
  }
}

TEST_P(KernelTest, AttentionLooksAtNoLaterPosition) {
  TestThreads threads(1);
  const SequenceShape shape{1, 130, 8};
  const Floats qkv = Floats::Random(3 * shape.elements(), 1);
  Floats changed = qkv, out(shape.elements()), out2(shape.elements()), l(2 * 130);
  for (int64_t i = 100 * 24; i < qkv.size(); ++i) changed[i] += 1;
  host::AttentionForward(threads, out.data(), l.data(), qkv.data(), shape, 2, {});
  host::AttentionForward(threads, out2.data(), l.data(), changed.data(), shape, 2, {});
  for (int64_t i = 0; i < 100 * 8; ++i) EXPECT_EQ(out[i], out2[i]) << i;
  EXPECT_NE(out[100 * 8], out2[100 * 8]);
}

TEST_P(KernelTest, SumsAreTakenInFp64AndDoNotDependOnThreads) {
  for (const int64_t n : {1, 7, 33, 1000, 200003}) {
    const Floats x = Floats::Random(n, 1);
    double sum = 0.5, squares = 0.25;
    for (int64_t i = 0; i < n; ++i) {
      sum += x[i];
      squares += static_cast<double>(x[i]) * x[i];
    }
    double first_sum = 0, first_squares = 0;
    for (const int count : {1, 2, 3, 8}) {
      TestThreads threads(count);
      double actual_sum = 0.5, actual_squares = 0.25;
      host::AccumulateSum(threads, &actual_sum, x.data(), n);
      host::AccumulateSquares(threads, &actual_squares, x.data(), n);
      EXPECT_TRUE(std::abs(actual_sum - sum) <= 1e-13 * static_cast<double>(n));
      EXPECT_TRUE(std::abs(actual_squares - squares) <= 1e-13 * squares);
      if (count == 1) {
        first_sum = actual_sum;
        first_squares = actual_squares;
      }
      EXPECT_EQ(actual_sum, first_sum);
      EXPECT_EQ(actual_squares, first_squares);
    }
  }
}

TEST_P(KernelTest, AddAddsAndColumnSumsAddUpRows) {
  for (const int count : {1, 2, 3}) {
    TestThreads threads(count);
    for (const auto& [rows, columns] : {std::pair{1, 1}, {70, 33}, {33, 300}, {100, 130}}) {
      const Floats x = Floats::Random(rows * columns, 1), y = Floats::Random(rows * columns, 2);
      Floats to = y, sums = Floats::Random(columns, 3);
      const Array before = sums.Doubles();
      host::Add(threads, to.data(), x.data(), x.size());
      ExpectClose(to, x.Doubles() + y.Doubles(), 1e-7, "to");
      host::AddColumnSums(threads, sums.data(), x.data(), rows, columns);
      ExpectClose(sums, before + reference::ColumnSums(x.Doubles(), rows), 1e-6, "sums");
    }
  }
}

TEST_P(KernelTest, AnElementHasTheSameBitsWhereverItStands) {
  // Element i of a long run, and alone in runs of 1 .. 40 elements at every alignment.
  TestThreads threads(1);
  const int64_t n = 60;
  const Floats x = Floats::Random(n, 1, 2), y = Floats::Random(n, 2);
  const auto run = [&](int64_t begin, int64_t count, int64_t shift) {
    const auto piece = [&](const Floats& whole) {
      Floats result(count, shift);
      std::copy_n(whole.data() + begin, count, result.data());
      return result;
    };
    const Floats a = piece(x), b = piece(y);
    std::array<Floats, 3> outs = {Floats(count, shift), Floats(count, shift), a};
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
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(part[k][i], whole[k][begin + i]) << k;
      }
    }
  }
}

TEST_P(KernelTest, ADropoutMaskDependsOnTheSampleAndNotOnItsRow) {
  TestThreads one(1), three(3);
  const SequenceShape shape{4, 9, 33}, single{1, 9, 33};
  const int64_t size = 9 * 33;
  const std::vector<int64_t> samples = {70, 8, int64_t{1} << 40, 9}, reversed = {9, 8, 7, 70};
  const Floats ones(Array(4 * size, 1));
  host::DropoutMask mask{.p = 0.25f, .seed = 1, .samples = samples.data()};
  Floats out(4 * size), other(4 * size), alone(size);
  host::DropoutBackward(one, out.data(), ones.data(), shape, mask);
  mask.samples = reversed.data();
  host::DropoutBackward(three, other.data(), ones.data(), shape, mask);
  mask.samples = &samples[2];
  host::DropoutBackward(one, alone.data(), ones.data(), single, mask);
  int64_t equal_12 = 0;
  for (int64_t i = 0; i < size; ++i) {
    EXPECT_EQ(out[i], other[3 * size + i]);     // sample 70
    EXPECT_EQ(out[size + i], other[size + i]);  // sample 8
    EXPECT_EQ(out[2 * size + i], alone[i]);     // sample 2^40
    equal_12 += out[i] == out[size + i] ? 1 : 0;
  }
  EXPECT_TRUE(equal_12 < size);              // different samples, different masks
  for (int field = 0; field < 3; ++field) {  // and so for seed, layer, site
    host::DropoutMask changed{.p = 0.25f, .seed = 1, .samples = samples.data()};
    if (field == 0) changed.seed = 2;
    if (field == 1) changed.layer = 1;
    if (field == 2) changed.site = DropoutSite::kAttentionOutput;
    host::DropoutBackward(one, other.data(), ones.data(), shape, changed);
    EXPECT_FALSE(other.HasTheBitsOf(out)) << field;
  }
}

TEST_P(KernelTest, DropoutKeepsOneMinusPOfTheElements) {
  TestThreads threads(1);
  const SequenceShape shape{1, 1000, 100};
  const int64_t sample = 3;
  const Floats ones(Array(shape.elements(), 1));
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    Floats out(shape.elements());
    host::DropoutBackward(threads, out.data(), ones.data(), shape,
                          {.p = p, .seed = 5, .samples = &sample});
    double kept = 0, sum = 0;
    for (int64_t i = 0; i < out.size(); ++i) {
      kept += out[i] != 0 ? 1 : 0;
      sum += out[i];
    }
    // Four standard deviations of the mean of 100,000 draws.
    const double deviation = std::sqrt(p * (1 - p) / 1e5);
    EXPECT_TRUE(std::abs(kept / 1e5 - (1 - p)) <= 4 * deviation) << p;
    EXPECT_TRUE(std::abs(sum / 1e5 - 1) <= 4 * deviation / (1 - p)) << p;
  }
}

TEST_P(KernelTest, LinearAndHeadAgreeWithTheReference) {
  for (const auto& [rows, in, out] :
       {std::array{1, 1, 1}, {7, 33, 99}, {129, 101, 33}, {200, 64, 256}}) {
    const Floats x = Floats::Random(rows * in, 1), w = Floats::Random(in * out, 2, 0.3);
    const Floats bias = Floats::Random(out, 3), dy = Floats::Random(rows * out, 4);
    const Floats old_dw = Floats::Random(in * out, 5), old_dbias = Floats::Random(out, 6);
    const Array X = x.Doubles(), W = w.Doubles(), DY = dy.Doubles();
    for (const int count : {1, 2, 3}) {
      TestThreads threads(count);
      Floats y(rows * out), dx(rows * in), dw = old_dw, dbias = old_dbias;
      host::LinearForward(threads, y.data(), x.data(), w.data(), bias.data(), rows, in, out);
      ExpectClose(y, reference::Linear(X, W, bias.Doubles(), rows), 2e-6, "y");
      host::LinearBackward(threads, dx.data(), dw.data(), dbias.data(), dy.data(), x.data(),
                           w.data(), rows, in, out);
      ExpectClose(dx, reference::Product(DY, false, W, true, rows, in, out), 2e-6, "dx");
      ExpectClose(dw, old_dw.Doubles() + reference::Product(X, true, DY, false, in, out, rows),
                  2e-6, "dw");
      ExpectClose(dbias, old_dbias.Doubles() + reference::ColumnSums(DY, rows), 2e-6, "dbias");
      // The head: w here is wte (V, C) with V = in, C = out.
      Floats logits(rows * in), dhidden(rows * out), dwte = old_dw;
      host::HeadForward(threads, logits.data(), dy.data(), w.data(), rows, out, in);
      ExpectClose(logits, reference::Product(DY, false, W, true, rows, in, out), 2e-6, "logits");
      host::HeadBackward(threads, dhidden.data(), dwte.data(), x.data(), dy.data(), w.data(), rows,
                         out, in);
      ExpectClose(dhidden, reference::Product(X, false, W, false, rows, out, in), 2e-6, "dhidden");
      ExpectClose(dwte, old_dw.Doubles() + reference::Product(X, true, DY, false, in, out, rows),
                  2e-6, "dwte");
    }
  }
}

TEST_P(KernelTest, EqualCallsGiveEqualBits) {
  const SequenceShape shape{2, 70, 33};
  const int64_t heads = 3;
  const TestDropout dropout(0.1f, 2, DropoutSite::kAttention, 1);
  const Floats qkv = Floats::Random(3 * shape.elements(), 1);
  const Floats w = Floats::Random(33 * 99, 2), bias = Floats::Random(99, 3);
  const Floats dout = Floats::Random(shape.elements(), 4);
  for (const int count : {1, 2, 3}) {
    std::vector<std::vector<Floats>> results;
    for (const int64_t shift : {0, 3, 1}) {  // and wherever the memory lies
      TestThreads threads(count);
      Floats in(3 * shape.elements(), shift), out(shape.elements(), shift);
      std::copy_n(qkv.data(), qkv.size(), in.data());
      Floats logsumexp(shape.rows() * heads, shift), dqkv(qkv.size(), shift);
      Floats y(shape.rows() * 99, shift), dx(shape.elements(), shift);
      Floats dw(Array(33 * 99, 0), shift), dbias(Array(99, 0), shift);
      host::AttentionForward(threads, out.data(), logsumexp.data(), in.data(), shape, heads,
                             dropout.mask);
      host::AttentionBackward(threads, dqkv.data(), dout.data(), in.data(), out.data(),
                              logsumexp.data(), shape, heads, dropout.mask);
      host::LinearForward(threads, y.data(), out.data(), w.data(), bias.data(), shape.rows(), 33,
                          99);
      host::LinearBackward(threads, dx.data(), dw.data(), dbias.data(), y.data(), out.data(),
                           w.data(), shape.rows(), 33, 99);
      results.push_back({out, logsumexp, dqkv, y, dx, dw, dbias});
    }
    for (size_t k = 0; k < results[0].size(); ++k) {
      EXPECT_TRUE(results[1][k].HasTheBitsOf(results[0][k])) << k;
      EXPECT_TRUE(results[2][k].HasTheBitsOf(results[0][k])) << k;
    }
  }
}

TEST(Fill, WritesOneValueOrNumbersThatDependOnTheIndexOnly) {
  for (const int count : {1, 2, 3}) {
    TestThreads threads(count);
    Floats constant(10001), normal(10001), middle(77);
    host::Fill(threads, constant.data(), constant.size(), 1.5f);
    host::FillNormal(threads, normal.data(), normal.size(), 9, 4, 0, 0.02f);
    host::FillNormal(threads, middle.data(), middle.size(), 9, 4, 4001, 0.02f);
    EXPECT_TRUE(constant.GuardsAreIntact() && normal.GuardsAreIntact());
    for (const int64_t i : {0, 1, 4095, 4096, 10000}) {
      EXPECT_EQ(constant[i], 1.5f);
      EXPECT_EQ(normal[i], static_cast<float>(0.02f * NormalAt(9, 4, i)));
    }
    for (int64_t i = 0; i < middle.size(); ++i) EXPECT_EQ(middle[i], normal[4001 + i]);
  }
}

}  // namespace
}  // namespace zerobox
