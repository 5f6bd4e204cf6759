// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_ops.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/bfloat16.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/status.h"
#include "ops/typed.h"

namespace zerobox::cuda {
namespace {

// What the launchers call.
constexpr std::string_view kLaunch = "cudaLaunchKernelExC";

DropoutMask Mask(const Dropout& dropout) {
  return {.p = dropout.p,
          .seed = dropout.seed,
          .samples = dropout.p > 0 ? dropout.samples.As<int64_t>() : nullptr,
          .site = dropout.site,
          .layer = dropout.layer};
}

// The epilogues of matmuls that cuBLASLt does not fuse.
class Epilogues final : public EpilogueKernels {
 public:
  explicit Epilogues(CudaDevice& device) : device_(device) {}

  absl::Status AddBias(cudaStream_t stream, DType type, void* y, const void* bias, int64_t rows,
                       int64_t columns) override {
    return Launched(CallWith(type, [&]<typename T>() {
      return cuda::AddBias(stream, static_cast<T*>(y), static_cast<const T*>(bias), rows, columns);
    }));
  }
  absl::Status GeluForward(cudaStream_t stream, DType type, void* out, const void* x,
                           int64_t n) override {
    return Launched(CallWith(type, [&]<typename T>() {
      return cuda::GeluForward(stream, static_cast<T*>(out), static_cast<const T*>(x), n);
    }));
  }
  absl::Status GeluBackward(cudaStream_t stream, DType type, void* dx, const void* x,
                            const void* dout, int64_t n) override {
    return Launched(CallWith(type, [&]<typename T>() {
      return cuda::GeluBackward(stream, static_cast<T*>(dx), static_cast<const T*>(x),
                                static_cast<const T*>(dout), n);
    }));
  }
  absl::Status SumColumns(cudaStream_t stream, DType sums_type, void* sums, DType x_type,
                          const void* x, int64_t rows, int64_t columns) override {
    absl::Status status =
        ToStatus(cudaMemsetAsync(sums, 0, static_cast<size_t>(columns * SizeOf(sums_type)), stream),
                 "cudaMemsetAsync");
    if (!status.ok()) return status;
    return AddColumnSums(stream, sums_type, sums, x_type, x, rows, columns);
  }

  absl::Status AddColumnSums(cudaStream_t stream, DType sums_type, void* sums, DType x_type,
                             const void* x, int64_t rows, int64_t columns) {
    const int multiprocessors = device_.multiprocessors();
    const absl::StatusOr<void*> workspace = device_.Workspace(
        SizeOf(DType::kFloat32) * AddColumnSumsWorkspace(rows, columns, multiprocessors));
    if (!workspace.ok()) return workspace.status();
    return Launched(CallWith(x_type, sums_type, [&]<typename T, typename G>() {
      return cuda::AddColumnSums(stream, static_cast<G*>(sums), static_cast<const T*>(x), rows,
                                 columns, static_cast<float*>(*workspace), multiprocessors);
    }));
  }

 private:
  static absl::Status Launched(cudaError_t error) { return ToStatus(error, kLaunch); }
  CudaDevice& device_;
};

class CudaOps final : public Ops {
 public:
  explicit CudaOps(CudaDevice& device) : device_(device), epilogues_(device) {}
  absl::Status SetUp() {
    auto matmul = Matmul::Make(device_.workspace(), device_.workspace_bytes(), epilogues_,
                               {.tf32 = device_.tf32()});
    if (!matmul.ok()) return matmul.status();
    matmul_ = *std::move(matmul);
    return absl::OkStatus();
  }

  void EmbeddingForward(Buffer out, Buffer tokens, Buffer wte, Buffer wpe, SequenceShape shape,
                        const Dropout& dropout) override {
    Run("embedding_forward", out.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::EmbeddingForward(
          stream, Data<T>(out, shape.elements()), Data<int32_t>(tokens, shape.rows()),
          Data<T>(wte, shape.channels), Data<T>(wpe, shape.positions * shape.channels), shape,
          Mask(dropout));
    });
  }

  void EmbeddingBackward(Buffer dwte, Buffer dwpe, Buffer dout, Buffer tokens, SequenceShape shape,
                         const Dropout& dropout) override {
    const int64_t vocabulary = dwte.elements / shape.channels;
    Launch("embedding_backward", EmbeddingBackwardWorkspace(shape, vocabulary),
           [&](cudaStream_t stream, void* workspace) {
             return CallWith(dout.dtype, dwte.dtype, [&]<typename T, typename G>() {
               return cuda::EmbeddingBackward(stream, Data<G>(dwte, shape.channels),
                                              Data<G>(dwpe, shape.positions * shape.channels),
                                              Data<T>(dout, shape.elements()),
                                              Data<int32_t>(tokens, shape.rows()), shape,
                                              vocabulary, Mask(dropout), workspace);
             });
           });
  }

  void LayerNormForward(Buffer out, Buffer mean, Buffer rstd, Buffer x, Buffer weight, Buffer bias,
                        int64_t rows, int64_t channels) override {
    Run("layernorm_forward", x.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::LayerNormForward(stream, Data<T>(out, rows * channels), Data<float>(mean, rows),
                                    Data<float>(rstd, rows), Data<T>(x, rows * channels),
                                    Data<T>(weight, channels), Data<T>(bias, channels), rows,
                                    channels);
    });
  }

  void LayerNormBackward(Buffer dx, Buffer dweight, Buffer dbias, Buffer dout, Buffer x,
                         Buffer mean, Buffer rstd, Buffer weight, int64_t rows,
                         int64_t channels) override {
    const int multiprocessors = device_.multiprocessors();
    const int64_t bytes =
        SizeOf(DType::kFloat32) * LayerNormBackwardWorkspace(rows, channels, multiprocessors);
    Launch("layernorm_backward", bytes, [&](cudaStream_t stream, void* workspace) {
      return CallWith(x.dtype, dweight.dtype, [&]<typename T, typename G>() {
        return cuda::LayerNormBackward(
            stream, Data<T>(dx, rows * channels), Data<G>(dweight, channels),
            Data<G>(dbias, channels), Data<T>(dout, rows * channels), Data<T>(x, rows * channels),
            Data<float>(mean, rows), Data<float>(rstd, rows), Data<T>(weight, channels), rows,
            channels, static_cast<float*>(workspace), multiprocessors);
      });
    });
  }

  void LinearForward(Buffer y, Buffer x, Buffer w, Buffer bias, int64_t rows, int64_t in,
                     int64_t out) override {
    RunMatmul("linear_forward", {.rows = rows,
                                 .columns = out,
                                 .inner = in,
                                 .in = x.dtype,
                                 .out = x.dtype,
                                 .a = x.data,
                                 .b = w.data,
                                 .d = y.data,
                                 .epilogue = Epilogue::kBias,
                                 .bias = bias.data});
  }

  void LinearGeluForward(Buffer y, Buffer before, Buffer x, Buffer w, Buffer bias, int64_t rows,
                         int64_t in, int64_t out) override {
    RunMatmul("linear_gelu_forward", {.rows = rows,
                                      .columns = out,
                                      .inner = in,
                                      .in = x.dtype,
                                      .out = x.dtype,
                                      .a = x.data,
                                      .b = w.data,
                                      .d = y.data,
                                      .epilogue = Epilogue::kBiasGelu,
                                      .bias = bias.data,
                                      .aux = before.data});
  }

  void LinearBackward(Buffer dx, Buffer dw, Buffer dbias, Buffer dy, Buffer x, Buffer w,
                      int64_t rows, int64_t in, int64_t out) override {
    RunMatmul("linear_backward_x", GradientOfX(dx, dy, w, rows, in, out));
    LinearBackwardOfParameters(dw, dbias, dy, x, rows, in, out);
  }

  void GeluLinearBackward(Buffer dbefore, Buffer dw, Buffer dbias, Buffer dy, Buffer before,
                          Buffer x, Buffer w, int64_t rows, int64_t in, int64_t out) override {
    MatmulCall product = GradientOfX(dbefore, dy, w, rows, in, out);
    product.epilogue = Epilogue::kGeluGradient;
    product.aux = before.data;
    RunMatmul("gelu_linear_backward_x", product);
    LinearBackwardOfParameters(dw, dbias, dy, x, rows, in, out);
  }

  void HeadForward(Buffer logits, Buffer x, Buffer wte, int64_t rows, int64_t channels,
                   int64_t vocabulary) override {
    RunMatmul("head_forward", {.rows = rows,
                               .columns = vocabulary,
                               .inner = channels,
                               .transpose_b = true,
                               .in = x.dtype,
                               .out = x.dtype,
                               .a = x.data,
                               .b = wte.data,
                               .d = logits.data});
  }

  void HeadBackward(Buffer dx, Buffer dwte, Buffer dlogits, Buffer x, Buffer wte, int64_t rows,
                    int64_t channels, int64_t vocabulary) override {
    RunMatmul("head_backward_x", {.rows = rows,
                                  .columns = channels,
                                  .inner = vocabulary,
                                  .in = x.dtype,
                                  .out = x.dtype,
                                  .a = dlogits.data,
                                  .b = wte.data,
                                  .d = dx.data});
    RunMatmul("head_backward_w", {.rows = vocabulary,
                                  .columns = channels,
                                  .inner = rows,
                                  .transpose_a = true,
                                  .in = x.dtype,
                                  .out = dwte.dtype,
                                  .a = dlogits.data,
                                  .b = x.data,
                                  .d = dwte.data,
                                  .accumulate = true});
  }

  void AttentionForward(Buffer out, Buffer logsumexp, Buffer qkv, SequenceShape shape,
                        int64_t heads, const Dropout& dropout) override {
    Run("attention_forward", qkv.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::AttentionForward(
          stream, Data<T>(out, shape.elements()), Data<float>(logsumexp, shape.rows() * heads),
          Data<T>(qkv, 3 * shape.elements()), shape, heads, Mask(dropout));
    });
  }

  void AttentionBackward(Buffer dqkv, Buffer dout, Buffer qkv, Buffer out, Buffer logsumexp,
                         SequenceShape shape, int64_t heads, const Dropout& dropout) override {
    const int64_t bytes = SizeOf(DType::kFloat32) * AttentionBackwardWorkspace(shape, heads);
    Launch("attention_backward", bytes, [&](cudaStream_t stream, void* workspace) {
      return CallWith(qkv.dtype, [&]<typename T>() {
        return cuda::AttentionBackward(
            stream, Data<T>(dqkv, 3 * shape.elements()), Data<T>(dout, shape.elements()),
            Data<T>(qkv, 3 * shape.elements()), Data<T>(out, shape.elements()),
            Data<float>(logsumexp, shape.rows() * heads), shape, heads, Mask(dropout),
            static_cast<float*>(workspace));
      });
    });
  }

  void GeluForward(Buffer out, Buffer x) override {
    Run("gelu_forward", x.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::GeluForward(stream, Data<T>(out, x.elements), Data<T>(x, 0), x.elements);
    });
  }

  void GeluBackward(Buffer dx, Buffer x, Buffer dout) override {
    Run("gelu_backward", x.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::GeluBackward(stream, Data<T>(dx, x.elements), Data<T>(x, 0),
                                Data<T>(dout, x.elements), x.elements);
    });
  }

  void ResidualForward(Buffer out, Buffer x, Buffer branch, SequenceShape shape,
                       const Dropout& dropout) override {
    Run("residual_forward", x.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::ResidualForward(stream, Data<T>(out, shape.elements()),
                                   Data<T>(x, shape.elements()), Data<T>(branch, shape.elements()),
                                   shape, Mask(dropout));
    });
  }

  void ResidualLayerNormForward(Buffer sum, Buffer out, Buffer mean, Buffer rstd, Buffer x,
                                Buffer branch, Buffer weight, Buffer bias, SequenceShape shape,
                                const Dropout& dropout) override {
    Run("residual_layernorm_forward", x.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::ResidualLayerNormForward(
          stream, Data<T>(sum, shape.elements()), Data<T>(out, shape.elements()),
          Data<float>(mean, shape.rows()), Data<float>(rstd, shape.rows()),
          Data<T>(x, shape.elements()), Data<T>(branch, shape.elements()),
          Data<T>(weight, shape.channels), Data<T>(bias, shape.channels), shape, Mask(dropout));
    });
  }

  void DropoutBackward(Buffer dbranch, Buffer dout, SequenceShape shape,
                       const Dropout& dropout) override {
    Run("dropout_backward", dout.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::DropoutBackward(stream, Data<T>(dbranch, shape.elements()),
                                   Data<T>(dout, shape.elements()), shape, Mask(dropout));
    });
  }

  void CrossEntropyForward(Buffer losses, Buffer logits, Buffer targets, int64_t rows,
                           int64_t vocabulary) override {
    Run("cross_entropy_forward", logits.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::CrossEntropyForward(stream, Data<float>(losses, rows),
                                       Data<T>(logits, rows * vocabulary),
                                       Data<int32_t>(targets, rows), rows, vocabulary);
    });
  }

  void CrossEntropyBackward(Buffer logits, Buffer targets, int64_t rows, int64_t vocabulary,
                            float scale) override {
    Run("cross_entropy_backward", logits.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::CrossEntropyBackward(stream, Data<T>(logits, rows * vocabulary),
                                        Data<int32_t>(targets, rows), rows, vocabulary, scale);
    });
  }

  void AccumulateSum(Buffer sum, Buffer x) override {
    const int64_t bytes = SizeOf(DType::kFloat64) * AccumulateWorkspace(x.elements);
    Launch("accumulate_sum", bytes, [&](cudaStream_t stream, void* workspace) {
      return cuda::AccumulateSum(stream, Data<double>(sum, 1), Data<float>(x, 0), x.elements,
                                 static_cast<double*>(workspace));
    });
  }

  void AccumulateSquares(Buffer sum, Buffer x) override {
    const int64_t bytes = SizeOf(DType::kFloat64) * AccumulateWorkspace(x.elements);
    Launch("accumulate_squares", bytes, [&](cudaStream_t stream, void* workspace) {
      return CallWith(x.dtype, [&]<typename G>() {
        return cuda::AccumulateSquares(stream, Data<double>(sum, 1), Data<G>(x, 0), x.elements,
                                       static_cast<double*>(workspace));
      });
    });
  }

  void Add(Buffer to, Buffer from) override {
    Run("add", to.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::Add(stream, Data<T>(to, from.elements), Data<T>(from, 0), from.elements);
    });
  }

  void Fill(Buffer out, float value) override {
    if (out.dtype == DType::kFloat64) {
      return Launch("fill", 0, [&](cudaStream_t stream, void*) {
        return cuda::Fill(stream, Data<double>(out, 0), out.elements, value);
      });
    }
    Run("fill", out.dtype, [&]<typename T>(cudaStream_t stream) {
      return cuda::Fill(stream, Data<T>(out, 0), out.elements, value);
    });
  }

  void FillNormal(Buffer out, uint64_t seed, uint64_t stream, int64_t first,
                  float stddev) override {
    Run("fill_normal", out.dtype, [&]<typename T>(cudaStream_t handle) {
      return cuda::FillNormal(handle, Data<T>(out, 0), out.elements, seed, stream, first, stddev);
    });
  }

  void PrepareStep(Buffer state, Buffer sums, const OptimizerSettings& settings) override {
    Launch("prepare_step", 0, [&](cudaStream_t stream, void*) {
      return cuda::PrepareStep(stream, State(state), Data<double>(sums, 0), sums.elements,
                               settings);
    });
  }

  void AdamW(Buffer parameters, Buffer master, Buffer gradients, Buffer m, Buffer v, bool decay,
             Buffer state, const OptimizerSettings& settings) override {
    const int64_t n = parameters.elements;
    Launch("adamw", 0, [&](cudaStream_t stream, void*) {
      return CallWith(parameters.dtype, gradients.dtype, [&]<typename P, typename G>() {
        constexpr bool kOwnMaster = std::is_same_v<P, float>;
        assert(!kOwnMaster || master.empty());
        return cuda::AdamW(stream, Data<P>(parameters, n),
                           kOwnMaster ? nullptr : Data<float>(master, n), Data<G>(gradients, n),
                           Data<float>(m, n), Data<float>(v, n), n, decay, State(state), settings);
      });
    });
  }

 private:
  // dx (rows, in) = dy (rows, out) w^T.
  static MatmulCall GradientOfX(Buffer dx, Buffer dy, Buffer w, int64_t rows, int64_t in,
                                int64_t out) {
    return {.rows = rows,
            .columns = in,
            .inner = out,
            .transpose_b = true,
            .in = dy.dtype,
            .out = dy.dtype,
            .a = dy.data,
            .b = w.data,
            .d = dx.data};
  }
  void LinearBackwardOfParameters(Buffer dw, Buffer dbias, Buffer dy, Buffer x, int64_t rows,
                                  int64_t in, int64_t out) {
    RunMatmul("linear_backward_w", {.rows = in,
                                    .columns = out,
                                    .inner = rows,
                                    .transpose_a = true,
                                    .in = x.dtype,
                                    .out = dw.dtype,
                                    .a = x.data,
                                    .b = dy.data,
                                    .d = dw.data,
                                    .accumulate = true});
    // Not Epilogue::kBiasGradient, which writes where this must add.
    device_.Enqueue(StreamId::kCompute, "linear_backward_bias", [&](cudaStream_t stream) {
      return epilogues_.AddColumnSums(stream, dbias.dtype, dbias.data, dy.dtype, dy.data, rows,
                                      out);
    });
  }

  static StepState* State(const Buffer& buffer) {
    assert(buffer.bytes() >= static_cast<int64_t>(sizeof(StepState)));
    return reinterpret_cast<StepState*>(buffer.data);
  }

  // Enqueues by launch(stream, workspace), where the workspace has `bytes`.
  template <typename Function>
  void Launch(std::string_view name, int64_t bytes, const Function& launch) {
    device_.Enqueue(StreamId::kCompute, name, [&](cudaStream_t stream) {
      const absl::StatusOr<void*> workspace = device_.Workspace(bytes);
      return workspace.ok() ? ToStatus(launch(stream, *workspace), kLaunch) : workspace.status();
    });
  }
  // Calls kernel<T>(stream).
  template <typename Kernel>
  void Run(std::string_view name, DType t, const Kernel& kernel) {
    Launch(name, 0, [&](cudaStream_t stream, void*) {
      return CallWith(t, [&]<typename T>() { return kernel.template operator()<T>(stream); });
    });
  }
  void RunMatmul(std::string_view name, const MatmulCall& call) {
    device_.Enqueue(StreamId::kCompute, name,
                    [&](cudaStream_t stream) { return matmul_->Run(stream, call); });
  }

  CudaDevice& device_;
  Epilogues epilogues_;
  std::unique_ptr<Matmul> matmul_;
};

}  // namespace

int64_t OpsWorkspaceBytes(const CudaOpsSizes& sizes, int multiprocessors) {
  const SequenceShape& shape = sizes.shape;
  return std::max({EmbeddingBackwardWorkspace(shape, sizes.vocabulary),
                   SizeOf(DType::kFloat32) * AttentionBackwardWorkspace(shape, sizes.heads),
                   SizeOf(DType::kFloat32) *
                       LayerNormBackwardWorkspace(shape.rows(), shape.channels, multiprocessors)});
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(CudaDevice& device) {
  auto ops = std::make_unique<CudaOps>(device);
  if (absl::Status status = ops->SetUp(); !status.ok()) return status;
  return ops;
}

}  // namespace zerobox::cuda
