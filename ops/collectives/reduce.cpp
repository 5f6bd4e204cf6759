// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives/reduce.h"

#include <cassert>
#include <cstdint>

#include "ops/bfloat16.h"

namespace zerobox {
namespace {

// Elements that are summed at once: the sums stay in the first-level cache while each rank's part
// streams through, so memory is read and written once.
constexpr int64_t kChunk = 2048;

template <typename T>
T Widen(T value) {
  return value;
}
float Widen(BFloat16 value) { return ToFloat(value); }

template <typename T>
void Narrow(T value, T& to) {
  to = value;
}
void Narrow(float value, BFloat16& to) { to = ToBFloat16(value); }

template <typename T, typename Sum>
[[gnu::always_inline]] inline void SumChunk(Buffer to, std::span<const Buffer> from, int64_t begin,
                                            int64_t count) {
  alignas(64) Sum sums[kChunk];
  Sum* __restrict sum = sums;
  const T* __restrict first = from[0].As<T>() + begin;
  for (int64_t i = 0; i < count; ++i) sum[i] = Widen(first[i]);
  for (const Buffer& buffer : from.subspan(1)) {
    const T* __restrict next = buffer.As<T>() + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] += Widen(next[i]);
  }
  T* __restrict out = to.As<T>() + begin;
  for (int64_t i = 0; i < count; ++i) Narrow(sum[i], out[i]);
}

template <typename T, typename Sum>
void SumAll(Buffer to, std::span<const Buffer> from) {
  int64_t begin = 0;
  // A count that the compiler knows makes it use vectors.
  for (; begin + kChunk <= to.elements; begin += kChunk) {
    SumChunk<T, Sum>(to, from, begin, kChunk);
  }
  SumChunk<T, Sum>(to, from, begin, to.elements - begin);
}

}  // namespace

void SumInOrder(Buffer to, std::span<const Buffer> from) {
  assert(!from.empty());
  switch (to.dtype) {
    case DType::kFloat32:
      return SumAll<float, float>(to, from);
    case DType::kBFloat16:
      return SumAll<BFloat16, float>(to, from);
    case DType::kFloat64:
      return SumAll<double, double>(to, from);
    case DType::kInt32:
      return SumAll<uint32_t, uint32_t>(to, from);
    case DType::kInt64:
      return SumAll<uint64_t, uint64_t>(to, from);
  }
}

}  // namespace zerobox
