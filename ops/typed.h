// SPDX-License-Identifier: Apache-2.0
//
// From buffers, whose types are known at run time, to kernels that are templates over T and G
// (ops/ops.h): what every kind of device does before it calls one.
#ifndef ZEROBOX_OPS_TYPED_H_
#define ZEROBOX_OPS_TYPED_H_

#include <cassert>
#include <cstdint>

#include "ops/bfloat16.h"
#include "ops/device/buffer.h"

namespace zerobox {

template <typename T>
constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kInt32;

// The elements of a buffer, which has at least so many and is of type T.
template <typename T>
T* Data(const Buffer& buffer, int64_t at_least) {
  assert(buffer.dtype == kDTypeOf<T>);
  assert(buffer.elements >= at_least);
  (void)at_least;
  return buffer.As<T>();
}

// kernel<T>().
template <typename Kernel>
auto CallWith(DType t, const Kernel& kernel) {
  assert(t == DType::kFloat32 || t == DType::kBFloat16);
  if (t == DType::kFloat32) return kernel.template operator()<float>();
  return kernel.template operator()<BFloat16>();
}

// kernel<T, G>().
template <typename Kernel>
auto CallWith(DType t, DType g, const Kernel& kernel) {
  assert(t == DType::kFloat32 || t == DType::kBFloat16);
  assert(g == DType::kFloat32 || g == t);
  if (t == DType::kFloat32) return kernel.template operator()<float, float>();
  if (g == DType::kFloat32) return kernel.template operator()<BFloat16, float>();
  return kernel.template operator()<BFloat16, BFloat16>();
}

}  // namespace zerobox

#endif  // ZEROBOX_OPS_TYPED_H_
