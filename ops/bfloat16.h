// SPDX-License-Identifier: Apache-2.0
//
// bf16: the upper half of an fp32. Storage only: arithmetic is fp32, and a result is rounded to the
// nearest bf16, ties to even, when it is written.
#ifndef ZEROBOX_OPS_BFLOAT16_H_
#define ZEROBOX_OPS_BFLOAT16_H_

#include <bit>
#include <cstdint>
#include <type_traits>

namespace zerobox {

struct BFloat16 {
  uint16_t bits = 0;
};

constexpr float ToFloat(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
constexpr float ToFloat(float x) { return x; }

// A NaN stays one (quiet, of the same sign); what is beyond the largest bf16 becomes infinite.
constexpr BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

// x as a T, which is float or BFloat16.
template <typename T>
constexpr T FromFloat(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(x);
  } else {
    return x;
  }
}

}  // namespace zerobox

#endif  // ZEROBOX_OPS_BFLOAT16_H_
