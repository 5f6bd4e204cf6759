// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by (a fake of) cuBLASLt: shapes, types, epilogues fused and not, and what is
// cached, against sums in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/status.h"
#include "tests/emulation/fake_cublaslt.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox::cuda {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr DType kFloat = DType::kFloat32;
constexpr DType kBFloat = DType::kBFloat16;

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double GeluDerivative(double x) {
  const double h = 1e-5;
  return (Gelu(x + h) - Gelu(x - h)) / (2 * h);
}

// Elements in device memory of the fake, which the host may read and write when nothing runs.
class Array {
 public:
  Array(DType dtype, int64_t n, int64_t shift = 0) : dtype_(dtype), n_(n) {
    EXPECT_EQ(cudaMalloc(&memory_, static_cast<size_t>((n + shift) * SizeOf(dtype))), cudaSuccess);
    data_ = static_cast<char*>(memory_) + shift * SizeOf(dtype);
  }
  ~Array() { (void)cudaFree(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  Array& Random(unsigned seed) {
    std::mt19937 bits(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < n_; ++i) Set(i, uniform(bits));
    fake_cuda::HostAccess({data_, static_cast<size_t>(n_ * SizeOf(dtype_)), true});
    return *this;
  }
  double operator[](int64_t i) const {
    if (dtype_ == kFloat) return static_cast<const float*>(data())[i];
    return ToFloat(static_cast<const BFloat16*>(data())[i]);
  }
  std::vector<double> values() const {
    std::vector<double> values(static_cast<size_t>(n_));
    for (int64_t i = 0; i < n_; ++i) values[static_cast<size_t>(i)] = (*this)[i];
    return values;
  }
  void Set(int64_t i, float value) {
    if (dtype_ == kFloat) {
      static_cast<float*>(data())[i] = value;
    } else {
      static_cast<BFloat16*>(data())[i] = ToBFloat16(value);
    }
  }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return n_; }

 private:
  DType dtype_;
  int64_t n_;
  void* memory_ = nullptr;
  void* data_ = nullptr;
};

// The kernels' places, as host code in the stream's turn.
class HostEpilogues final : public EpilogueKernels {
 public:
  absl::Status AddBias(cudaStream_t stream, DType type, void* y, const void* bias, int64_t rows,
                       int64_t columns) override {
    return Enqueue(stream,
                   {Range(bias, type, columns, false), Range(y, type, rows * columns, true)}, [=] {
                     for (int64_t i = 0; i < rows * columns; ++i) {
                       Put(type, y, i, Get(type, y, i) + Get(type, bias, i % columns));
                     }
                   });
  }
  absl::Status GeluForward(cudaStream_t stream, DType type, void* out, const void* x,
                           int64_t n) override {
    return Enqueue(stream, {Range(x, type, n, false), Range(out, type, n, true)}, [=] {
      for (int64_t i = 0; i < n; ++i) Put(type, out, i, Gelu(Get(type, x, i)));
    });
  }
  absl::Status GeluBackward(cudaStream_t stream, DType type, void* dx, const void* x,
                            const void* dout, int64_t n) override {
    return Enqueue(stream, {Range(x, type, n, false), Range(dx, type, n, true)}, [=] {
      for (int64_t i = 0; i < n; ++i) {
        Put(type, dx, i, Get(type, dout, i) * GeluDerivative(Get(type, x, i)));
      }
    });
  }
  absl::Status SumColumns(cudaStream_t stream, DType sums_type, void* sums, DType x_type,
                          const void* x, int64_t rows, int64_t columns) override {
    return Enqueue(stream,
                   {Range(x, x_type, rows * columns, false), Range(sums, sums_type, columns, true)},
                   [=] {
                     for (int64_t c = 0; c < columns; ++c) {
                       double sum = 0;
                       for (int64_t r = 0; r < rows; ++r) sum += Get(x_type, x, r * columns + c);
                       Put(sums_type, sums, c, sum);
                     }
                   });
  }

 private:
  static double Get(DType type, const void* data, int64_t i) {
    if (type == kFloat) return static_cast<const float*>(data)[i];
    return ToFloat(static_cast<const BFloat16*>(data)[i]);
  }
  static void Put(DType type, void* data, int64_t i, double value) {
    if (type == kFloat) {
      static_cast<float*>(data)[i] = static_cast<float>(value);
    } else {
      static_cast<BFloat16*>(data)[i] = ToBFloat16(static_cast<float>(value));
    }
  }
  static fake_cuda::Access Range(const void* data, DType type, int64_t n, bool write) {
    return {data, static_cast<size_t>(n * SizeOf(type)), write};
  }
  static absl::Status Enqueue(cudaStream_t stream, std::vector<fake_cuda::Access> accesses,
                              std::function<void()> work) {
    return ToStatus(
        fake_cuda::Enqueue(stream, "epilogue kernel", std::move(accesses), std::move(work)),
        "launch");
  }
};

class CudaMatmul : public testing::Test {
 protected:
  static constexpr int64_t kWorkspaceBytes = 1024;
  void SetUp() override {
    fake_cuda::Reset({});
    fake_cublaslt::SetUnsupported(nullptr);
    fake_cublaslt::TakeCounts();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&workspace_, kWorkspaceBytes), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), cudaSuccess);
  }
  void TearDown() override { EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()); }

  std::unique_ptr<Matmul> Make(const MatmulOptions& options = {}) {
    auto matmul = Matmul::Make(workspace_, kWorkspaceBytes, kernels_, options);
    EXPECT_TRUE(matmul.ok()) << matmul.status();
    return *std::move(matmul);
  }
  void Finish() { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

  // One call on random operands, against double.
  void Check(Matmul& matmul, MatmulCall call, int64_t shift = 0) {
    const int64_t m = call.rows, n = call.columns, k = call.inner;
    Array a(call.in, m * k, shift), b(call.in, k * n, shift), d(call.out, m * n, shift);
    Array bias(call.out, n, shift), aux(call.out, m * n, shift);
    a.Random(1);
    b.Random(2);
    if (call.accumulate) d.Random(3);
    if (call.epilogue != Epilogue::kBiasGradient) bias.Random(4);
    if (call.epilogue == Epilogue::kGeluGradient) aux.Random(5);
    const std::vector<double> before = d.values();
    call.a = a.data();
    call.b = b.data();
    call.d = d.data();
    call.bias = bias.data();
    call.aux = aux.data();
    ASSERT_TRUE(matmul.Run(stream_, call).ok());
    Finish();
    // bf16 is rounded twice where the epilogue is a kernel of its own.
    const double tolerance = call.out == kFloat ? 2e-6 * std::sqrt(k) + 1e-6 : 1.0 / 64;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double expected = call.accumulate ? before[static_cast<size_t>(i * n + j)] : 0;
        for (int64_t l = 0; l < k; ++l) {
          expected += a[call.transpose_a ? l * m + i : i * k + l] *
                      b[call.transpose_b ? j * k + l : l * n + j];
        }
        if (call.epilogue == Epilogue::kBias || call.epilogue == Epilogue::kBiasGelu) {
          expected += bias[j];
        }
        if (call.epilogue == Epilogue::kBiasGelu) {
          ASSERT_TRUE(std::abs(aux[i * n + j] - expected) <= tolerance * (1 + std::abs(expected)));
          expected = Gelu(expected);
        }
        if (call.epilogue == Epilogue::kGeluGradient) expected *= GeluDerivative(aux[i * n + j]);
        ASSERT_TRUE(std::abs(d[i * n + j] - expected) <= tolerance * (1 + std::abs(expected)))
            << d[i * n + j] << " is not " << expected << " at " << i << ", " << j;
      }
    }
    if (call.epilogue != Epilogue::kBiasGradient) return;
    for (int64_t j = 0; j < n; ++j) {
      double expected = 0;
      for (int64_t l = 0; l < k; ++l) expected += b[l * n + j];
      ASSERT_TRUE(std::abs(bias[j] - expected) <= tolerance * (1 + std::abs(expected)));
    }
  }

  void* workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
  HostEpilogues kernels_;
};

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{kFloat, kFloat}, {kBFloat, kBFloat}, {kBFloat, kFloat}};

TEST_F(CudaMatmul, MultipliesEveryShapeTypeAndTransposition) {
  auto matmul = Make();
  for (const Types& types : kTypes) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          for (const auto& [m, n, k] : {std::array<int64_t, 3>{5, 24, 33}, {17, 1, 8}, {1, 7, 1}}) {
            Check(*matmul, {.rows = m,
                            .columns = n,
                            .inner = k,
                            .transpose_a = transpose_a,
                            .transpose_b = transpose_b,
                            .in = types.in,
                            .out = types.out,
                            .accumulate = accumulate});
          }
        }
      }
    }
  }
}

TEST_F(CudaMatmul, ComputesEveryEpilogueFusedAndNot) {
  for (const bool fuse : {true, false}) {
    for (const bool supported : {true, false}) {
      MatmulOptions options;
      options.fuse_bias = options.fuse_gelu = options.fuse_bias_gradient = fuse;
      auto matmul = Make(options);
      fake_cublaslt::SetUnsupported(
          [&](cublasLtEpilogue_t e) { return !supported && e != CUBLASLT_EPILOGUE_DEFAULT; });
      for (const Types& types : kTypes) {
        for (const Epilogue epilogue : {Epilogue::kBias, Epilogue::kBiasGelu,
                                        Epilogue::kGeluGradient, Epilogue::kBiasGradient}) {
          Check(*matmul, {.rows = 9,
                          .columns = 16,
                          .inner = 12,
                          .transpose_a = epilogue == Epilogue::kBiasGradient,
                          .transpose_b = epilogue == Epilogue::kGeluGradient,
                          .in = types.in,
                          .out = types.out,
                          .epilogue = epilogue});
        }
        Check(*matmul, {.rows = 9,
                        .columns = 16,
                        .inner = 12,
                        .transpose_a = true,
                        .in = types.in,
                        .out = types.out,
                        .accumulate = true,
                        .epilogue = Epilogue::kBiasGradient});
      }
      EXPECT_EQ(matmul->counts().fused, fuse && supported ? 15 : 0);
      EXPECT_EQ(matmul->counts().unfused, fuse && supported ? 0 : 15);
    }
  }
}

TEST_F(CudaMatmul, DoesNotFuseGeluWhereAuxWouldNotBeAligned) {
  auto matmul = Make();
  Check(*matmul, {.rows = 3, .columns = 12, .inner = 5, .epilogue = Epilogue::kBiasGelu});
  Check(*matmul, {.rows = 3, .columns = 12, .inner = 5, .epilogue = Epilogue::kGeluGradient});
  EXPECT_EQ(matmul->counts().unfused, 2);
}

TEST_F(CudaMatmul, ChoosesAnAlgorithmOnceForEachShapeAndAlignment) {
  auto matmul = Make();
  const MatmulCall call = {.rows = 8, .columns = 16, .inner = 4, .in = kBFloat, .out = kBFloat};
  for (int repeat = 0; repeat < 3; ++repeat) Check(*matmul, call);
  EXPECT_EQ(matmul->counts().shapes, 1);
  for (int repeat = 0; repeat < 2; ++repeat) Check(*matmul, call, /*shift=*/1);
  EXPECT_EQ(matmul->counts().shapes, 2);
  MatmulCall other = call;
  other.accumulate = true;
  Check(*matmul, other);
  other = call;
  other.inner = 5;
  Check(*matmul, other);
  EXPECT_EQ(matmul->counts().shapes, 4);
  const fake_cublaslt::Counts counts = fake_cublaslt::TakeCounts();
  EXPECT_EQ(counts.heuristics, 4);
  EXPECT_EQ(counts.products, 7);
}

TEST_F(CudaMatmul, TakesItsOwnOperandsInEveryCallOfAKnownShape) {
  auto matmul = Make();
  for (const Epilogue epilogue :
       {Epilogue::kBias, Epilogue::kBiasGelu, Epilogue::kGeluGradient, Epilogue::kBiasGradient}) {
    const MatmulCall call = {.rows = 16,
                             .columns = 16,
                             .inner = 16,
                             .transpose_a = epilogue == Epilogue::kBiasGradient,
                             .transpose_b = epilogue == Epilogue::kGeluGradient,
                             .epilogue = epilogue};
    Check(*matmul, call);
    // Where those of the first call were.
    std::deque<Array> taken;
    for (int i = 0; i < 4; ++i) taken.emplace_back(kFloat, 16 * 16, 0);
    taken.emplace_back(kFloat, 16, 0);
    Check(*matmul, call);
  }
  EXPECT_EQ(matmul->counts().shapes, 4);
}

// Buffers of a pool begin on 128 bytes, every other one on 256.
TEST_F(CudaMatmul, ChoosesTheSameAlgorithmWhereverThePoolHasABuffer) {
  auto matmul = Make();
  const MatmulCall call = {.rows = 8, .columns = 16, .inner = 4};
  for (const int64_t shift : {0, 32, 64}) Check(*matmul, call, shift);
  EXPECT_EQ(matmul->counts().shapes, 1);
}

TEST_F(CudaMatmul, UsesTf32OnlyWhenAskedAndOnlyForFp32) {
  for (const bool tf32 : {false, true}) {
    auto matmul = Make({.tf32 = tf32});
    Check(*matmul, {.rows = 3, .columns = 4, .inner = 5});
    Check(*matmul, {.rows = 3, .columns = 4, .inner = 5, .in = kBFloat});
    const fake_cublaslt::Counts counts = fake_cublaslt::TakeCounts();
    EXPECT_EQ(counts.products, 2);
    EXPECT_EQ(counts.tf32_products, tf32 ? 1 : 0);
  }
}

TEST_F(CudaMatmul, SaysWhichShapeHasNoAlgorithm) {
  auto matmul = Make();
  fake_cublaslt::SetUnsupported([](cublasLtEpilogue_t) { return true; });
  Array d(kFloat, 12);
  const absl::Status status =
      matmul->Run(stream_, {.rows = 3, .columns = 4, .inner = 5, .d = d.data()});
  EXPECT_THAT(std::string(status.message()), HasSubstr("(3, 5) x (5, 4) of fp32 to fp32"));
}

TEST_F(CudaMatmul, NothingIsDoneForNoElements) {
  auto matmul = Make();
  EXPECT_TRUE(matmul->Run(stream_, {.rows = 0, .columns = 4, .inner = 5}).ok());
  EXPECT_EQ(fake_cublaslt::TakeCounts().products, 0);
}

TEST_F(CudaMatmul, AWorkspaceThatTwoStreamsShareIsReported) {
  auto matmul = Make();
  cudaStream_t other;
  ASSERT_EQ(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, 0), cudaSuccess);
  Array a(kFloat, 4), b(kFloat, 4), d(kFloat, 4), e(kFloat, 4);
  a.Random(1);
  b.Random(2);
  MatmulCall call = {.rows = 2, .columns = 2, .inner = 2};
  call.a = a.data();
  call.b = b.data();
  call.d = d.data();
  ASSERT_TRUE(matmul->Run(stream_, call).ok());
  call.d = e.data();
  ASSERT_TRUE(matmul->Run(other, call).ok());
  Finish();
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  // By the runtime's own words, or in BUILD=emu-race by the checker's.
  EXPECT_THAT(fake_cuda::TakeReports(),
              Contains(AllOf(HasSubstr("race"), HasSubstr("cublasLtMatmul"))));
}

TEST_F(CudaMatmul, AnErrorOfAnyCallIsReturnedWithItsName) {
  const auto run = [&]() -> absl::Status {
    auto matmul = Matmul::Make(workspace_, kWorkspaceBytes, kernels_);
    if (!matmul.ok()) return matmul.status();
    Array a(kFloat, 64), b(kFloat, 64), d(kFloat, 64), bias(kFloat, 8);
    a.Random(1);
    b.Random(2);
    bias.Random(3);
    absl::Status status = (*matmul)->Run(stream_, {.rows = 8,
                                                   .columns = 8,
                                                   .inner = 8,
                                                   .a = a.data(),
                                                   .b = b.data(),
                                                   .d = d.data(),
                                                   .epilogue = Epilogue::kBias,
                                                   .bias = bias.data()});
    Finish();
    return status;
  };
  std::map<std::string, int> before = fake_cuda::Calls();
  ASSERT_TRUE(run().ok());
  int functions = 0;
  for (const auto& [function, calls] : fake_cuda::Calls()) {
    if (!function.starts_with("cublasLt")) continue;
    ++functions;
    for (int nth = 1; nth <= calls - before[function]; ++nth) {
      fake_cuda::FailCall(function, nth);
      const absl::Status status = run();
      EXPECT_THAT(std::string(status.message()), HasSubstr(function + ": CUBLAS_STATUS_"));
    }
  }
  EXPECT_EQ(functions, 8);
}

}  // namespace
}  // namespace zerobox::cuda
