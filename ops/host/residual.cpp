// SPDX-License-Identifier: Apache-2.0
//
// The residual connection with dropout on its branch (arXiv:1706.03762, section 5.4):
//   out = x + r branch,  dbranch = r dout,  r = 1 / (1 - p) with probability 1 - p, else 0.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/residual.cpp"
#include <algorithm>
#include <tuple>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/dropout-inl.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

template <typename T>
void AddBranch(T* out, const T* x, const T* branch, size_t n) {
  const hn::ScalableTag<float> d;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Add(memory.Load(d, x + i), memory.Load(d, branch + i)), out + i);
  });
}

// Elements [first, first + n) of one sample. x may be null: 0.
template <typename T>
void DropoutRange(T* out, const T* x, const T* branch, uint64_t first, size_t n,
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

auto AddBranches() { return std::make_tuple(AddBranch<float>, AddBranch<BFloat16>); }
auto DropoutRanges() { return std::make_tuple(DropoutRange<float>, DropoutRange<BFloat16>); }

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(AddBranches);
HWY_EXPORT(DropoutRanges);

namespace {

constexpr int64_t kGrain = 4096;

template <typename T>
void ApplyDropout(Threads& threads, T* out, const T* x, const T* branch, SequenceShape shape,
                  const DropoutMask& dropout) {
  const auto range = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(DropoutRanges)());
  const int64_t sample_size = shape.positions * shape.channels;
  ForRanges(threads, shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {  // sample by sample
      const int64_t sample = begin / sample_size;
      const int64_t stop = std::min(end, (sample + 1) * sample_size);
      range(out + begin, x == nullptr ? nullptr : x + begin, branch + begin,
            static_cast<uint64_t>(begin - sample * sample_size), static_cast<size_t>(stop - begin),
            dropout, dropout.samples[sample]);
      begin = stop;
    }
  });
}

}  // namespace

template <typename T>
void ResidualForward(Threads& threads, T* out, const T* x, const T* branch, SequenceShape shape,
                     const DropoutMask& dropout) {
  if (dropout.p > 0) return ApplyDropout(threads, out, x, branch, shape, dropout);
  const auto range = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(AddBranches)());
  ForRanges(threads, shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
    range(out + begin, x + begin, branch + begin, static_cast<size_t>(end - begin));
  });
}

template <typename T>
void DropoutBackward(Threads& threads, T* dbranch, const T* dout, SequenceShape shape,
                     const DropoutMask& dropout) {
  if (dropout.p > 0) {
    return ApplyDropout<T>(threads, dbranch, nullptr, dout, shape, dropout);
  }
  if (dbranch == dout) return;
  ForRanges(threads, shape.elements(), kGrain, [&](int64_t begin, int64_t end) {
    std::copy(dout + begin, dout + end, dbranch + begin);
  });
}

template void ResidualForward(Threads&, float*, const float*, const float*, SequenceShape,
                              const DropoutMask&);
template void ResidualForward(Threads&, BFloat16*, const BFloat16*, const BFloat16*, SequenceShape,
                              const DropoutMask&);
template void DropoutBackward(Threads&, float*, const float*, SequenceShape, const DropoutMask&);
template void DropoutBackward(Threads&, BFloat16*, const BFloat16*, SequenceShape,
                              const DropoutMask&);

}  // namespace zerobox::host
#endif  // HWY_ONCE
