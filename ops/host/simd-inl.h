// SPDX-License-Identifier: Apache-2.0
//
// What several host kernels need in vector code. Included once per target, inside foreach_target.
#if defined(ZEROBOX_OPS_HOST_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROBOX_OPS_HOST_SIMD_INL_H_
#undef ZEROBOX_OPS_HOST_SIMD_INL_H_
#else
#define ZEROBOX_OPS_HOST_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "ops/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The first n lanes in memory, the others 0. Touches nothing behind them.
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadPart(D d, const T* p, size_t n) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
  for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#endif
}

template <class D, class V, typename T>
HWY_INLINE void StorePart(D d, V v, T* p, size_t n) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < n; ++i) p[i] = lanes[i];
#else
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#endif
}

// bf16 in memory is fp32 in registers, with the bits that ToFloat and ToBFloat16 give.
template <class D>
using BFloat16Tag = hn::Rebind<uint16_t, D>;

HWY_INLINE const uint16_t* Bits(const BFloat16* p) { return reinterpret_cast<const uint16_t*>(p); }
HWY_INLINE uint16_t* Bits(BFloat16* p) { return reinterpret_cast<uint16_t*>(p); }

template <class D>
HWY_INLINE hn::Vec<D> FromBFloat16(D d, hn::Vec<BFloat16Tag<D>> bits) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

// To the nearest, ties to even, in integers. A NaN could become infinite that way, so it keeps its
// upper half and is made quiet.
template <class D, class V>
HWY_INLINE hn::Vec<BFloat16Tag<D>> RoundToBFloat16(D, V v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::TruncateTo(BFloat16Tag<D>(), hn::IfThenElse(nan, quiet, rounded));
}

// How a step of ForLanes reaches memory: a whole vector, or the last n lanes of a run.
struct Whole {
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> Load(D d, const T* p) const {
    return hn::LoadU(d, p);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, const BFloat16* p) const {
    return FromBFloat16(d, hn::LoadU(BFloat16Tag<D>(), Bits(p)));
  }
  template <class D, class V, typename T>
  HWY_INLINE void Store(D d, V v, T* p) const {
    hn::StoreU(v, d, p);
  }
  template <class D, class V>
  HWY_INLINE void Store(D d, V v, BFloat16* p) const {
    hn::StoreU(RoundToBFloat16(d, v), BFloat16Tag<D>(), Bits(p));
  }
  // v where the run has elements, 0 elsewhere.
  template <class D, class V>
  HWY_INLINE V Mask(D, V v) const {
    return v;
  }
  // v where the run has elements, `other` elsewhere.
  template <class D, class V>
  HWY_INLINE V Mask(D, V v, V) const {
    return v;
  }
};

struct Tail {
  size_t n;
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> Load(D d, const T* p) const {
    return LoadPart(d, p, n);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, const BFloat16* p) const {
    return FromBFloat16(d, LoadPart(BFloat16Tag<D>(), Bits(p), n));
  }
  template <class D, class V, typename T>
  HWY_INLINE void Store(D d, V v, T* p) const {
    StorePart(d, v, p, n);
  }
  template <class D, class V>
  HWY_INLINE void Store(D d, V v, BFloat16* p) const {
    StorePart(BFloat16Tag<D>(), RoundToBFloat16(d, v), Bits(p), n);
  }
  template <class D, class V>
  HWY_INLINE V Mask(D d, V v) const {
    return hn::IfThenElseZero(hn::FirstN(d, n), v);
  }
  template <class D, class V>
  HWY_INLINE V Mask(D d, V v, V other) const {
    return hn::IfThenElse(hn::FirstN(d, n), v, other);
  }
};

// Calls body(i, memory) for i = 0, Lanes(d), ... < n. The tail runs the same code on the same
// lanes, so an element-wise body gives an element the same bits wherever it stands.
template <class D, class Body>
HWY_INLINE void ForLanes(D d, size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole());
  if (i < n) body(i, Tail{n - i});
}

// to += from, over n elements: a bf16 is rounded once.
template <typename To, typename From>
HWY_INLINE void AddTo(To* to, const From* from, size_t n) {
  const hn::ScalableTag<float> d;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Add(memory.Load(d, to + i), memory.Load(d, from + i)), to + i);
  });
}

template <class D, class V>
HWY_INLINE hn::TFromD<D> Sum(D d, V v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// e^x to 1 ulp or 2 for x <= 88, which larger x are taken for; 0 for x < -87. NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n e^r; e^r = 1 + r + r^2 q(r), where q interpolates
// at Chebyshev's points (relative error 1e-8).
template <class D, class V>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V clamped = hn::Min(hn::Set(d, 88.0f), hn::Max(hn::Set(d, -87.0f), x));
  const V n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), clamped);  // ln 2, the leading bits
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);              // and the others
  V q = hn::Set(d, 0.00139262131f);
  q = hn::MulAdd(q, r, hn::Set(d, 0.00836320315f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.0416665561f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.166665763f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.5f));
  const V one = hn::Set(d, 1.0f);
  const V e = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), one);
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const V result = hn::Mul(e, hn::BitCast(d, exponent));
  const V zeroed = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), result);
  return hn::IfThenElse(hn::IsNaN(x), x, zeroed);  // Min and Max differ over NaN among targets
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#endif  // ZEROBOX_OPS_HOST_SIMD_INL_H_
