// SPDX-License-Identifier: Apache-2.0
//
// Highway dispatches functions, not templates. So the vector code of a kernel is a template, and
// what is dispatched is a function that returns the template's instances, in this order:
//   over T:        (float, BFloat16)
//   over T and G:  (float, float), (BFloat16, BFloat16), (BFloat16, float)
// For example, with Range(T* x, size_t n):
//   auto Ranges() { return std::make_tuple(Range<float>, Range<BFloat16>); }   // for each target
//   HWY_EXPORT(Ranges);                                                   // once
//   InstanceOf<T>(HWY_DYNAMIC_DISPATCH(Ranges)())(x, n);
#ifndef ZEROBOX_OPS_HOST_INSTANCES_H_
#define ZEROBOX_OPS_HOST_INSTANCES_H_

#include <cstddef>
#include <tuple>
#include <type_traits>

#include "ops/bfloat16.h"

namespace zerobox::host {

template <typename T, typename Float, typename BF16>
auto InstanceOf(const std::tuple<Float, BF16>& instances) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, BFloat16>);
  constexpr size_t kIndex = std::is_same_v<T, float> ? 0 : 1;
  return std::get<kIndex>(instances);
}

template <typename T, typename G, typename Float, typename BF16, typename Mixed>
auto InstanceOf(const std::tuple<Float, BF16, Mixed>& instances) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, BFloat16>);
  static_assert(std::is_same_v<G, float> || std::is_same_v<G, T>);
  constexpr size_t kIndex = std::is_same_v<T, float> ? 0 : std::is_same_v<G, T> ? 1 : 2;
  return std::get<kIndex>(instances);
}

}  // namespace zerobox::host

#endif  // ZEROBOX_OPS_HOST_INSTANCES_H_
