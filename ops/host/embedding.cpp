// SPDX-License-Identifier: Apache-2.0
//
// Token and position embeddings, and dropout on their sum:
//   out[b, t] = r (wte[token] + wpe[t]),  dwte[token] += r dout[b, t],  dwpe[t] += r dout[b, t].
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/embedding.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/dropout-inl.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// Row (b, t) of out; `first` is its first element in the sample.
void EmbeddingForwardRow(float* out, const float* token, const float* position, size_t channels,
                         uint64_t first, const DropoutMask& dropout, int64_t sample) {
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

// Adds n elements of a row of dout, of which `first` is the first's place in the sample.
void EmbeddingBackwardRow(float* dtoken, float* dposition, const float* dout, size_t n,
                          uint64_t first, const DropoutMask& dropout, int64_t sample) {
  const hn::ScalableTag<float> d;
  const auto add = [&](size_t i, auto memory, auto gradient) HWY_ATTR {
    memory.Store(d, hn::Add(memory.Load(d, dtoken + i), gradient), dtoken + i);
    memory.Store(d, hn::Add(memory.Load(d, dposition + i), gradient), dposition + i);
  };
  if (!(dropout.p > 0)) {
    ForLanes(d, n,
             [&](size_t i, auto memory) HWY_ATTR { add(i, memory, memory.Load(d, dout + i)); });
    return;
  }
  DropoutWords words(dropout, dropout.samples[sample]);
  ForDropoutRuns(words, first, n, [&](size_t begin, size_t count) HWY_ATTR {
    ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
      const size_t k = begin + i;
      add(k, memory, words.Apply(d, memory, i, memory.Load(d, dout + k)));
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(EmbeddingForwardRow);
HWY_EXPORT(EmbeddingBackwardRow);

void EmbeddingForward(Threads& threads, float* out, const int32_t* tokens, const float* wte,
                      const float* wpe, SequenceShape shape, const DropoutMask& dropout) {
  const int64_t T = shape.positions, C = shape.channels;
  ForRanges(threads, shape.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t t = row % T;
      HWY_DYNAMIC_DISPATCH(EmbeddingForwardRow)
      (out + row * C, wte + tokens[row] * C, wpe + t * C, static_cast<size_t>(C),
       static_cast<uint64_t>(t * C), dropout, row / T);
    }
  });
}

// Rows of different threads may add to the same row of dwte, so the threads share out the channels.
void EmbeddingBackward(Threads& threads, float* dwte, float* dwpe, const float* dout,
                       const int32_t* tokens, SequenceShape shape, const DropoutMask& dropout) {
  const int64_t T = shape.positions, C = shape.channels;
  ForRanges(threads, C, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < shape.rows(); ++row) {
      const int64_t t = row % T;
      HWY_DYNAMIC_DISPATCH(EmbeddingBackwardRow)
      (dwte + tokens[row] * C + begin, dwpe + t * C + begin, dout + row * C + begin,
       static_cast<size_t>(end - begin), static_cast<uint64_t>(t * C + begin), dropout, row / T);
    }
  });
}

}  // namespace zerobox::host
#endif  // HWY_ONCE
