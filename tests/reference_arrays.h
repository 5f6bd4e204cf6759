// SPDX-License-Identifier: Apache-2.0
//
// Arrays for tests of kernels: fp32 memory in the middle of NaN, and what compares it.
#ifndef ZEROBOX_TESTS_REFERENCE_ARRAYS_H_
#define ZEROBOX_TESTS_REFERENCE_ARRAYS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "hwy/targets.h"
#include "ops/host/threads.h"
#include "ops/philox.h"
#include "tests/reference.h"

namespace zerobox {

// n floats with NaN before and behind them, `shift` elements from an aligned address. Fresh memory
// is NaN too.
class Floats {
 public:
  explicit Floats(int64_t n, int64_t shift = 0)
      : n_(n), shift_(shift), memory_(n + shift + 2 * kGuard, kNaN) {}
  explicit Floats(const reference::Array& values, int64_t shift = 0)
      : Floats(static_cast<int64_t>(values.size()), shift) {
    std::copy(values.begin(), values.end(), data());
  }
  // Normal numbers.
  static Floats Random(int64_t n, uint64_t stream, double scale = 1) {
    Floats x(n);
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(scale * NormalAt(11, stream, i));
    return x;
  }

  float* data() { return memory_.data() + kGuard + shift_; }
  const float* data() const { return memory_.data() + kGuard + shift_; }
  int64_t size() const { return n_; }
  float& operator[](int64_t i) { return data()[i]; }
  float operator[](int64_t i) const { return data()[i]; }
  reference::Array Doubles() const { return {data(), data() + n_}; }

  // Nothing but NaN around.
  bool GuardsAreIntact() const {
    return std::all_of(memory_.data(), data(), [](float v) { return std::isnan(v); }) &&
           std::all_of(data() + n_, memory_.data() + memory_.size(),
                       [](float v) { return std::isnan(v); });
  }
  bool HasTheBitsOf(const Floats& other) const {
    return n_ == other.n_ && std::memcmp(data(), other.data(), sizeof(float) * n_) == 0;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  int64_t n_, shift_;
  std::vector<float> memory_;
};

// Every element within `tolerance` of the expected one, relative to the largest of the expected;
// and no write beside the array.
inline void ExpectClose(const Floats& actual, const reference::Array& expected, double tolerance,
                        const char* what) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size())) << what;
  double largest = 1e-30;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    ASSERT_TRUE(difference <= tolerance * largest)
        << what << " " << i << " is " << actual[i] << ", not " << expected[i];
  }
  EXPECT_TRUE(actual.GuardsAreIntact()) << what;
}

inline reference::Array operator+(reference::Array a, const reference::Array& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Real threads, a new one for each task but the first.
class TestThreads final : public host::Threads {
 public:
  explicit TestThreads(int count) : count_(count) {}
  int count() const override { return count_; }
  void For(int64_t tasks, const std::function<void(int64_t)>& task) override {
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < tasks; ++i) others.emplace_back([&task, i] { task(i); });
    if (tasks > 0) task(0);
  }

 private:
  int count_;
};

// Runs a test once for each SIMD target that this CPU has.
class SimdTargetTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

}  // namespace zerobox

#define ZEROBOX_FOR_EACH_SIMD_TARGET(Suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                           [](const testing::TestParamInfo<int64_t>& target) {              \
                             return std::string(hwy::TargetName(target.param));             \
                           })

#endif  // ZEROBOX_TESTS_REFERENCE_ARRAYS_H_
