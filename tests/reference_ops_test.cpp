// SPDX-License-Identifier: Apache-2.0
//
// The references' gradients against central differences of their forwards: for a fixed random r and
// loss(x) = sum r f(x), dloss/dx_i must be (loss(x + h e_i) - loss(x - h e_i)) / 2h.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "ops/philox.h"
#include "tests/reference.h"

namespace zerobox::reference {
namespace {

Array Random(int64_t n, uint64_t stream) {
  Array x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = NormalAt(7, stream, i);
  return x;
}

double Dot(const Array& a, const Array& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void ExpectGradient(const Array& gradient, Array x,
                    const std::function<double(const Array&)>& loss) {
  ASSERT_EQ(gradient.size(), x.size());
  constexpr double h = 1e-5;
  for (size_t i = 0; i < x.size(); ++i) {
    const double x_i = x[i];
    x[i] = x_i + h;
    const double above = loss(x);
    x[i] = x_i - h;
    const double below = loss(x);
    x[i] = x_i;
    const double difference = (above - below) / (2 * h);
    EXPECT_TRUE(std::abs(difference - gradient[i]) <= 1e-7 * (1 + std::abs(difference)))
        << "element " << i << ": " << gradient[i] << ", difference " << difference;
  }
}

TEST(Reference, GeluGradientIsTheSlope) {
  const Array x = Random(20, 1), r = Random(20, 2);
  ExpectGradient(GeluGradient(x, r), x, [&](const Array& v) { return Dot(r, Gelu(v)); });
}

TEST(Reference, LayerNormGradientIsTheSlope) {
  const int64_t rows = 3, C = 5;
  const Array x = Random(rows * C, 1), w = Random(C, 2), b = Random(C, 3), r = Random(rows * C, 4);
  const LayerNormGradients g = LayerNormGradient(r, x, w, rows);
  ExpectGradient(g.dx, x, [&](const Array& v) { return Dot(r, LayerNorm(v, w, b, rows).out); });
  ExpectGradient(g.dweight, w,
                 [&](const Array& v) { return Dot(r, LayerNorm(x, v, b, rows).out); });
  ExpectGradient(g.dbias, b, [&](const Array& v) { return Dot(r, LayerNorm(x, w, v, rows).out); });
}

TEST(Reference, LinearGradientIsTheSlope) {
  const int64_t rows = 3, in = 4, out = 5;
  const Array x = Random(rows * in, 1), w = Random(in * out, 2), b = Random(out, 3);
  const Array r = Random(rows * out, 4);
  ExpectGradient(Product(r, false, w, true, rows, in, out), x,
                 [&](const Array& v) { return Dot(r, Linear(v, w, b, rows)); });
  ExpectGradient(Product(x, true, r, false, in, out, rows), w,
                 [&](const Array& v) { return Dot(r, Linear(x, v, b, rows)); });
  ExpectGradient(ColumnSums(r, rows), b,
                 [&](const Array& v) { return Dot(r, Linear(x, w, v, rows)); });
}

TEST(Reference, AttentionGradientIsTheSlopeWithAndWithoutDropout) {
  const SequenceShape shape{2, 4, 6};
  const int64_t heads = 3;
  const std::vector<int64_t> samples = {5, 9};
  const Array qkv = Random(3 * shape.elements(), 1), r = Random(shape.elements(), 2);
  for (const float p : {0.0f, 0.4f}) {
    const Array factors = DropoutFactors(p, 3, samples, 1, DropoutSite::kAttention, heads * 4 * 4);
    ExpectGradient(AttentionGradient(r, qkv, shape, heads, factors), qkv,
                   [&](const Array& v) { return Dot(r, Attention(v, shape, heads, factors).out); });
  }
}

TEST(Reference, CrossEntropyGradientIsTheSlope) {
  const Tokens targets = {2, -1, 0, 6};
  const Array logits = Random(4 * 7, 1), scale(4, 0.3);
  ExpectGradient(CrossEntropyGradient(logits, targets, 0.3), logits,
                 [&](const Array& v) { return Dot(scale, CrossEntropy(v, targets)); });
}

TEST(Reference, EmbeddingGradientIsTheSlope) {
  const SequenceShape shape{2, 3, 5};
  const Tokens tokens = {1, 0, 1, 3, 3, 1};
  const std::vector<int64_t> samples = {5, 9};
  const Array wte = Random(4 * 5, 1), wpe = Random(3 * 5, 2), r = Random(shape.elements(), 3);
  const Array factors = DropoutFactors(0.3f, 3, samples, 0, DropoutSite::kEmbedding, 3 * 5);
  const EmbeddingGradients g = EmbeddingGradient(r, tokens, 4, shape, factors);
  ExpectGradient(g.dwte, wte,
                 [&](const Array& v) { return Dot(r, Embedding(tokens, v, wpe, shape, factors)); });
  ExpectGradient(g.dwpe, wpe,
                 [&](const Array& v) { return Dot(r, Embedding(tokens, wte, v, shape, factors)); });
}

}  // namespace
}  // namespace zerobox::reference
