// SPDX-License-Identifier: Apache-2.0
//
// What tests of kernels share: memory of the emulated device, and a fixture that runs a test in
// each order of threads and fails it for everything that the emulator reports.
#ifndef ZEROBOX_TESTS_EMULATION_KERNEL_TEST_H_
#define ZEROBOX_TESTS_EMULATION_KERNEL_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/emulation/access_checker.h"
#include "tests/emulation/simt.h"
#include "tests/reference.h"
#include "tests/reference_arrays.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace zerobox {

// n elements of device memory, `shift` elements behind an address of 256 bytes. Before, behind and,
// unless it is given values, inside are bits that make a NaN. A write beside it fails the test; the
// address sanitizer sees each access beside it, and the checker of accesses each read of what
// nobody wrote.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t n, int64_t shift = 0)
      : n_(n), offset_(kGuardBytes + shift * sizeof(T)), bytes_(n * sizeof(T)) {
    const size_t all = (offset_ + bytes_ + kGuardBytes + 255) / 256 * 256;
    memory_ = static_cast<char*>(std::aligned_alloc(256, all));
    std::memset(memory_, 0xff, all);
    end_ = memory_ + all;
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory_, offset_);
    __asan_poison_memory_region(memory_ + offset_ + bytes_, all - offset_ - bytes_);
#endif
    if (auto* checker = simt::access_checker()) {
      checker->Watch(data(), bytes_, simt::MemoryKind::kDevice);
    }
  }
  explicit DeviceArray(std::span<const T> values, int64_t shift = 0)
      : DeviceArray(static_cast<int64_t>(values.size()), shift) {
    std::copy(values.begin(), values.end(), data());
    if (auto* checker = simt::access_checker()) {
      checker->HostAccess(data(), bytes_, simt::AccessKind::kWrite);
    }
  }
  explicit DeviceArray(const std::vector<T>& values, int64_t shift = 0)
      : DeviceArray(std::span<const T>(values), shift) {}
  explicit DeviceArray(const Values<T>& values, int64_t shift = 0)
      : DeviceArray(std::span<const T>(values.data(), values.size()), shift) {}
  ~DeviceArray() {
    if (auto* checker = simt::access_checker()) checker->Forget(data());
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(memory_, end_ - memory_);
#endif
    const auto is_guard = [](char c) { return c == '\xff'; };
    EXPECT_TRUE(std::all_of(memory_, memory_ + offset_, is_guard) &&
                std::all_of(memory_ + offset_ + bytes_, end_, is_guard))
        << "a write beside an array of " << n_ << " elements";
    std::free(memory_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(memory_ + offset_); }
  int64_t size() const { return n_; }
  T operator[](int64_t i) const { return data()[i]; }

 private:
  static constexpr size_t kGuardBytes = 256;
  int64_t n_;
  size_t offset_, bytes_;
  char* memory_;
  char* end_;
};

template <typename T>
Values<T> OnHost(const DeviceArray<T>& array) {
  Values<T> values(array.size());
  for (int64_t i = 0; i < array.size(); ++i) values[i] = array[i];
  return values;
}

template <typename T>
void ExpectClose(const DeviceArray<T>& actual, const reference::Array& expected, double tolerance,
                 const char* what) {
  ExpectClose(OnHost(actual), expected, tolerance, what);
}

// TEST_P(Suite, ...) of a Suite that derives from this, with ZEROBOX_IN_EVERY_ORDER(Suite).
class KernelTest : public testing::TestWithParam<simt::Order> {
 protected:
  void SetUp() override { simt::options().order = GetParam(); }
  void TearDown() override {
    for (const std::string& report : simt::TakeReports()) ADD_FAILURE() << report;
    simt::options() = {};
  }
};

}  // namespace zerobox

#define ZEROBOX_IN_EVERY_ORDER(Suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(                                                                \
      , Suite,                                                                             \
      testing::Values(simt::Order::kForward, simt::Order::kReverse, simt::Order::kRandom), \
      [](const testing::TestParamInfo<simt::Order>& order) {                               \
        return std::string(order.param == simt::Order::kForward   ? "Forward"              \
                           : order.param == simt::Order::kReverse ? "Reverse"              \
                                                                  : "Random");             \
      })

#endif  // ZEROBOX_TESTS_EMULATION_KERNEL_TEST_H_
