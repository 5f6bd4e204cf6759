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
#include "ops/host/openblas.h"
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

// A product that every kernel of OpenBLAS, and every number of threads, rounds in its own way.
std::string BitsOfAProduct() {
  const int64_t m = 300, n = 250, k = 400;
  const Floats a = Floats::Random(m * k, 1), b = Floats::Random(k * n, 2);
  Floats c(m * n);
  Matmul({.m = m,
          .n = n,
          .k = k,
          .a = a.data(),
          .lda = k,
          .b = b.data(),
          .ldb = n,
          .c = c.data(),
          .ldc = n});
  uint64_t hash = 14695981039346656037u;
  for (int64_t i = 0; i < c.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &c[i], sizeof(bits));
    hash = (hash ^ bits) * 1099511628211u;
  }
  return std::to_string(hash);
}

TEST_F(MatmulTest, IsTheSameFromSeveralThreadsAtOnce) {
  const std::string expected = BitsOfAProduct();
  std::array<std::string, 6> bits;
  {
    std::vector<std::jthread> threads;
    for (std::string& b : bits) {
      threads.emplace_back([&b] {
        for (int i = 0; i < 5; ++i) b += (i == 0 ? "" : " ") + BitsOfAProduct();
      });
    }
  }
  const std::string five =
      expected + " " + expected + " " + expected + " " + expected + " " + expected;
  for (const std::string& b : bits) EXPECT_EQ(b, five);
}

// Set in the processes that a test starts: it then prints bits instead.
constexpr const char* kPrintBits = "ZEROBOX_TEST_PRINTS_BITS";

std::string BitsInAnotherProcess(const std::string& variables) {
  std::array<char, PATH_MAX> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return "no /proc/self/exe";
  const std::string command = std::string("env ") + kPrintBits + "=1 " + variables + " '" +
                              self.data() +
                              "' --gtest_filter=MatmulTest.EnvironmentVariablesChangeNothing";
  FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) output += line.data();
  EXPECT_EQ(pclose(pipe), 0) << output;
  const size_t begin = output.find("bits=");
  if (begin == std::string::npos) return output;
  return output.substr(begin + 5, output.find('\n', begin) - begin - 5);
}

TEST_F(MatmulTest, EnvironmentVariablesChangeNothing) {
  if (std::getenv(kPrintBits) != nullptr) {
    std::printf("bits=%s\n", BitsOfAProduct().c_str());
    return;
  }
  const std::string expected = BitsOfAProduct();
  EXPECT_EQ(BitsInAnotherProcess("A=b"), expected);
  EXPECT_EQ(BitsInAnotherProcess("OPENBLAS_NUM_THREADS=2 OMP_NUM_THREADS=2 GOTO_NUM_THREADS=2"),
            expected);
  EXPECT_EQ(BitsInAnotherProcess("OPENBLAS_CORETYPE=Prescott"), expected);
  EXPECT_EQ(BitsInAnotherProcess("OPENBLAS_CORETYPE=Nehalem OPENBLAS_VERBOSE=2"), expected);
}

TEST_F(MatmulTest, RemovesOpenBlasVariablesAndNoOthers) {
  setenv("OMP_NUM_THREADS", "3", 1);
  setenv("OPENBLAS_MAIN_FREE", "1", 1);
  setenv("GOTO_NUM_THREADS", "3", 1);
  setenv("COMPILED", "yes", 1);
  const auto blas = OpenOpenBlas(OpenBlasFiles(), OpenBlasCore());
  ASSERT_TRUE(blas.ok()) << blas.status();
  EXPECT_EQ(std::getenv("OMP_NUM_THREADS"), nullptr);
  EXPECT_EQ(std::getenv("OPENBLAS_MAIN_FREE"), nullptr);
  EXPECT_EQ(std::getenv("OPENBLAS_CORETYPE"), nullptr);
  EXPECT_EQ(std::getenv("GOTO_NUM_THREADS"), nullptr);
  EXPECT_STREQ(std::getenv("COMPILED"), "yes");
}

TEST(OpenBlas, ThatIsMissingIsNamedWithItsPackage) {
  const std::array<const char*, 2> files = {"/nowhere/libopenblas.so.0", "libnone.so.9"};
  const auto blas = OpenOpenBlas(files, "");
  EXPECT_EQ(blas.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(blas.status().message());
  EXPECT_NE(message.find("/nowhere/libopenblas.so.0"), std::string::npos) << message;
  EXPECT_NE(message.find("libnone.so.9"), std::string::npos) << message;
  EXPECT_NE(message.find("libopenblas0-pthread"), std::string::npos) << message;
  const std::array<const char*, 1> other = {"libm.so.6"};  // opens, but is not it
  EXPECT_EQ(OpenOpenBlas(other, "").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OpenBlas, SerialAndOpenMpBuildsAreRefused) {
  EXPECT_TRUE(CheckOpenBlas("lib", 1, "Haswell", "Haswell").ok());
  EXPECT_TRUE(CheckOpenBlas("lib", 1, "SKYLAKEX", "SkylakeX").ok());
  EXPECT_TRUE(CheckOpenBlas("lib", 1, "whatever", "").ok());
  const absl::Status serial = CheckOpenBlas("lib", 0, "Haswell", "Haswell");
  EXPECT_EQ(serial.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(serial.message().find("serial"), std::string::npos);
  const absl::Status openmp = CheckOpenBlas("lib", 2, "Haswell", "Haswell");
  EXPECT_EQ(openmp.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(openmp.message().find("OpenMP"), std::string::npos);
  const absl::Status core = CheckOpenBlas("lib", 1, "SapphireRapids", "SkylakeX");
  EXPECT_EQ(core.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(core.message().find("SapphireRapids"), std::string::npos);
}

}  // namespace
}  // namespace zerobox
