// SPDX-License-Identifier: Apache-2.0
//
// Arrays for tests of kernels: memory in the middle of NaN, and what compares it.
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
#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "ops/host/threads.h"
#include "ops/philox.h"
#include "tests/reference.h"

namespace zerobox {

// n elements with NaN before and behind them, `shift` elements from an aligned address. Fresh
// memory is NaN too.
template <typename T>
class Values {
 public:
  explicit Values(int64_t n, int64_t shift = 0)
      : n_(n), shift_(shift), memory_(n + shift + 2 * kGuard, FromFloat<T>(kNaN)) {}
  explicit Values(const reference::Array& values, int64_t shift = 0)
      : Values(static_cast<int64_t>(values.size()), shift) {
    for (int64_t i = 0; i < n_; ++i) (*this)[i] = FromFloat<T>(static_cast<float>(values[i]));
  }
  // Normal numbers.
  static Values Random(int64_t n, uint64_t stream, double scale = 1) {
    Values x(n);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = FromFloat<T>(static_cast<float>(scale * NormalAt(11, stream, i)));
    }
    return x;
  }

  T* data() { return memory_.data() + kGuard + shift_; }
  const T* data() const { return memory_.data() + kGuard + shift_; }
  int64_t size() const { return n_; }
  T& operator[](int64_t i) { return data()[i]; }
  T operator[](int64_t i) const { return data()[i]; }
  reference::Array Doubles() const {
    reference::Array values(n_);
    std::transform(data(), data() + n_, values.begin(), [](T value) { return ToFloat(value); });
    return values;
  }
  // The same numbers in another type: widened or rounded.
  template <typename To>
  Values<To> As() const {
    Values<To> result(n_, shift_);
    for (int64_t i = 0; i < n_; ++i) result[i] = FromFloat<To>(ToFloat((*this)[i]));
    return result;
  }

  // Nothing but NaN around.
  bool GuardsAreIntact() const {
    const auto is_nan = [](T value) { return std::isnan(ToFloat(value)); };
    return std::all_of(memory_.data(), data(), is_nan) &&
           std::all_of(data() + n_, memory_.data() + memory_.size(), is_nan);
  }
  bool HasTheBitsOf(const Values& other) const {
    return n_ == other.n_ && std::memcmp(data(), other.data(), sizeof(T) * n_) == 0;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  int64_t n_, shift_;
  std::vector<T> memory_;
};
using Floats = Values<float>;

// Every element within `tolerance` of the expected one, relative to the largest of the expected;
// and no write beside the array.
template <typename T>
void ExpectClose(const Values<T>& actual, const reference::Array& expected, double tolerance,
                 const char* what) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size())) << what;
  double largest = 1e-30;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(ToFloat(actual[i]) - expected[i]);
    ASSERT_TRUE(difference <= tolerance * largest)
        << what << " " << i << " is " << ToFloat(actual[i]) << ", not " << expected[i];
  }
  EXPECT_TRUE(actual.GuardsAreIntact()) << what;
}

inline reference::Array operator+(reference::Array a, const reference::Array& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Dropout of a call, with its sample numbers and the factors that the reference takes.
struct TestDropout {
  TestDropout(float p, int64_t batch, DropoutSite site, int64_t sample_size) {
    for (int64_t b = 0; b < batch; ++b) samples.push_back(1000003 * b + 5);
    mask = {.p = p, .seed = 42, .samples = samples.data(), .site = site, .layer = 3};
    factors = reference::DropoutFactors(p, 42, samples, 3, site, sample_size);
  }
  std::vector<int64_t> samples;
  host::DropoutMask mask;
  reference::Array factors;
};

inline reference::Tokens RandomTokens(int64_t n, int64_t vocabulary) {
  reference::Tokens tokens(n);
  for (int64_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<int32_t>(UniformAt(1, 2, i) * static_cast<double>(vocabulary));
  }
  return tokens;
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
