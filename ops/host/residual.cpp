// SPDX-License-Identifier: Apache-2.0
//
// The residual connection with dropout on its branch (arXiv:1706.03762, section 5.4):
//   out = x + r branch,  dbranch = r dout,  r = 1 / (1 - p) with probability 1 - p, else 0.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/residual.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/dropout-inl.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

void AddBranch(float* out, const float* x, const float* branch, size_t n) {
  const hn::ScalableTag<float> d;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Add(memory.Load(d, x + i), memory.Load(d, branch + i)), out + i);
  });
}

// Elements [first, first + n) of one sample. x may be null: 0.
void DropoutRange(float* out, const float* x, const float* branch, uint64_t first, size_t n,
                  const DropoutMask& dropout, int64_t sample_number) {
  const hn::ScalableTag<float> d;
  DropoutWords words(dropout, sample_number);
  ForDropoutRuns(words, first, n, [&](size_t begin, size_t count) HWY_ATTR {
    ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
      const size_t k = begin + i;
      auto sum = words.Apply(d, memory, i, memory.Load(d, branch + k));
      if (x != nullptr) sum = hn::Add(memory.Load(d, x + k), sum);
      memory.Store(d, sum, out + k);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(AddBranch);
HWY_EXPORT(DropoutRange);

namespace {

constexpr int64_t kGrain = 4096;

void ApplyDropout(Threads& threads, float* out, const float* x, const float* branch,
                  SequenceShape shape, const DropoutMask& dropout) {
  const int64_t sample_size = shape.positions * shape.channels;
  ForRanges(threads, shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {  // sample by sample
      const int64_t sample = begin / sample_size;
      const int64_t stop = std::min(end, (sample + 1) * sample_size);
      HWY_DYNAMIC_DISPATCH(DropoutRange)
      (out + begin, x == nullptr ? nullptr : x + begin, branch + begin,
       static_cast<uint64_t>(begin - sample * sample_size), static_cast<size_t>(stop - begin),
       dropout, dropout.samples[sample]);
      begin = stop;
    }
  });
}

}  // namespace

void ResidualForward(Threads& threads, float* out, const float* x, const float* branch,
                     SequenceShape shape, const DropoutMask& dropout) {
  if (dropout.p > 0) return ApplyDropout(threads, out, x, branch, shape, dropout);
  ForRanges(threads, shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddBranch)
    (out + begin, x + begin, branch + begin, static_cast<size_t>(end - begin));
  });
}

void DropoutBackward(Threads& threads, float* dbranch, const float* dout, SequenceShape shape,
                     const DropoutMask& dropout) {
  if (dropout.p > 0) return ApplyDropout(threads, dbranch, nullptr, dout, shape, dropout);
  if (dbranch == dout) return;
  ForRanges(threads, shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
    std::copy(dout + begin, dout + end, dbranch + begin);
  });
}

}  // namespace zerobox::host
#endif  // HWY_ONCE
