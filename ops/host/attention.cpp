// SPDX-License-Identifier: Apache-2.0
//
// Causal attention of one head over d = C/H channels (arXiv:1706.03762, section 3.2.1):
//   S = Q K^T / sqrt(d),  P = softmax of S over the keys that are not later than the query,
//   O = R P V,  R the dropout mask (1 / (1 - p) or 0, per element),  L = log sum_j e^S_j per query.
// Backward, from what is kept (Q, K, V, O, L) (arXiv:2205.14135, section 3.1 and appendix B):
//   P = e^(S - L),  dP = R dO V^T,  D = sum over channels of dO O  (= sum over keys of P dP),
//   dS = P (dP - D),  dQ = dS K / sqrt(d),  dK = dS^T Q / sqrt(d),  dV = (R P)^T dO.
//
// Queries are taken in blocks of 64, each against the keys [0, end of the block): a block's scores
// are all that is ever in memory, and keys later than the whole block are never looked at. The
// scores live in memory of the thread, which is kept for the next call. A task is one head of one
// sequence, and writes all of the head's results.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/attention.cpp"
#include <cmath>
#include <limits>
#include <vector>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/dropout-inl.h"
#include "ops/host/kernels.h"
#include "ops/host/matmul.h"
#include "ops/host/simd-inl.h"

#ifndef ZEROBOX_OPS_HOST_ATTENTION_ONCE
#define ZEROBOX_OPS_HOST_ATTENTION_ONCE
namespace zerobox::host {

// Scores of a block: row i is query first_query + i, the columns are keys [0, keys).
struct ScoreBlock {
  float* scores;
  int64_t stride;
  int64_t first_query, queries, keys;
  // The dropout element of (query, key) in the sample is element + query * positions + key.
  int64_t element, positions;
  int64_t sample_number;
};

}  // namespace zerobox::host
#endif

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// x[i] *= r[i] for the n keys of a query, of which the first is element `first` of the sample.
HWY_INLINE void DropRow(float* x, size_t n, uint64_t first, DropoutWords& words) {
  const hn::ScalableTag<float> d;
  ForDropoutRuns(words, first, n, [&](size_t begin, size_t count) HWY_ATTR {
    ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
      memory.Store(d, words.Apply(d, memory, i, memory.Load(d, x + begin + i)), x + begin + i);
    });
  });
}

// S to P in one row of n keys; returns L.
HWY_INLINE float SoftmaxRow(float* s, size_t n) {
  const hn::ScalableTag<float> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto maximum = lowest;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    maximum = hn::Max(memory.Mask(d, memory.Load(d, s + i), lowest), maximum);
  });
  const auto m = hn::MaxOfLanes(d, maximum);
  auto sum = hn::Zero(d);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    const auto e = memory.Mask(d, Exp(d, hn::Sub(memory.Load(d, s + i), m)));
    sum = hn::Add(sum, e);
    memory.Store(d, e, s + i);
  });
  const float total = Sum(d, sum);
  const auto inverse = hn::Set(d, 1 / total);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Mul(memory.Load(d, s + i), inverse), s + i);
  });
  return hn::GetLane(m) + std::log(total);
}

// S to R P, 0 where the key is later than the query; logsumexp holds L of the block's queries.
void SoftmaxBlock(const ScoreBlock& block, float* logsumexp, const DropoutMask& dropout) {
  DropoutWords words(dropout, block.sample_number);
  for (int64_t i = 0; i < block.queries; ++i) {
    float* const s = block.scores + i * block.stride;
    const int64_t query = block.first_query + i;
    const size_t n = static_cast<size_t>(query + 1);
    logsumexp[i] = SoftmaxRow(s, n);
    if (dropout.p > 0) {
      DropRow(s, n, static_cast<uint64_t>(block.element + query * block.positions), words);
    }
    std::fill(s + n, s + block.keys, 0.0f);
  }
}

// S to R P and dO V^T to dS. D holds those of the block's queries.
void SoftmaxBackwardBlock(const ScoreBlock& block, float* dscores, const float* logsumexp,
                          const float* D, const DropoutMask& dropout) {
  const hn::ScalableTag<float> d;
  DropoutWords words(dropout, block.sample_number);
  for (int64_t i = 0; i < block.queries; ++i) {
    float* const s = block.scores + i * block.stride;
    float* const ds = dscores + i * block.stride;
    const int64_t query = block.first_query + i;
    const size_t n = static_cast<size_t>(query + 1);
    const auto L = hn::Set(d, logsumexp[i]);
    const auto Di = hn::Set(d, D[i]);
    if (dropout.p > 0) {
      ForDropoutRuns(words, static_cast<uint64_t>(block.element + query * block.positions), n,
                     [&](size_t begin, size_t count) HWY_ATTR {
                       ForLanes(d, count, [&](size_t k, auto memory) HWY_ATTR {
                         const size_t j = begin + k;
                         const auto p = Exp(d, hn::Sub(memory.Load(d, s + j), L));
                         const auto dp = words.Apply(d, memory, k, memory.Load(d, ds + j));
                         memory.Store(d, words.Apply(d, memory, k, p), s + j);
                         memory.Store(d, hn::Mul(p, hn::Sub(dp, Di)), ds + j);
                       });
                     });
    } else {
      ForLanes(d, n, [&](size_t j, auto memory) HWY_ATTR {
        const auto p = Exp(d, hn::Sub(memory.Load(d, s + j), L));
        const auto dp = memory.Load(d, ds + j);
        memory.Store(d, p, s + j);
        memory.Store(d, hn::Mul(p, hn::Sub(dp, Di)), ds + j);
      });
    }
    std::fill(s + n, s + block.keys, 0.0f);
    std::fill(ds + n, ds + block.keys, 0.0f);
  }
}

// D of `queries` rows of n channels.
void RowDots(float* D, const float* dout, const float* out, size_t queries, size_t n,
             size_t stride) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < queries; ++i, dout += stride, out += stride) {
    auto sum = hn::Zero(d);
    ForLanes(d, n, [&](size_t k, auto memory) HWY_ATTR {
      sum = hn::MulAdd(memory.Load(d, dout + k), memory.Load(d, out + k), sum);
    });
    D[i] = Sum(d, sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(SoftmaxBlock);
HWY_EXPORT(SoftmaxBackwardBlock);
HWY_EXPORT(RowDots);

namespace {

constexpr int64_t kQueries = 64;

// Where one head of one sequence lies.
struct Head {
  Head(SequenceShape shape, int64_t heads, int64_t task)
      : positions(shape.positions),
        channels(shape.channels),
        d(channels / heads),
        sequence(task / heads),
        head(task % heads),
        qkv(sequence * positions * 3 * channels + head * d),
        out(sequence * positions * channels + head * d),
        row(task * positions),
        scale(1 / std::sqrt(static_cast<float>(d))) {}

  int64_t positions, channels, d;
  int64_t sequence, head;
  int64_t qkv;  // of the first query; the keys are C further, the values 2C, the next position 3C
  int64_t out;  // in (B, T, C)
  int64_t row;  // in (B, H, T)
  float scale;
};

// A block's scores, in memory of the thread that grows to the longest sequence seen. Rows are a bit
// longer than a multiple of a vector, so that they do not all start in the same cache set.
float* Scratch(int64_t arrays, int64_t stride) {
  static thread_local std::vector<float> memory;
  const size_t wanted = static_cast<size_t>(arrays * kQueries * stride);
  if (memory.size() < wanted) memory.resize(wanted);
  return memory.data();
}

int64_t ScoreStride(int64_t T) { return (T + 15) / 16 * 16 + 16; }

ScoreBlock BlockAt(const Head& h, int64_t first_query, float* scores, const DropoutMask& dropout) {
  const int64_t queries = std::min(kQueries, h.positions - first_query);
  return {.scores = scores,
          .stride = ScoreStride(h.positions),
          .first_query = first_query,
          .queries = queries,
          .keys = first_query + queries,
          .element = h.head * h.positions * h.positions,
          .positions = h.positions,
          .sample_number = dropout.p > 0 ? dropout.samples[h.sequence] : 0};
}

// left (queries, d) right^T (keys, d), to a block of scores.
void MultiplyRows(const ScoreBlock& block, float* result, float scale, const float* left,
                  int64_t left_stride, const float* right, int64_t right_stride, int64_t d) {
  Matmul({.transpose_b = true,
          .m = block.queries,
          .n = block.keys,
          .k = d,
          .alpha = scale,
          .a = left,
          .lda = left_stride,
          .b = right,
          .ldb = right_stride,
          .c = result,
          .ldc = block.stride});
}

void ForwardHead(const Head& h, float* out, float* logsumexp, const float* qkv,
                 const DropoutMask& dropout) {
  const int64_t stride = 3 * h.channels;
  const float* const q = qkv + h.qkv;
  const float* const k = q + h.channels;
  const float* const v = k + h.channels;
  float* const scores = Scratch(1, ScoreStride(h.positions));
  for (int64_t first = 0; first < h.positions; first += kQueries) {
    const ScoreBlock block = BlockAt(h, first, scores, dropout);
    MultiplyRows(block, scores, h.scale, q + first * stride, stride, k, stride, h.d);
    HWY_DYNAMIC_DISPATCH(SoftmaxBlock)(block, logsumexp + h.row + first, dropout);
    // O = R P V
    Matmul({.m = block.queries,
            .n = h.d,
            .k = block.keys,
            .a = scores,
            .lda = block.stride,
            .b = v,
            .ldb = stride,
            .c = out + h.out + first * h.channels,
            .ldc = h.channels});
  }
}

// The last block comes first: it meets all keys, and so writes what the others add to.
void BackwardHead(const Head& h, float* dqkv, const float* dout, const float* qkv, const float* out,
                  const float* logsumexp, const DropoutMask& dropout) {
  const int64_t stride = 3 * h.channels;
  const float* const q = qkv + h.qkv;
  const float* const k = q + h.channels;
  const float* const v = k + h.channels;
  float* const dq = dqkv + h.qkv;
  float* const dk = dq + h.channels;
  float* const dv = dk + h.channels;
  float* const scores = Scratch(2, ScoreStride(h.positions));
  float* const dscores = scores + kQueries * ScoreStride(h.positions);
  float D[kQueries];
  const int64_t last = (h.positions - 1) / kQueries * kQueries;
  for (int64_t first = last; first >= 0; first -= kQueries) {
    const ScoreBlock block = BlockAt(h, first, scores, dropout);
    const float beta = first == last ? 0 : 1;
    const float* const dout_rows = dout + h.out + first * h.channels;
    HWY_DYNAMIC_DISPATCH(RowDots)
    (D, dout_rows, out + h.out + first * h.channels, static_cast<size_t>(block.queries),
     static_cast<size_t>(h.d), static_cast<size_t>(h.channels));
    MultiplyRows(block, scores, h.scale, q + first * stride, stride, k, stride, h.d);
    MultiplyRows(block, dscores, 1, dout_rows, h.channels, v, stride, h.d);
    HWY_DYNAMIC_DISPATCH(SoftmaxBackwardBlock)
    (block, dscores, logsumexp + h.row + first, D, dropout);
    // dV += (R P)^T dO
    Matmul({.transpose_a = true,
            .m = block.keys,
            .n = h.d,
            .k = block.queries,
            .a = scores,
            .lda = block.stride,
            .b = dout_rows,
            .ldb = h.channels,
            .beta = beta,
            .c = dv,
            .ldc = stride});
    // dQ = dS K / sqrt(d)
    Matmul({.m = block.queries,
            .n = h.d,
            .k = block.keys,
            .alpha = h.scale,
            .a = dscores,
            .lda = block.stride,
            .b = k,
            .ldb = stride,
            .c = dq + first * stride,
            .ldc = stride});
    // dK += dS^T Q / sqrt(d)
    Matmul({.transpose_a = true,
            .m = block.keys,
            .n = h.d,
            .k = block.queries,
            .alpha = h.scale,
            .a = dscores,
            .lda = block.stride,
            .b = q + first * stride,
            .ldb = stride,
            .beta = beta,
            .c = dk,
            .ldc = stride});
  }
}

template <typename Body>
void ForHeads(Threads& threads, SequenceShape shape, int64_t heads, const Body& body) {
  ForRanges(threads, shape.batch * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) body(Head(shape, heads, task));
  });
}

}  // namespace

void AttentionForward(Threads& threads, float* out, float* logsumexp, const float* qkv,
                      SequenceShape shape, int64_t heads, const DropoutMask& dropout) {
  ForHeads(threads, shape, heads,
           [&](const Head& head) { ForwardHead(head, out, logsumexp, qkv, dropout); });
}

void AttentionBackward(Threads& threads, float* dqkv, const float* dout, const float* qkv,
                       const float* out, const float* logsumexp, SequenceShape shape, int64_t heads,
                       const DropoutMask& dropout) {
  ForHeads(threads, shape, heads,
           [&](const Head& head) { BackwardHead(head, dqkv, dout, qkv, out, logsumexp, dropout); });
}

}  // namespace zerobox::host
#endif  // HWY_ONCE
