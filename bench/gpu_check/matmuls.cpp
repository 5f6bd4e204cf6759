// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/matmuls.h"

#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "ops/bfloat16.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/status.h"

namespace zerobox::gpu_check {
namespace {

using cuda::Epilogue;
using cuda::MatmulCall;

constexpr DType kT = DType::kBFloat16;
constexpr double kSquareTarget = 0.65;
constexpr double kColumnSumsTarget = 0.8;

absl::Status Launched(cudaError_t error) { return cuda::ToStatus(error, "cudaLaunchKernelExC"); }

BFloat16* Data(void* data) { return static_cast<BFloat16*>(data); }
const BFloat16* Data(const void* data) { return static_cast<const BFloat16*>(data); }

// For what cuBLASLt does not fuse, as the device has them.
class Epilogues final : public cuda::EpilogueKernels {
 public:
  absl::Status AddBias(cudaStream_t stream, DType, void* y, const void* bias, int64_t rows,
                       int64_t columns) override {
    return Launched(cuda::AddBias(stream, Data(y), Data(bias), rows, columns));
  }
  absl::Status GeluForward(cudaStream_t stream, DType, void* out, const void* x,
                           int64_t n) override {
    return Launched(cuda::GeluForward(stream, Data(out), Data(x), n));
  }
  absl::Status GeluBackward(cudaStream_t stream, DType, void* dx, const void* x, const void* dout,
                            int64_t n) override {
    return Launched(cuda::GeluBackward(stream, Data(dx), Data(x), Data(dout), n));
  }
  absl::Status SumColumns(cudaStream_t, DType, void*, DType, const void*, int64_t,
                          int64_t) override {
    return absl::UnimplementedError("the device does not ask for it either");
  }
};

// cuBLASLt with the device's workspace, which ops use on the same stream.
class Products {
 public:
  explicit Products(KernelBench& bench)
      : bench_(bench),
        matmul_(cuda::Matmul::Make(bench.device().workspace(), bench.device().workspace_bytes(),
                                   epilogues_)) {
    if (!matmul_.ok()) bench.device().Fail(matmul_.status());
  }

  // D (rows, columns) of `call`, whose pointers are set here.
  void Measure(const std::string& name, MatmulCall call, double target) {
    if (!matmul_.ok()) return;
    const int64_t a_size = call.rows * call.inner, b_size = call.inner * call.columns;
    const int64_t d_size = call.rows * call.columns;
    BufferSets sets(bench_, 2 * (a_size + b_size + d_size));
    const auto a = sets.Random(kT, a_size), b = sets.Random(kT, b_size);
    const auto d = sets.Random(kT, d_size), bias = sets.Random(kT, call.columns);
    const auto aux = sets.Random(kT, HasAux(call) ? d_size : 1);
    call.in = call.out = kT;
    const auto run = [&](int64_t i) {
      call.a = a[i].data;
      call.b = b[i].data;
      call.d = d[i].data;
      if (call.epilogue != Epilogue::kNone) call.bias = bias[i].data;
      if (HasAux(call)) call.aux = aux[i].data;
      bench_.device().Enqueue(StreamId::kCompute, "product",
                              [&](cudaStream_t stream) { return (*matmul_)->Run(stream, call); });
    };
    const std::string size = absl::StrCat(" ", call.rows, "x", call.columns, "x", call.inner);
    bench_.Measure(name + size,
                   {.flops = 2 * static_cast<double>(d_size) * static_cast<double>(call.inner),
                    .target = target},
                   run);
  }

  // How many calls had their epilogue fused, and how many not.
  std::string Fused() const {
    if (!matmul_.ok()) return "";
    const cuda::Matmul::Counts& counts = (*matmul_)->counts();
    return absl::StrCat("cuBLASLt fused the epilogues of ", counts.fused, " calls of ",
                        counts.fused + counts.unfused);
  }

 private:
  static bool HasAux(const MatmulCall& call) {
    return call.epilogue == Epilogue::kBiasGelu || call.epilogue == Epilogue::kGeluGradient;
  }

  KernelBench& bench_;
  Epilogues epilogues_;
  absl::StatusOr<std::unique_ptr<cuda::Matmul>> matmul_;
};

struct Layer {
  std::string_view name;
  int64_t in, out;
  bool before_gelu = false, after_gelu = false;
};

// y = x w + bias; dx = dy w^T; dw += x^T dy; with what follows fused where a GELU does.
void MeasureLayer(Products& products, const Layer& layer, int64_t rows, double target) {
  const absl::string_view name(layer.name.data(), layer.name.size());
  products.Measure(absl::StrCat(name, " y"),
                   {.rows = rows,
                    .columns = layer.out,
                    .inner = layer.in,
                    .epilogue = layer.before_gelu ? Epilogue::kBiasGelu : Epilogue::kBias},
                   target);
  products.Measure(absl::StrCat(name, " dx"),
                   {.rows = rows,
                    .columns = layer.in,
                    .inner = layer.out,
                    .transpose_b = true,
                    .epilogue = layer.after_gelu ? Epilogue::kGeluGradient : Epilogue::kNone},
                   target);
  products.Measure(absl::StrCat(name, " dw"),
                   {.rows = layer.in,
                    .columns = layer.out,
                    .inner = rows,
                    .transpose_a = true,
                    .accumulate = true},
                   target);
}

// logits = x wte^T; dx = dlogits wte; dwte += dlogits^T x.
void MeasureHead(Products& products, int64_t rows, int64_t channels, int64_t vocabulary,
                 double target) {
  products.Measure("head logits",
                   {.rows = rows, .columns = vocabulary, .inner = channels, .transpose_b = true},
                   target);
  products.Measure("head dx", {.rows = rows, .columns = channels, .inner = vocabulary}, target);
  products.Measure("head dwte",
                   {.rows = vocabulary,
                    .columns = channels,
                    .inner = rows,
                    .transpose_a = true,
                    .accumulate = true},
                   target);
}

void MeasureColumnSums(KernelBench& bench, int64_t rows, int64_t columns) {
  const int multiprocessors = bench.device().multiprocessors();
  const absl::StatusOr<void*> workspace = bench.device().Workspace(
      SizeOf(DType::kFloat32) * cuda::AddColumnSumsWorkspace(rows, columns, multiprocessors));
  if (!workspace.ok()) return bench.device().Fail(workspace.status());
  BufferSets sets(bench, 2 * rows * columns);
  const auto x = sets.Random(kT, rows * columns), sums = sets.Random(kT, columns);
  bench.Measure(
      absl::StrCat("bias gradient ", rows, "x", columns),
      {.bytes = 2 * static_cast<double>(rows * columns), .target = kColumnSumsTarget},
      [&](int64_t i) {
        bench.device().Enqueue(StreamId::kCompute, "column_sums", [&](cudaStream_t stream) {
          return Launched(cuda::AddColumnSums(stream, sums[i].As<BFloat16>(), x[i].As<BFloat16>(),
                                              rows, columns, static_cast<float*>(*workspace),
                                              multiprocessors));
        });
      });
}

}  // namespace

void MeasureSquare(KernelBench& bench, int64_t size) {
  Products(bench).Measure("product", {.rows = size, .columns = size, .inner = size},
                          bench.flops_a_second > 0 ? kSquareTarget : 0);
}

void MeasureMatmuls(KernelBench& bench, const KernelSizes& sizes, Report& report) {
  Products products(bench);
  const int64_t C = sizes.shape.channels, rows = sizes.shape.rows();
  for (const Layer& layer : {Layer{"qkv", C, 3 * C}, Layer{"projection", C, C},
                             Layer{"mlp in, GELU", C, 4 * C, /*before_gelu=*/true},
                             Layer{"mlp out, GELU'", 4 * C, C, false, /*after_gelu=*/true}}) {
    MeasureLayer(products, layer, rows, sizes.matmul_target);
  }
  report.Say(products.Fused());
  MeasureHead(products, sizes.logit_rows, C, sizes.vocabulary, sizes.matmul_target);
  report.Say("and with rows that do not begin on 16 bytes, as a vocabulary of 50257 has them:");
  MeasureHead(products, sizes.logit_rows, C, sizes.vocabulary - 47, /*target=*/0);
  MeasureColumnSums(bench, rows, 4 * C);
}

}  // namespace zerobox::gpu_check
