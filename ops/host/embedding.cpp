// SPDX-License-Identifier: Apache-2.0
//
// Token and position embeddings, and dropout on their sum:
//   out[b, t] = r (wte[token] + wpe[t]),
//   dwte[token] += the sum of r dout[b, t] over all (b, t) with this token,
//   dwpe[t] += the sum of r dout[b, t] over b.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/embedding.cpp"
#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/dropout-inl.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// Row (b, t) of out; `first` is its first element in the sample.
template <typename T>
void EmbeddingForwardRow(T* out, const T* token, const T* position, size_t channels, uint64_t first,
                         const DropoutMask& dropout, int64_t sample) {
  const hn::ScalableTag<float> d;
  if (!(dropout.p > 0)) {
    ForLanes(d, channels, [&](size_t i, auto memory) HWY_ATTR {
      memory.Store(d, hn::Add(memory.Load(d, token + i), memory.Load(d, position + i)), out + i);
    });
    return;
  }
  DropoutWords words(dropout, dropout.samples[sample]);
  ForDropoutRuns(words, first, channels, [&](size_t begin, size_t count) HWY_ATTR {
    ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
      const size_t k = begin + i;
      const auto sum = hn::Add(memory.Load(d, token + k), memory.Load(d, position + k));
      memory.Store(d, words.Apply(d, memory, i, sum), out + k);
    });
  });
}

// gradient[0, columns) += the sum of columns [first, first + columns) of `rows` of dout, each with
// its dropout: taken in fp32, in the order of `rows`.
template <typename T, typename G>
void AddRowsRange(G* gradient, const T* dout, std::span<const int32_t> rows, size_t first,
                  size_t columns, SequenceShape shape, const DropoutMask& dropout) {
  const hn::ScalableTag<float> d;
  const size_t channels = static_cast<size_t>(shape.channels);
  constexpr size_t kColumns = DropoutWords::kElements;
  for (size_t begin = 0; begin < columns; begin += kColumns) {
    const size_t count = HWY_MIN(kColumns, columns - begin);
    HWY_ALIGN float sums[kColumns];
    std::fill_n(sums, count, 0.0f);
    for (const int32_t row : rows) {
      const T* const dy = dout + static_cast<size_t>(row) * channels + first + begin;
      if (!(dropout.p > 0)) {
        AddTo(sums, dy, count);
        continue;
      }
      const int64_t position = row % shape.positions;
      DropoutWords words(dropout, dropout.samples[row / shape.positions]);
      words.Draw(static_cast<size_t>(position) * channels + first + begin, count);
      ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
        const auto kept = words.Apply(d, memory, i, memory.Load(d, dy + i));
        memory.Store(d, hn::Add(memory.Load(d, sums + i), kept), sums + i);
      });
    }
    AddTo(gradient + begin, sums, count);
  }
}

auto EmbeddingForwardRows() {
  return std::make_tuple(EmbeddingForwardRow<float>, EmbeddingForwardRow<BFloat16>);
}
auto AddRowsRanges() {
  return std::make_tuple(AddRowsRange<float, float>, AddRowsRange<BFloat16, BFloat16>,
                         AddRowsRange<BFloat16, float>);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(EmbeddingForwardRows);
HWY_EXPORT(AddRowsRanges);

template <typename T>
void EmbeddingForward(Threads& threads, T* out, const int32_t* tokens, const T* wte, const T* wpe,
                      SequenceShape shape, const DropoutMask& dropout) {
  const int64_t positions = shape.positions, C = shape.channels;
  const auto forward = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(EmbeddingForwardRows)());
  ForRanges(threads, shape.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t t = row % positions;
      forward(out + row * C, wte + tokens[row] * C, wpe + t * C, static_cast<size_t>(C),
              static_cast<uint64_t>(t * C), dropout, row / positions);
    }
  });
}

namespace {

// Rows by the row of the gradient that they are added to: those of number i are
// rows[begins[i]] .. rows[begins[i + 1] - 1], in ascending order.
struct Groups {
  std::vector<int32_t> begins, rows;
  int64_t size() const { return static_cast<int64_t>(begins.size()) - 1; }
  std::span<const int32_t> operator[](int64_t i) const {
    const int32_t* const begin = begins.data() + i;
    return std::span(rows).subspan(static_cast<size_t>(begin[0]),
                                   static_cast<size_t>(begin[1] - begin[0]));
  }
};

struct RowGroups {
  Groups by_token, by_position;
};

// A counting sort of rows 0 .. n - 1 by number_of(row).
template <typename NumberOf>
void Group(Groups& groups, int32_t n, int32_t numbers, const NumberOf& number_of) {
  groups.rows.resize(static_cast<size_t>(n));
  groups.begins.assign(static_cast<size_t>(numbers) + 1, 0);
  int32_t* const begins = groups.begins.data();
  for (int32_t row = 0; row < n; ++row) ++begins[number_of(row)];
  for (int32_t i = 0, begin = 0; i <= numbers; ++i) {
    const int32_t count = begins[i];
    begins[i] = begin;
    begin += count;
  }
  // Each begin moves up to its end, which is the begin of the next: so all move one place on.
  for (int32_t row = 0; row < n; ++row) groups.rows[begins[number_of(row)]++] = row;
  std::copy_backward(begins, begins + numbers, begins + numbers + 1);
  begins[0] = 0;
}

}  // namespace

// Rows of different threads may add to the same row of dwte, so the threads share out the channels.
template <typename T, typename G>
void EmbeddingBackward(Threads& threads, G* dwte, G* dwpe, const T* dout, const int32_t* tokens,
                       SequenceShape shape, const DropoutMask& dropout) {
  static thread_local RowGroups scratch;
  RowGroups& groups = scratch;  // the caller's, also in the other threads
  const int32_t n = static_cast<int32_t>(shape.rows());
  const int32_t positions = static_cast<int32_t>(shape.positions);
  const int32_t largest = n == 0 ? -1 : *std::max_element(tokens, tokens + n);
  Group(groups.by_token, n, largest + 1, [&](int32_t row) { return tokens[row]; });
  Group(groups.by_position, n, positions, [&](int32_t row) { return row % positions; });
  const auto add_rows = InstanceOf<T, G>(HWY_DYNAMIC_DISPATCH(AddRowsRanges)());
  ForRanges(threads, shape.channels, 64, [&](int64_t begin, int64_t end) {
    const auto add = [&](G* gradient, const Groups& groups_of_rows) {
      for (int64_t i = 0; i < groups_of_rows.size(); ++i) {
        if (groups_of_rows[i].empty()) continue;
        add_rows(gradient + i * shape.channels + begin, dout, groups_of_rows[i],
                 static_cast<size_t>(begin), static_cast<size_t>(end - begin), shape, dropout);
      }
    };
    add(dwte, groups.by_token);
    add(dwpe, groups.by_position);
  });
}

template void EmbeddingForward(Threads&, float*, const int32_t*, const float*, const float*,
                               SequenceShape, const DropoutMask&);
template void EmbeddingForward(Threads&, BFloat16*, const int32_t*, const BFloat16*,
                               const BFloat16*, SequenceShape, const DropoutMask&);
template void EmbeddingBackward(Threads&, float*, float*, const float*, const int32_t*,
                                SequenceShape, const DropoutMask&);
template void EmbeddingBackward(Threads&, BFloat16*, BFloat16*, const BFloat16*, const int32_t*,
                                SequenceShape, const DropoutMask&);
template void EmbeddingBackward(Threads&, float*, float*, const BFloat16*, const int32_t*,
                                SequenceShape, const DropoutMask&);

}  // namespace zerobox::host
#endif  // HWY_ONCE
