// SPDX-License-Identifier: Apache-2.0
//
// Dropout masks in vector code. Included once per target, inside foreach_target.
#if defined(ZEROBOX_OPS_HOST_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROBOX_OPS_HOST_DROPOUT_INL_H_
#undef ZEROBOX_OPS_HOST_DROPOUT_INL_H_
#else
#define ZEROBOX_OPS_HOST_DROPOUT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"
#include "ops/philox.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// Writes `blocks` blocks of Philox(counter, key) for a counter that counts up in its low 64 bits,
// and may write up to a vector more.
HWY_INLINE void PhiloxBlocks(PhiloxBlock counter, uint64_t key, size_t blocks, uint32_t* out) {
  const uint64_t first = uint64_t{counter[1]} << 32 | counter[0];
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < blocks; ++i) {
    const uint64_t position = first + i;
    counter[0] = static_cast<uint32_t>(position);
    counter[1] = static_cast<uint32_t>(position >> 32);
    const PhiloxBlock words = Philox(counter, key);
    for (size_t word = 0; word < 4; ++word) out[4 * i + word] = words[word];
  }
#else
  // A block a 64-bit lane. Its four words are the low halves of x0 .. x3; the high halves hold
  // whatever the multiplication, which does not look at them, left there.
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const auto multiply = [&](auto x, uint64_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, x), hn::BitCast(d32, hn::Set(d, factor)));
  };
  const auto low = hn::Set(d, 0xFFFFFFFF);
  for (size_t i = 0; i < blocks; i += hn::Lanes(d)) {
    auto x0 = hn::Iota(d, first + i);
    auto x1 = hn::ShiftRight<32>(x0);
    auto x2 = hn::Set(d, counter[2]);
    auto x3 = hn::Set(d, counter[3]);
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto a = multiply(x0, 0xD2511F53);
      const auto b = multiply(x2, 0xCD9E8D57);
      x0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), x1), hn::Set(d, k0));
      x1 = b;
      x2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), x3), hn::Set(d, k1));
      x3 = a;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const auto words01 = hn::Or(hn::And(x0, low), hn::ShiftLeft<32>(x1));
    const auto words23 = hn::Or(hn::And(x2, low), hn::ShiftLeft<32>(x3));
    hn::StoreInterleaved2(words01, words23, d, reinterpret_cast<uint64_t*>(out + 4 * i));
  }
#endif
}

// The masks of up to kElements elements at a time, which lie one behind the other in one sample.
class DropoutWords {
 public:
  static constexpr size_t kElements = 1024;

  DropoutWords(const DropoutMask& mask, int64_t sample_number)
      : seed_(mask.seed),
        counter_(DropoutCounter(static_cast<uint64_t>(sample_number),
                                static_cast<uint32_t>(mask.layer), static_cast<uint32_t>(mask.site),
                                0)),
        threshold_(DropoutThreshold(mask.p)),
        scale_(DropoutScale(mask.p)) {}

  // Draws the words of elements [first, first + count) of the sample.
  HWY_INLINE void Draw(uint64_t first, size_t count) {
    skip_ = first % 4;
    PhiloxBlock counter = counter_;
    counter[0] = static_cast<uint32_t>(first / 4);
    counter[1] |= static_cast<uint32_t>(first / 4 >> 32);
    PhiloxBlocks(counter, seed_, (skip_ + count + 3) / 4, words_);
  }

  // x / (1 - p) where element first + i of the sample and those behind it are kept, else 0.
  template <class D, class Memory, class V>
  HWY_INLINE V Apply(D d, Memory memory, size_t i, V x) const {
    const hn::RebindToUnsigned<D> du;
    const auto words = memory.Load(du, words_ + skip_ + i);
    const auto dropped = hn::Lt(words, hn::Set(du, threshold_));
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), hn::Mul(x, hn::Set(d, scale_)));
  }

 private:
  // Room for the words in front, and for a vector of blocks (of at most 2048 bits) behind.
  HWY_ALIGN uint32_t words_[kElements + 4 + 128];
  uint64_t seed_;
  PhiloxBlock counter_;
  uint32_t threshold_;
  float scale_;
  size_t skip_ = 0;
};

// Calls body(i, count) for runs of at most DropoutWords::kElements elements of [0, n), with the
// words of elements first + i .. first + i + count of the sample drawn.
template <class Body>
HWY_INLINE void ForDropoutRuns(DropoutWords& words, uint64_t first, size_t n, const Body& body) {
  for (size_t i = 0; i < n; i += DropoutWords::kElements) {
    const size_t count = HWY_MIN(DropoutWords::kElements, n - i);
    words.Draw(first + i, count);
    body(i, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#endif  // ZEROBOX_OPS_HOST_DROPOUT_INL_H_
