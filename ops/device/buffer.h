// SPDX-License-Identifier: Apache-2.0
//
// Buffer: a run of elements in the memory of one device. A value that owns nothing.
#ifndef ZEROBOX_OPS_DEVICE_BUFFER_H_
#define ZEROBOX_OPS_DEVICE_BUFFER_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zerobox {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat64, kInt32, kInt64 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
  }
  return 0;
}

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat64:
      return "fp64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "";
}

// `data` is an address on the device: the host may not follow it unless the device is a host
// device. On a planning device it is a number that nobody may follow at all, which is why Slice
// computes with integers.
struct Buffer {
  std::byte* data = nullptr;
  int64_t elements = 0;
  DType dtype = DType::kFloat32;

  int64_t bytes() const { return elements * SizeOf(dtype); }
  bool empty() const { return elements == 0; }

  // Elements [begin, begin + count).
  Buffer Slice(int64_t begin, int64_t count) const {
    assert(begin >= 0 && count >= 0 && begin + count <= elements);
    const uintptr_t address =
        reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(begin * SizeOf(dtype));
    return {reinterpret_cast<std::byte*>(address), count, dtype};
  }

  template <typename T>
  T* As() const {
    assert(static_cast<int64_t>(sizeof(T)) == SizeOf(dtype));
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_BUFFER_H_
