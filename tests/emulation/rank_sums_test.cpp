// SPDX-License-Identifier: Apache-2.0
//
// The sums of collectives on one GPU have the bits of the host's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops/collectives/reduce.h"
#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

template <typename T>
constexpr DType kDType = std::is_same_v<T, float>      ? DType::kFloat32
                         : std::is_same_v<T, BFloat16> ? DType::kBFloat16
                         : std::is_same_v<T, double>   ? DType::kFloat64
                         : std::is_same_v<T, uint32_t> ? DType::kInt32
                                                       : DType::kInt64;

// Calls test<T>() for every type.
template <typename Test>
void ForEachType(const Test& test) {
  test.template operator()<float>();
  test.template operator()<BFloat16>();
  test.template operator()<double>();
  test.template operator()<uint32_t>();
  test.template operator()<uint64_t>();
}

// Integers near the largest, whose sums wrap.
template <typename T>
std::vector<T> Numbers(int64_t n, uint64_t seed) {
  if constexpr (std::is_integral_v<T>) {
    std::vector<T> numbers;
    for (int64_t i = 0; i < n; ++i) {
      numbers.push_back(std::numeric_limits<T>::max() - static_cast<T>(7 * i + seed));
    }
    return numbers;
  } else if constexpr (std::is_same_v<T, double>) {
    const auto floats = Floats::Random(n, seed);
    std::vector<double> numbers;
    for (int64_t i = 0; i < n; ++i) numbers.push_back(floats[i] / 3.0);
    return numbers;
  } else {
    const auto values = Values<T>::Random(n, seed);
    return {values.data(), values.data() + n};
  }
}

template <typename T>
std::vector<T> Read(const DeviceArray<T>& array) {
  return {array.data(), array.data() + array.size()};
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// As SumInOrder has it.
template <typename T>
std::vector<T> SumOnHost(std::vector<std::vector<T>> operands) {
  std::vector<T> sums(operands[0].size());
  const auto buffer = [](std::vector<T>& values) {
    return Buffer{reinterpret_cast<std::byte*>(values.data()), std::ssize(values), kDType<T>};
  };
  std::vector<Buffer> from;
  for (std::vector<T>& values : operands) from.push_back(buffer(values));
  SumInOrder(buffer(sums), from);
  return sums;
}

// As in elementwise_test.cpp.
struct Size {
  int64_t n, shift;
};
constexpr Size kSizes[] = {{1, 0}, {7, 0}, {8, 0}, {9, 0}, {2053, 0}, {2061, 1}, {16, 3}};

class RankSums : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(RankSums);

template <typename T>
struct Arrays {
  Arrays(int ranks, const Size& size) {
    for (int r = 0; r < ranks; ++r) {
      values.push_back(Numbers<T>(size.n, static_cast<uint64_t>(r) + 1));
      arrays.emplace_back(values.back(), size.shift);
      to.push_back(arrays.back().data());
      from.push_back(arrays.back().data());
    }
  }
  std::vector<std::vector<T>> values;
  std::deque<DeviceArray<T>> arrays;  // by rank
  std::vector<T*> to;
  std::vector<const T*> from;
};

TEST_P(RankSums, HaveTheBitsOfTheHostInEveryRank) {
  ForEachType([]<typename T>() {
    for (const Size& size : kSizes) {
      for (int ranks = 1; ranks <= 5; ++ranks) {
        Arrays<T> a(ranks, size);
        ASSERT_EQ(cuda::SumRanks<T>(nullptr, a.to, a.from, size.n), cudaSuccess);
        const std::vector<T> expected = SumOnHost(a.values);
        for (const DeviceArray<T>& array : a.arrays) {
          EXPECT_TRUE(SameBits(Read(array), expected)) << ranks << " ranks, " << size.n;
        }
      }
    }
  });
}

TEST_P(RankSums, OfAPartGoToOneRankAndLeaveTheRest) {
  ForEachType([]<typename T>() {
    for (const Size& size : kSizes) {
      Arrays<T> a(3, size);
      const int64_t begin = size.n / 3, n = 2 * size.n / 3 - begin;  // of rank 1, not aligned
      std::vector<const T*> from;
      for (const T* data : a.from) from.push_back(data + begin);
      T* const to[] = {a.to[1] + begin};
      ASSERT_EQ(cuda::SumRanks<T>(nullptr, to, from, n), cudaSuccess);
      const std::vector<T> sums = SumOnHost(a.values);
      std::vector<T> expected = a.values[1];
      std::copy(sums.begin() + begin, sums.begin() + begin + n, expected.begin() + begin);
      EXPECT_TRUE(SameBits(Read(a.arrays[0]), a.values[0]));
      EXPECT_TRUE(SameBits(Read(a.arrays[1]), expected)) << size.n;
      EXPECT_TRUE(SameBits(Read(a.arrays[2]), a.values[2]));
    }
  });
}

TEST_P(RankSums, AreTakenOfAsManyRanksAsThereMayBe) {
  const Size size = {21, 0};
  Arrays<BFloat16> a(cuda::kMostSummedRanks, size);
  ASSERT_EQ(cuda::SumRanks<BFloat16>(nullptr, a.to, a.from, size.n), cudaSuccess);
  EXPECT_TRUE(SameBits(Read(a.arrays[63]), SumOnHost(a.values)));
}

TEST_P(RankSums, AreRoundedOnce) {
  // 256 + 1 + 1: bf16 numbers above 256 are 2 apart, and 257 is rounded to 256.
  const DeviceArray<BFloat16> large(std::vector{ToBFloat16(256)}), one(std::vector{ToBFloat16(1)});
  DeviceArray<BFloat16> sum(1);
  BFloat16* const to[] = {sum.data()};
  const BFloat16* const from[] = {large.data(), one.data(), one.data()};
  ASSERT_EQ(cuda::SumRanks<BFloat16>(nullptr, to, from, 1), cudaSuccess);
  EXPECT_EQ(ToFloat(sum[0]), 258);
}

TEST_P(RankSums, KeepNan) {
  const DeviceArray<float> nan(std::vector<float>(9, NAN)), one(std::vector<float>(9, 1));
  DeviceArray<float> sum(9);
  float* const to[] = {sum.data()};
  const float* const from[] = {one.data(), nan.data()};
  ASSERT_EQ(cuda::SumRanks<float>(nullptr, to, from, 9), cudaSuccess);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isnan(sum[i]));
}

TEST(RankSumsLauncher, RefusesMoreRanksAndNoneAndLaunchesNothingForNoElements) {
  float* const one[] = {nullptr};
  const float* const operand[] = {nullptr};
  const std::vector<float*> many(cuda::kMostSummedRanks + 1);
  const std::vector<const float*> many_operands(cuda::kMostSummedRanks + 1);
  EXPECT_EQ(cuda::SumRanks<float>(nullptr, one, operand, 0), cudaSuccess);
  EXPECT_EQ(cuda::SumRanks<float>(nullptr, many, operand, 8), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SumRanks<float>(nullptr, one, many_operands, 8), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SumRanks<float>(nullptr, one, {}, 8), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SumRanks<float>(nullptr, {}, operand, 8), cudaErrorInvalidValue);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
