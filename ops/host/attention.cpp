// SPDX-License-Identifier: Apache-2.0
//
// Causal attention of one head over d = C/H channels (arXiv:1706.03762, section 3.2.1):
//   S = Q K^T / sqrt(d),  P = softmax of S over the keys that are not later than the query,
//   O = R P V,  R the dropout mask (1 / (1 - p) or 0, per element),  L = log sum_j e^S_j per query.
// Backward, from what is kept (Q, K, V, O, L) (arXiv:2205.14135, section 3.1 and appendix B):
//   P = e^(S - L),  dP = R dO V^T,  D = sum over channels of dO O  (= sum over keys of P dP),
//   dS = P (dP - D),  dQ = dS K / sqrt(d),  dK = dS^T Q / sqrt(d),  dV = (R P)^T dO.
//
// A task is one head of one sequence, and writes all of the head's results. It packs its operands
// once, as fp32, into memory of the thread, and then multiplies tiles of them (matmul-inl.h): a
// panel of about 14 queries against the keys up to the panel's last, so that hardly a score is
// computed that causality hides. Forward, a panel's scores are all that is ever in memory; backward
// (which takes the keys in blocks, like arXiv:2307.08691, section 3.1) those of a block of keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/attention.cpp"
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/bfloat16.h"
#include "ops/host/dropout-inl.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/matmul-inl.h"
#include "ops/host/scratch.h"
#include "ops/host/simd-inl.h"

#ifndef ZEROBOX_OPS_HOST_ATTENTION_ONCE
#define ZEROBOX_OPS_HOST_ATTENTION_ONCE
namespace zerobox::host {

// The keys that a block of the backward pass has: a multiple of every tile's columns.
constexpr size_t kKeyBlock = 64;

// One head of one sequence.
template <typename T>
struct ForwardTask {
  size_t positions, d;
  size_t stride;  // from a position to the next in qkv: 3C
  const T *q, *k, *v;
  T* out;
  size_t out_stride;  // C
  float* logsumexp;   // of the positions
  const DropoutMask* dropout;
  int64_t sample_number;
  uint64_t element;  // of dropout: that of (query 0, key 0) in the sample
};

template <typename T>
struct BackwardTask {
  ForwardTask<T> forward;  // its `out` is only read
  const T* dout;           // laid out like out
  T *dq, *dk, *dv;         // like q, k, v
};

inline float* AttentionScratch(size_t n) {
  static thread_local Scratch scratch;
  return scratch.Floats(n);
}

// Cuts memory into arrays of floats that start at cache lines. The first pass over nullptr tells
// how much there must be.
class Carver {
 public:
  explicit Carver(float* memory) : memory_(memory) {}
  float* Take(size_t n) {
    float* const result = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (n + 15) / 16 * 16;
    return result;
  }
  size_t used() const { return used_; }

 private:
  float* memory_;
  size_t used_ = 0;
};

}  // namespace zerobox::host
#endif

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// to (rows, width) = factor * from (rows, n), 0 behind the n.
template <typename T>
HWY_INLINE void CopyRows(float* to, size_t width, const T* from, size_t stride, size_t rows,
                         size_t n, float factor) {
  const Lane d;
  const auto f = hn::Set(d, factor);
  for (size_t i = 0; i < rows; ++i, to += width, from += stride) {
    ForLanes(d, n, [&](size_t j, auto memory) HWY_ATTR {
      hn::StoreU(hn::Mul(memory.Load(d, from + j), f), d, to + j);
    });
    std::fill(to + n, to + width, 0.0f);
  }
}

// to (rows, n) = from (rows, width) times a factor a row.
template <typename T>
HWY_INLINE void WriteRows(T* to, size_t stride, const float* from, size_t width, size_t rows,
                          size_t n, const float* factors) {
  const Lane d;
  for (size_t i = 0; i < rows; ++i, to += stride, from += width) {
    const auto f = hn::Set(d, factors[i]);
    ForLanes(d, n, [&](size_t j, auto memory) HWY_ATTR {
      memory.Store(d, hn::Mul(hn::LoadU(d, from + j), f), to + j);
    });
  }
}

// out (rows, columns rounded up to vectors) = [out +] a b, tile by tile. The columns of the next
// tile of b lie b_panel further: TileColumns() in an operand that is not in panels.
HWY_INLINE void MultiplyRows(size_t rows, size_t columns, size_t depth, Strided a, Strided b,
                             size_t b_panel, float* out, size_t out_stride, bool add) {
  const size_t lanes = hn::Lanes(Lane());
  for (size_t j = 0; j < columns; j += TileColumns(), b.data += b_panel) {
    const size_t vectors = std::min(kTileVectors, (columns - j + lanes - 1) / lanes);
    TileOf(rows, vectors)(depth, a, b, b.data + b_panel, out + j, out_stride, add);
  }
}

// x[i] *= r[i] for n keys of a query, of which the first is element `first` of the sample.
HWY_INLINE void DropRow(float* x, size_t n, uint64_t first, DropoutWords& words) {
  const Lane d;
  ForDropoutRuns(words, first, n, [&](size_t begin, size_t count) HWY_ATTR {
    ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
      memory.Store(d, words.Apply(d, memory, i, memory.Load(d, x + begin + i)), x + begin + i);
    });
  });
}

// S to e^(S - max) in one row of n keys; returns L, and in `inverse` what makes it P.
HWY_INLINE float SoftmaxRow(float* s, size_t n, float* inverse) {
  const Lane d;
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
  *inverse = 1 / total;
  return hn::GetLane(m) + std::log(total);
}

template <typename T>
struct ForwardMemory {
  ForwardMemory(const ForwardTask<T>& task, Carver carver)
      : panel_rows(PanelRows(task.positions)),
        width(RoundUp(task.d, hn::Lanes(Lane()))),
        // A bit longer than a multiple of a vector: not all rows start in the same cache set.
        score_stride(RoundUp(task.positions, TileColumns()) + 16),
        keys(carver.Take(RoundUp(task.positions, TileColumns()) * task.d + kPackSlack)),
        values(carver.Take(task.positions * width + kPackSlack)),
        queries(carver.Take(panel_rows * task.d + kPackSlack)),
        scores(carver.Take(panel_rows * score_stride)),
        probabilities(carver.Take(panel_rows * task.positions + kPackSlack)),
        out(carver.Take(panel_rows * width)),
        floats(carver.used()) {}

  size_t panel_rows, width, score_stride;
  float *keys, *values, *queries, *scores, *probabilities, *out;
  size_t floats;
};

template <typename T>
void ForwardHead(const ForwardTask<T>& task) {
  const size_t d = task.d;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  const ForwardMemory<T> memory(
      task, Carver(AttentionScratch(ForwardMemory<T>(task, Carver(nullptr)).floats)));
  const size_t stride = memory.score_stride, width = memory.width;
  DropoutWords words(*task.dropout, task.sample_number);
  Pack<T>(memory.keys, {task.k, task.stride, true}, task.positions, d, TileColumns());
  CopyRows(memory.values, width, task.v, task.stride, task.positions, d, 1);
  for (size_t first = 0; first < task.positions; first += memory.panel_rows) {
    const size_t rows = std::min(memory.panel_rows, task.positions - first);
    const size_t keys = first + rows;
    Pack<T>(memory.queries, {task.q + first * task.stride, task.stride, true}, rows, d, rows);
    Scale(memory.queries, rows * d, scale);
    MultiplyRows(rows, keys, d, {memory.queries, rows}, {memory.keys, TileColumns()},
                 TileColumns() * d, memory.scores, stride, false);
    float inverses[kTileRows];
    for (size_t i = 0; i < rows; ++i) {
      float* const s = memory.scores + i * stride;
      const size_t query = first + i, n = query + 1;
      task.logsumexp[query] = SoftmaxRow(s, n, &inverses[i]);
      if (task.dropout->p > 0) DropRow(s, n, task.element + query * task.positions, words);
      std::fill(s + n, s + keys, 0.0f);
    }
    Pack<float>(memory.probabilities, {memory.scores, stride, true}, rows, keys, rows);
    MultiplyRows(rows, d, keys, {memory.probabilities, rows}, {memory.values, width}, TileColumns(),
                 memory.out, width, false);
    WriteRows(task.out + first * task.out_stride, task.out_stride, memory.out, width, rows, d,
              inverses);
  }
}

template <typename T>
struct BackwardMemory {
  BackwardMemory(const ForwardTask<T>& task, Carver carver)
      : panel_rows(PanelRows(task.positions)),
        width(RoundUp(task.d, hn::Lanes(Lane()))),
        query_panels(carver.Take(RoundUp(task.positions, panel_rows) * task.d + kPackSlack)),
        dout_panels(carver.Take(RoundUp(task.positions, panel_rows) * task.d + kPackSlack)),
        key_panels(carver.Take(RoundUp(task.positions, TileColumns()) * task.d + kPackSlack)),
        value_panels(carver.Take(RoundUp(task.positions, TileColumns()) * task.d + kPackSlack)),
        queries(carver.Take(task.positions * width + kPackSlack)),
        keys(carver.Take(task.positions * width + kPackSlack)),
        dout(carver.Take(task.positions * width + kPackSlack)),
        dq(carver.Take(task.positions * width)),
        row_dots(carver.Take(task.positions)),
        scores(carver.Take((task.positions + kTileRows) * kKeyBlock)),
        dscores(carver.Take((task.positions + kTileRows) * kKeyBlock)),
        dscore_panel(carver.Take(kTileRows * kKeyBlock + kPackSlack)),
        sums(carver.Take(kTileRows * width)),
        floats(carver.used()) {}

  size_t panel_rows, width;
  float *query_panels, *dout_panels, *key_panels, *value_panels;
  float *queries, *keys, *dout, *dq;  // (T, width)
  float* row_dots;                    // D of the queries
  float *scores, *dscores;            // (queries, kKeyBlock)
  float* dscore_panel;
  float* sums;  // a panel of dK or dV
  size_t floats;
};

// D of `rows` queries of n channels.
template <typename T>
HWY_INLINE void RowDots(float* D, const T* dout, const T* out, size_t rows, size_t n,
                        size_t stride) {
  const Lane d;
  for (size_t i = 0; i < rows; ++i, dout += stride, out += stride) {
    auto sum = hn::Zero(d);
    ForLanes(d, n, [&](size_t k, auto memory) HWY_ATTR {
      sum = hn::MulAdd(memory.Load(d, dout + k), memory.Load(d, out + k), sum);
    });
    D[i] = Sum(d, sum);
  }
}

// S to R P and dO V^T to dS, for n keys of a query; the first is element `element` of the sample.
HWY_INLINE void SoftmaxBackwardRow(float* s, float* ds, size_t n, float logsumexp, float D,
                                   uint64_t element, bool drops, DropoutWords& words) {
  const Lane d;
  const auto L = hn::Set(d, logsumexp);
  const auto Di = hn::Set(d, D);
  if (drops) {
    ForDropoutRuns(words, element, n, [&](size_t begin, size_t count) HWY_ATTR {
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
}

// The panels of queries from `first_row` on, against the block of keys at first_key: fills scores
// with R P and dscores with dS, from row 0 on, and adds to dQ.
template <typename T>
HWY_INLINE void BackwardKeys(const ForwardTask<T>& task, const BackwardMemory<T>& memory,
                             size_t first_row, size_t first_key, DropoutWords& words) {
  const size_t d = task.d, width = memory.width;
  for (size_t row = first_row; row < task.positions; row += memory.panel_rows) {
    const size_t rows = std::min(memory.panel_rows, task.positions - row);
    const size_t keys = std::min({kKeyBlock, task.positions - first_key, row + rows - first_key});
    float* const scores = memory.scores + (row - first_row) * kKeyBlock;
    float* const dscores = memory.dscores + (row - first_row) * kKeyBlock;
    MultiplyRows(rows, keys, d, {memory.query_panels + row * d, memory.panel_rows},
                 {memory.key_panels + first_key * d, TileColumns()}, TileColumns() * d, scores,
                 kKeyBlock, false);
    MultiplyRows(rows, keys, d, {memory.dout_panels + row * d, memory.panel_rows},
                 {memory.value_panels + first_key * d, TileColumns()}, TileColumns() * d, dscores,
                 kKeyBlock, false);
    for (size_t i = 0; i < rows; ++i) {
      const size_t query = row + i;
      const size_t n = query < first_key ? 0 : std::min(keys, query + 1 - first_key);
      float* const s = scores + i * kKeyBlock;
      float* const ds = dscores + i * kKeyBlock;
      SoftmaxBackwardRow(s, ds, n, task.logsumexp[query], memory.row_dots[query],
                         task.element + query * task.positions + first_key, task.dropout->p > 0,
                         words);
      std::fill(s + n, s + kKeyBlock, 0.0f);
      std::fill(ds + n, ds + kKeyBlock, 0.0f);
    }
    Pack<float>(memory.dscore_panel, {dscores, kKeyBlock, true}, rows, keys, rows);
    MultiplyRows(rows, d, keys, {memory.dscore_panel, rows},
                 {memory.keys + first_key * width, width}, TileColumns(), memory.dq + row * width,
                 width, first_key != 0);
  }
}

template <typename T>
void BackwardHead(const BackwardTask<T>& backward) {
  const ForwardTask<T>& task = backward.forward;
  const size_t d = task.d, positions = task.positions, stride = task.stride;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  const BackwardMemory<T> memory(
      task, Carver(AttentionScratch(BackwardMemory<T>(task, Carver(nullptr)).floats)));
  const size_t width = memory.width, panel_rows = memory.panel_rows;
  CopyRows(memory.queries, width, task.q, stride, positions, d, scale);
  CopyRows(memory.keys, width, task.k, stride, positions, d, 1);
  CopyRows(memory.dout, width, backward.dout, task.out_stride, positions, d, 1);
  Pack<float>(memory.query_panels, {memory.queries, width, true}, positions, d, panel_rows);
  Pack<float>(memory.key_panels, {memory.keys, width, true}, positions, d, TileColumns());
  Pack<float>(memory.dout_panels, {memory.dout, width, true}, positions, d, panel_rows);
  Pack<T>(memory.value_panels, {task.v, stride, true}, positions, d, TileColumns());
  RowDots<T>(memory.row_dots, backward.dout, task.out, positions, d, task.out_stride);
  DropoutWords words(*task.dropout, task.sample_number);
  float ones[kTileRows], scales[kTileRows];
  std::fill_n(ones, kTileRows, 1.0f);
  std::fill_n(scales, kTileRows, scale);

  for (size_t first_key = 0; first_key < positions; first_key += kKeyBlock) {
    const size_t keys = std::min(kKeyBlock, positions - first_key);
    const size_t first_row = first_key / panel_rows * panel_rows;
    BackwardKeys(task, memory, first_row, first_key, words);
    const size_t key_rows = PanelRows(keys);
    for (size_t key = 0; key < keys; key += key_rows) {
      const size_t rows = std::min(key_rows, keys - key);
      const size_t query = first_key + key;  // no earlier one sees these keys
      const size_t at = (query - first_row) * kKeyBlock + key;
      // dV = (R P)^T dO, and dK = dS^T Q / sqrt(d), of which the queries have the factor.
      MultiplyRows(rows, d, positions - query, {memory.scores + at, kKeyBlock},
                   {memory.dout + query * width, width}, TileColumns(), memory.sums, width, false);
      WriteRows(backward.dv + query * stride, stride, memory.sums, width, rows, d, ones);
      MultiplyRows(rows, d, positions - query, {memory.dscores + at, kKeyBlock},
                   {memory.queries + query * width, width}, TileColumns(), memory.sums, width,
                   false);
      WriteRows(backward.dk + query * stride, stride, memory.sums, width, rows, d, ones);
    }
  }
  for (size_t row = 0; row < positions; row += kTileRows) {
    WriteRows(backward.dq + row * stride, stride, memory.dq + row * width, width,
              std::min(kTileRows, positions - row), d, scales);
  }
}

auto ForwardHeads() { return std::make_tuple(ForwardHead<float>, ForwardHead<BFloat16>); }
auto BackwardHeads() { return std::make_tuple(BackwardHead<float>, BackwardHead<BFloat16>); }

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(ForwardHeads);
HWY_EXPORT(BackwardHeads);

namespace {

// Head `index % heads` of sequence `index / heads`.
template <typename T>
ForwardTask<T> TaskAt(int64_t index, SequenceShape shape, int64_t heads, const T* qkv, T* out,
                      float* logsumexp, const DropoutMask& dropout) {
  const int64_t T_ = shape.positions, C = shape.channels, d = C / heads;
  const int64_t sequence = index / heads, head = index % heads;
  const T* const q = qkv + sequence * T_ * 3 * C + head * d;
  return {.positions = static_cast<size_t>(T_),
          .d = static_cast<size_t>(d),
          .stride = static_cast<size_t>(3 * C),
          .q = q,
          .k = q + C,
          .v = q + 2 * C,
          .out = out + sequence * T_ * C + head * d,
          .out_stride = static_cast<size_t>(C),
          .logsumexp = logsumexp + index * T_,
          .dropout = &dropout,
          .sample_number = dropout.p > 0 ? dropout.samples[sequence] : 0,
          .element = static_cast<uint64_t>(head * T_ * T_)};
}

template <typename Body>
void ForHeads(Threads& threads, SequenceShape shape, int64_t heads, const Body& body) {
  ForRanges(threads, shape.batch * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) body(index);
  });
}

}  // namespace

template <typename T>
void AttentionForward(Threads& threads, T* out, float* logsumexp, const T* qkv, SequenceShape shape,
                      int64_t heads, const DropoutMask& dropout) {
  const auto forward = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(ForwardHeads)());
  ForHeads(threads, shape, heads, [&](int64_t index) {
    forward(TaskAt<T>(index, shape, heads, qkv, out, logsumexp, dropout));
  });
}

template <typename T>
void AttentionBackward(Threads& threads, T* dqkv, const T* dout, const T* qkv, const T* out,
                       const float* logsumexp, SequenceShape shape, int64_t heads,
                       const DropoutMask& dropout) {
  const auto backward = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(BackwardHeads)());
  ForHeads(threads, shape, heads, [&](int64_t index) {
    BackwardTask<T> task{.forward = TaskAt<T>(index, shape, heads, qkv, const_cast<T*>(out),
                                              const_cast<float*>(logsumexp), dropout)};
    task.dout = dout + (task.forward.out - out);
    task.dq = dqkv + (task.forward.q - qkv);
    task.dk = task.dq + shape.channels;
    task.dv = task.dk + shape.channels;
    backward(task);
  });
}

template void AttentionForward(Threads&, float*, float*, const float*, SequenceShape, int64_t,
                               const DropoutMask&);
template void AttentionForward(Threads&, BFloat16*, float*, const BFloat16*, SequenceShape, int64_t,
                               const DropoutMask&);
template void AttentionBackward(Threads&, float*, const float*, const float*, const float*,
                                const float*, SequenceShape, int64_t, const DropoutMask&);
template void AttentionBackward(Threads&, BFloat16*, const BFloat16*, const BFloat16*,
                                const BFloat16*, const float*, SequenceShape, int64_t,
                                const DropoutMask&);

}  // namespace zerobox::host
#endif  // HWY_ONCE
