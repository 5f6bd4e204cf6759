// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ops/host/matmul.h"
#include "tests/reference.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

class MatmulTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(LoadMatmul().ok()) << LoadMatmul(); }
};

TEST_F(MatmulTest, AgreesWithTheReferenceInEveryTransposition) {
  const std::array<std::array<int64_t, 3>, 8> shapes = {{{1, 1, 1},
                                                         {3, 5, 7},
                                                         {64, 64, 32},
                                                         {64, 11, 65},
                                                         {17, 33, 129},
                                                         {130, 101, 33},
                                                         {1, 300, 40},
                                                         {300, 1, 40}}};
  for (const auto& [m, n, k] : shapes) {
    for (int transposition = 0; transposition < 4; ++transposition) {
      const bool ta = (transposition & 1) != 0, tb = (transposition & 2) != 0;
      const Floats a = Floats::Random(m * k, 1), b = Floats::Random(k * n, 2);
      for (const float beta : {0.0f, 1.0f}) {
        for (const float alpha : {1.0f, 0.25f}) {
          Floats c(m * n);  // NaN, which beta 0 does not read
          reference::Array expected = reference::Product(a.Doubles(), ta, b.Doubles(), tb, m, n, k);
          for (double& value : expected) value *= alpha;
          if (beta != 0) {
            c = Floats::Random(m * n, 3);
            expected = expected + c.Doubles();
          }
          Matmul({.transpose_a = ta,
                  .transpose_b = tb,
                  .m = m,
                  .n = n,
                  .k = k,
                  .alpha = alpha,
                  .a = a.data(),
                  .lda = ta ? m : k,
                  .b = b.data(),
                  .ldb = tb ? k : n,
                  .beta = beta,
                  .c = c.data(),
                  .ldc = n});
          ExpectClose(c, expected, 2e-6, "c");
        }
      }
    }
  }
}

TEST_F(MatmulTest, LeadingDimensionsReachIntoLargerMatrices) {
  // 20 x 30 = 20 x 8 times 8 x 30, each a part of a matrix with NaN elsewhere.
  const int64_t m = 20, n = 30, k = 8, lda = 11, ldb = 37, ldc = 41;
  Floats a(m * lda), b(k * ldb), c(m * ldc);
  reference::Array dense_a(m * k), dense_b(k * n);
  for (int64_t i = 0; i < m * k; ++i)
    a[i / k * lda + i % k] = static_cast<float>(NormalAt(1, 1, i));
  for (int64_t i = 0; i < k * n; ++i)
    b[i / n * ldb + i % n] = static_cast<float>(NormalAt(1, 2, i));
  for (int64_t i = 0; i < m * k; ++i) dense_a[i] = a[i / k * lda + i % k];
  for (int64_t i = 0; i < k * n; ++i) dense_b[i] = b[i / n * ldb + i % n];
  Matmul({.m = m,
          .n = n,
          .k = k,
          .a = a.data(),
          .lda = lda,
          .b = b.data(),
          .ldb = ldb,
          .c = c.data(),
          .ldc = ldc});
  const reference::Array expected = reference::Product(dense_a, false, dense_b, false, m, n, k);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      if (j < n) {
        EXPECT_TRUE(std::abs(c[i * ldc + j] - expected[i * n + j]) <= 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(c[i * ldc + j]));
      }
    }
  }
}

}  // namespace
}  // namespace zerobox
