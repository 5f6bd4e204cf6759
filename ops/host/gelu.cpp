// SPDX-License-Identifier: Apache-2.0
//
// GELU, tanh form (arXiv:1606.08415, section 2):
//   gelu(x) = x/2 (1 + tanh u),  u = sqrt(2/pi) (x + 0.044715 x^3)
// and since (1 + tanh u) / 2 = 1 / (1 + e^-2u) = s, which loses nothing where tanh u is near -1,
//   gelu(x)  = x s
//   gelu'(x) = s + x s (1 - s) 2 du/dx,  du/dx = sqrt(2/pi) (1 + 3 0.044715 x^2).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/gelu.cpp"
#include <tuple>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

constexpr float kTwoSqrt2OverPi = 1.59576912f;
constexpr float kCubic = 0.044715f;

// e^-2u. At most e^80, so that s = 1 / (1 + e) stays a normal number.
template <class D, class V>
HWY_INLINE V ExpMinus2U(D d, V x, V x2) {
  const V minus_2u = hn::Mul(hn::Mul(x, hn::Set(d, -kTwoSqrt2OverPi)),
                             hn::MulAdd(x2, hn::Set(d, kCubic), hn::Set(d, 1.0f)));
  return Exp(d, hn::Min(hn::Set(d, 80.0f), minus_2u));
}

template <typename T>
void GeluForwardRange(T* out, const T* x, size_t n) {
  const hn::ScalableTag<float> d;
  const auto one = hn::Set(d, 1.0f);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    const auto xi = memory.Load(d, x + i);
    const auto e = ExpMinus2U(d, xi, hn::Mul(xi, xi));
    memory.Store(d, hn::Div(xi, hn::Add(one, e)), out + i);
  });
}

template <typename T>
void GeluBackwardRange(T* dx, const T* x, const T* dout, size_t n) {
  const hn::ScalableTag<float> d;
  const auto one = hn::Set(d, 1.0f);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    const auto xi = memory.Load(d, x + i);
    const auto x2 = hn::Mul(xi, xi);
    const auto e = ExpMinus2U(d, xi, x2);
    const auto s = hn::Div(one, hn::Add(one, e));
    const auto one_minus_s = hn::Mul(e, s);
    const auto two_du =
        hn::MulAdd(x2, hn::Set(d, kTwoSqrt2OverPi * 3 * kCubic), hn::Set(d, kTwoSqrt2OverPi));
    const auto slope = hn::MulAdd(hn::Mul(hn::Mul(xi, s), one_minus_s), two_du, s);
    memory.Store(d, hn::Mul(memory.Load(d, dout + i), slope), dx + i);
  });
}

auto GeluForwardRanges() {
  return std::make_tuple(GeluForwardRange<float>, GeluForwardRange<BFloat16>);
}
auto GeluBackwardRanges() {
  return std::make_tuple(GeluBackwardRange<float>, GeluBackwardRange<BFloat16>);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(GeluForwardRanges);
HWY_EXPORT(GeluBackwardRanges);

constexpr int64_t kGrain = 4096;

template <typename T>
void GeluForward(Threads& threads, T* out, const T* x, int64_t n) {
  const auto range = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(GeluForwardRanges)());
  ForRanges(threads, n, kGrain, [&](int64_t begin, int64_t end) {
    range(out + begin, x + begin, static_cast<size_t>(end - begin));
  });
}

template <typename T>
void GeluBackward(Threads& threads, T* dx, const T* x, const T* dout, int64_t n) {
  const auto range = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(GeluBackwardRanges)());
  ForRanges(threads, n, kGrain, [&](int64_t begin, int64_t end) {
    range(dx + begin, x + begin, dout + begin, static_cast<size_t>(end - begin));
  });
}

template void GeluForward(Threads&, float*, const float*, int64_t);
template void GeluForward(Threads&, BFloat16*, const BFloat16*, int64_t);
template void GeluBackward(Threads&, float*, const float*, const float*, int64_t);
template void GeluBackward(Threads&, BFloat16*, const BFloat16*, const BFloat16*, int64_t);

}  // namespace zerobox::host
#endif  // HWY_ONCE
