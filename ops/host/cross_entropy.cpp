// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy of the softmax, in nats, over the V logits z of a row with target y:
//   loss = -log softmax(z)[y] = log sum_i e^(z_i - max z) + max z - z_y
//   dz_i = scale (softmax(z)_i - [i = y])
// The maximum is taken out so that no exponential overflows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/cross_entropy.cpp"
#include <cassert>
#include <cmath>
#include <limits>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// The largest of z. (A NaN need not show here: the exponential of a NaN is one.)
HWY_INLINE float RowMaximum(const float* z, size_t n) {
  const hn::ScalableTag<float> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto maximum = lowest;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    maximum = hn::Max(memory.Mask(d, memory.Load(d, z + i), lowest), maximum);
  });
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

float CrossEntropyRow(const float* z, size_t n, size_t target) {
  const hn::ScalableTag<float> d;
  const float maximum = RowMaximum(z, n);
  const auto m = hn::Set(d, maximum);
  auto sum = hn::Zero(d);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    sum = hn::Add(sum, memory.Mask(d, Exp(d, hn::Sub(memory.Load(d, z + i), m))));
  });
  return std::log(Sum(d, sum)) + (maximum - z[target]);
}

void CrossEntropyGradientRow(float* z, size_t n, size_t target, float scale) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, RowMaximum(z, n));
  auto sum = hn::Zero(d);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    const auto e = memory.Mask(d, Exp(d, hn::Sub(memory.Load(d, z + i), m)));
    sum = hn::Add(sum, e);
    memory.Store(d, e, z + i);
  });
  const float factor = scale / Sum(d, sum);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Mul(memory.Load(d, z + i), hn::Set(d, factor)), z + i);
  });
  z[target] -= scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(CrossEntropyRow);
HWY_EXPORT(CrossEntropyGradientRow);

constexpr int64_t kRowGrain = 4;

void CrossEntropyForward(Threads& threads, float* losses, const float* logits,
                         const int32_t* targets, int64_t rows, int64_t vocabulary) {
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      assert(targets[row] >= -1 && targets[row] < vocabulary);
      losses[row] = targets[row] < 0
                        ? 0
                        : HWY_DYNAMIC_DISPATCH(CrossEntropyRow)(logits + row * vocabulary,
                                                                static_cast<size_t>(vocabulary),
                                                                static_cast<size_t>(targets[row]));
    }
  });
}

void CrossEntropyBackward(Threads& threads, float* logits, const int32_t* targets, int64_t rows,
                          int64_t vocabulary, float scale) {
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      assert(targets[row] >= -1 && targets[row] < vocabulary);
      float* const z = logits + row * vocabulary;
      if (targets[row] < 0) {
        std::fill_n(z, vocabulary, 0.0f);
        continue;
      }
      HWY_DYNAMIC_DISPATCH(CrossEntropyGradientRow)
      (z, static_cast<size_t>(vocabulary), static_cast<size_t>(targets[row]), scale);
    }
  });
}

}  // namespace zerobox::host
#endif  // HWY_ONCE
