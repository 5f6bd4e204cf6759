// SPDX-License-Identifier: Apache-2.0
//
// The ops of ops/ops.h as plain loops in double precision, for tests. Shapes are those of
// ops/ops.h; gradients are returned, not added to anything.
#ifndef ZEROBOX_TESTS_REFERENCE_H_
#define ZEROBOX_TESTS_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace zerobox::reference {

using Array = std::vector<double>;
using Tokens = std::vector<int32_t>;

// What dropout multiplies each of B samples of `sample_size` elements with: 0 or 1 / (1 - p).
Array DropoutFactors(float p, uint64_t seed, std::span<const int64_t> samples, int layer,
                     DropoutSite site, int64_t sample_size);

Array Gelu(const Array& x);
Array GeluGradient(const Array& x, const Array& dout);

struct LayerNormOut {
  Array out, mean, rstd;
};
LayerNormOut LayerNorm(const Array& x, const Array& weight, const Array& bias, int64_t rows);
struct LayerNormGradients {
  Array dx, dweight, dbias;
};
LayerNormGradients LayerNormGradient(const Array& dout, const Array& x, const Array& weight,
                                     int64_t rows);

// op(a) (m, k) op(b) (k, n).
Array Product(const Array& a, bool transpose_a, const Array& b, bool transpose_b, int64_t m,
              int64_t n, int64_t k);
Array ColumnSums(const Array& x, int64_t rows);
Array Linear(const Array& x, const Array& w, const Array& bias, int64_t rows);

// `factors` (B, H, T, T) are those of dropout on the probabilities.
struct AttentionOut {
  Array out, logsumexp;
};
AttentionOut Attention(const Array& qkv, SequenceShape shape, int64_t heads, const Array& factors);
Array AttentionGradient(const Array& dout, const Array& qkv, SequenceShape shape, int64_t heads,
                        const Array& factors);

Array CrossEntropy(const Array& logits, const Tokens& targets);
// Of scale times the sum of the losses.
Array CrossEntropyGradient(const Array& logits, const Tokens& targets, double scale);

Array Embedding(const Tokens& tokens, const Array& wte, const Array& wpe, SequenceShape shape,
                const Array& factors);
struct EmbeddingGradients {
  Array dwte, dwpe;
};
EmbeddingGradients EmbeddingGradient(const Array& dout, const Tokens& tokens, int64_t vocabulary,
                                     SequenceShape shape, const Array& factors);

}  // namespace zerobox::reference

#endif  // ZEROBOX_TESTS_REFERENCE_H_
