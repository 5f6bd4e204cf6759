// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy of the softmax, in nats, over the V logits z of a row with target y:
//   loss = -log softmax(z)[y] = log sum_i e^(z_i - max z) + max z - z_y
//   dz_i = scale (softmax(z)_i - [i = y])
// The maximum is taken out so that no exponential overflows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/cross_entropy.cpp"
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <tuple>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// The largest of z. (A NaN need not show here: the exponential of a NaN is one.)
template <typename T>
HWY_INLINE float RowMaximum(const T* z, size_t n) {
  const hn::ScalableTag<float> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto maximum = lowest;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    maximum = hn::Max(memory.Mask(d, memory.Load(d, z + i), lowest), maximum);
  });
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

// The sum over z of e^(z_i - maximum).
template <typename T>
HWY_INLINE float RowExponentials(const T* z, size_t n, float maximum) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, maximum);
  auto sum = hn::Zero(d);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    sum = hn::Add(sum, memory.Mask(d, Exp(d, hn::Sub(memory.Load(d, z + i), m))));
  });
  return Sum(d, sum);
}

template <typename T>
float CrossEntropyRow(const T* z, size_t n, size_t target) {
  const float maximum = RowMaximum(z, n);
  return std::log(RowExponentials(z, n, maximum)) + (maximum - ToFloat(z[target]));
}

// The exponentials are taken twice: z has no room for them where it is bf16.
template <typename T>
void CrossEntropyGradientRow(T* z, size_t n, size_t target, float scale) {
  const hn::ScalableTag<float> d;
  const float maximum = RowMaximum(z, n);
  const auto m = hn::Set(d, maximum);
  const auto factor = hn::Set(d, scale / RowExponentials(z, n, maximum));
  const auto scaled = [&](auto zi) HWY_ATTR { return hn::Mul(Exp(d, hn::Sub(zi, m)), factor); };
  const float of_target = hn::GetLane(scaled(hn::Set(d, ToFloat(z[target]))));
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, scaled(memory.Load(d, z + i)), z + i);
  });
  z[target] = FromFloat<T>(of_target - scale);
}

auto CrossEntropyRows() {
  return std::make_tuple(CrossEntropyRow<float>, CrossEntropyRow<BFloat16>);
}
auto CrossEntropyGradientRows() {
  return std::make_tuple(CrossEntropyGradientRow<float>, CrossEntropyGradientRow<BFloat16>);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(CrossEntropyRows);
HWY_EXPORT(CrossEntropyGradientRows);

constexpr int64_t kRowGrain = 4;

template <typename T>
void CrossEntropyForward(Threads& threads, float* losses, const T* logits, const int32_t* targets,
                         int64_t rows, int64_t vocabulary) {
  const auto loss = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(CrossEntropyRows)());
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      assert(targets[row] >= -1 && targets[row] < vocabulary);
      losses[row] = targets[row] < 0
                        ? 0
                        : loss(logits + row * vocabulary, static_cast<size_t>(vocabulary),
                               static_cast<size_t>(targets[row]));
    }
  });
}

template <typename T>
void CrossEntropyBackward(Threads& threads, T* logits, const int32_t* targets, int64_t rows,
                          int64_t vocabulary, float scale) {
  const auto gradient = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(CrossEntropyGradientRows)());
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      assert(targets[row] >= -1 && targets[row] < vocabulary);
      T* const z = logits + row * vocabulary;
      if (targets[row] < 0) {
        std::fill_n(z, vocabulary, T{});
      } else {
        gradient(z, static_cast<size_t>(vocabulary), static_cast<size_t>(targets[row]), scale);
      }
    }
  });
}

template void CrossEntropyForward(Threads&, float*, const float*, const int32_t*, int64_t, int64_t);
template void CrossEntropyForward(Threads&, float*, const BFloat16*, const int32_t*, int64_t,
                                  int64_t);
template void CrossEntropyBackward(Threads&, float*, const int32_t*, int64_t, int64_t, float);
template void CrossEntropyBackward(Threads&, BFloat16*, const int32_t*, int64_t, int64_t, float);

}  // namespace zerobox::host
#endif  // HWY_ONCE
