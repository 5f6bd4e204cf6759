// SPDX-License-Identifier: Apache-2.0
//
// The bytes are those that have to move, if each array goes through memory once a launch and a
// cache keeps what one launch reads twice; bf16, so 2 an element. Operations are those that the
// mathematics needs: of causal attention the T (T + 1) / 2 pairs a head, 4 d operations each
// forward and 10 d backward, though the kernels compute some products twice.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/gpu_thread.h"
#include "bench/gpu_check/kernel_bench.h"
#include "bench/gpu_check/matmuls.h"
#include "ops/view.h"

namespace zerobox::gpu_check {
namespace {

constexpr DType kT = DType::kBFloat16;
constexpr double kMemoryTarget = 0.8;
constexpr double kAttentionForwardTarget = 0.16, kAttentionBackwardTarget = 0.11;

KernelBench::Cost Bytes(double bytes) { return {.bytes = bytes, .target = kMemoryTarget}; }

// The kernels of one model.
class ModelKernels {
 public:
  ModelKernels(KernelBench& bench, const KernelSizes& sizes)
      : bench_(bench), ops_(bench.ops()), sizes_(sizes), shape_(sizes.shape) {}

  void Measure() {
    Embedding();
    LayerNorm();
    Residual();
    ResidualLayerNorm();
    DropoutGradient();
    Gelu();
    CrossEntropy();
    Attention();
  }

 private:
  double n() const { return static_cast<double>(shape_.elements()); }  // of the residual stream
  std::string Name(std::string_view kernel) const {
    return absl::StrCat(View(kernel), ", ", sizes_.name);
  }

  // Forward, a table's row for each token and the positions once are read, the sum is written.
  // Backward, as many rows as there are different tokens are added to: counted are the gradient,
  // read for tokens and for positions, and the positions' rows; tokens' rows are few.
  void Embedding() {
    const int64_t C = shape_.channels, rows = shape_.rows(), table = sizes_.vocabulary * C;
    const double positions = static_cast<double>(shape_.positions * C);
    BufferSets sets(bench_, 2 * 2 * shape_.elements());
    const auto tokens = sets.Tokens(rows, sizes_.vocabulary);
    const auto out = sets.Random(kT, shape_.elements());
    const auto wte = sets.Random(kT, table), wpe = sets.Random(kT, shape_.positions * C);
    bench_.Measure(Name("embedding forward"), Bytes(2 * (2 * n() + positions)), [&](int64_t i) {
      ops_.EmbeddingForward(out[i], tokens[i], wte[i], wpe[i], shape_, {});
    });
    bench_.Measure(
        Name("embedding backward"), Bytes(2 * (2 * n() + 2 * positions)),
        [&](int64_t i) { ops_.EmbeddingBackward(wte[i], wpe[i], out[i], tokens[i], shape_, {}); });
  }

  void LayerNorm() {
    const int64_t C = shape_.channels, rows = shape_.rows();
    BufferSets sets(bench_, 2 * 2 * shape_.elements());
    const auto x = sets.Random(kT, shape_.elements()), out = sets.Make(kT, shape_.elements());
    const auto dx = sets.Random(kT, shape_.elements()), dout = sets.Random(kT, shape_.elements());
    const auto weight = sets.Random(kT, C), bias = sets.Random(kT, C);
    const auto dweight = sets.Random(kT, C), dbias = sets.Random(kT, C);
    const auto mean = sets.Make(DType::kFloat32, rows), rstd = sets.Make(DType::kFloat32, rows);
    const double statistics = 8.0 * static_cast<double>(rows);
    const auto forward = [&](int64_t i) {
      ops_.LayerNormForward(out[i], mean[i], rstd[i], x[i], weight[i], bias[i], rows, C);
    };
    bench_.Measure(Name("layernorm forward"), Bytes(2 * 2 * n() + statistics), forward);
    for (int64_t i = 0; i < sets.size(); ++i) forward(i);
    bench_.Measure(Name("layernorm backward"), Bytes(4 * 2 * n() + statistics), [&](int64_t i) {
      ops_.LayerNormBackward(dx[i], dweight[i], dbias[i], dout[i], x[i], mean[i], rstd[i],
                             weight[i], rows, C);
    });
  }

  void Residual() {
    BufferSets sets(bench_, 3 * 2 * shape_.elements());
    const auto x = sets.Random(kT, shape_.elements()), branch = sets.Random(kT, shape_.elements());
    const auto out = sets.Make(kT, shape_.elements());
    bench_.Measure(Name("residual"), Bytes(3 * 2 * n()),
                   [&](int64_t i) { ops_.ResidualForward(out[i], x[i], branch[i], shape_, {}); });
    const Dropout dropout = {.p = 0.1f, .seed = 1, .samples = Samples(sets)};
    bench_.Measure(Name("residual with dropout"), Bytes(3 * 2 * n()), [&](int64_t i) {
      ops_.ResidualForward(out[i], x[i], branch[i], shape_, dropout);
    });
  }

  // In one op: the sum is not read again.
  void ResidualLayerNorm() {
    const int64_t C = shape_.channels, rows = shape_.rows();
    BufferSets sets(bench_, 4 * 2 * shape_.elements());
    const auto x = sets.Random(kT, shape_.elements()), branch = sets.Random(kT, shape_.elements());
    const auto sum = sets.Make(kT, shape_.elements()), out = sets.Make(kT, shape_.elements());
    const auto weight = sets.Random(kT, C), bias = sets.Random(kT, C);
    const auto mean = sets.Make(DType::kFloat32, rows), rstd = sets.Make(DType::kFloat32, rows);
    bench_.Measure(Name("residual + layernorm"),
                   Bytes(4 * 2 * n() + 8.0 * static_cast<double>(rows)), [&](int64_t i) {
                     ops_.ResidualLayerNormForward(sum[i], out[i], mean[i], rstd[i], x[i],
                                                   branch[i], weight[i], bias[i], shape_, {});
                   });
  }

  void DropoutGradient() {
    BufferSets sets(bench_, 2 * 2 * shape_.elements());
    const auto dout = sets.Random(kT, shape_.elements()), dx = sets.Make(kT, shape_.elements());
    const Dropout dropout = {.p = 0.1f, .seed = 1, .samples = Samples(sets)};
    bench_.Measure(Name("dropout backward"), Bytes(2 * 2 * n()),
                   [&](int64_t i) { ops_.DropoutBackward(dx[i], dout[i], shape_, dropout); });
  }

  // Sample numbers; any will do.
  Buffer Samples(BufferSets& sets) {
    const Buffer samples = sets.Make(DType::kInt64, shape_.batch)[0];
    bench_.device().Zero(StreamId::kCompute, samples);
    return samples;
  }

  // In place backward, as the model has it.
  void Gelu() {
    const int64_t wide = 4 * shape_.elements();
    BufferSets sets(bench_, 2 * 2 * wide);
    const auto x = sets.Random(kT, wide), out = sets.Random(kT, wide);
    bench_.Measure(Name("gelu forward"), Bytes(2 * 2 * 4 * n()),
                   [&](int64_t i) { ops_.GeluForward(out[i], x[i]); });
    bench_.Measure(Name("gelu backward"), Bytes(3 * 2 * 4 * n()),
                   [&](int64_t i) { ops_.GeluBackward(out[i], x[i], out[i]); });
  }

  void CrossEntropy() {
    const int64_t rows = sizes_.logit_rows, vocabulary = sizes_.vocabulary;
    BufferSets sets(bench_, 2 * rows * vocabulary);
    const auto logits = sets.Random(kT, rows * vocabulary);
    const auto losses = sets.Make(DType::kFloat32, rows);
    const auto targets = sets.Tokens(rows, vocabulary);
    const double bytes = 2 * static_cast<double>(rows * vocabulary);
    bench_.Measure(Name("cross-entropy forward"), Bytes(bytes), [&](int64_t i) {
      ops_.CrossEntropyForward(losses[i], logits[i], targets[i], rows, vocabulary);
    });
    bench_.Measure(Name("cross-entropy backward"), Bytes(2 * bytes), [&](int64_t i) {
      ops_.CrossEntropyBackward(logits[i], targets[i], rows, vocabulary, 1e-3f);
    });
  }

  void Attention() {
    BufferSets sets(bench_, 8 * 2 * shape_.elements());
    const int64_t statistics = shape_.rows() * sizes_.heads;
    const auto qkv = sets.Random(kT, 3 * shape_.elements());
    const auto dout = sets.Random(kT, shape_.elements()), out = sets.Make(kT, shape_.elements());
    const auto dqkv = sets.Make(kT, 3 * shape_.elements());
    const auto logsumexp = sets.Make(DType::kFloat32, statistics);
    const double pairs = n() * static_cast<double>(shape_.positions + 1) / 2;
    const auto forward = [&](int64_t i) {
      ops_.AttentionForward(out[i], logsumexp[i], qkv[i], shape_, sizes_.heads, {});
    };
    bench_.Measure(Name("attention forward"),
                   {.flops = 4 * pairs, .target = kAttentionForwardTarget}, forward);
    for (int64_t i = 0; i < sets.size(); ++i) forward(i);
    bench_.Measure(Name("attention backward"),
                   {.flops = 10 * pairs, .target = kAttentionBackwardTarget}, [&](int64_t i) {
                     ops_.AttentionBackward(dqkv[i], dout[i], qkv[i], out[i], logsumexp[i], shape_,
                                            sizes_.heads, {});
                   });
  }

  KernelBench& bench_;
  Ops& ops_;
  const KernelSizes sizes_;
  const SequenceShape shape_;
};

// Counted are m, v and master weights, read and written, the gradient, read and set to zero, and
// the parameter, written.
void MeasureAdamW(KernelBench& bench, int64_t elements) {
  Ops& ops = bench.ops();
  const double n = static_cast<double>(elements);
  BufferSets sets(bench, 16 * elements);
  const auto parameters = sets.Random(kT, elements), gradients = sets.Random(kT, elements);
  const auto master = sets.Random(DType::kFloat32, elements);
  const auto m = sets.Random(DType::kFloat32, elements);
  const auto v = sets.Make(DType::kFloat32, elements);
  for (const Buffer& buffer : v) ops.Fill(buffer, 0.5f);
  const Buffer state = sets.Make(DType::kInt64, sizeof(StepState) / 8)[0];
  const Buffer sum = sets.Make(DType::kFloat64, 1)[0];
  bench.device().Zero(StreamId::kCompute, state);
  ops.Fill(sum, 1);
  const OptimizerSettings settings;
  ops.PrepareStep(state, sum, settings);
  bench.Measure("AdamW, bf16 gradients", Bytes((3 * 8 + 2 * 2 + 2) * n), [&](int64_t i) {
    ops.AdamW(parameters[i], master[i], gradients[i], m[i], v[i], /*decay=*/true, state, settings);
  });
  bench.Measure("sum of squares", Bytes(2 * n),
                [&](int64_t i) { ops.AccumulateSquares(sum, parameters[i]); });
  bench.Measure("add", Bytes(3 * 2 * n), [&](int64_t i) { ops.Add(gradients[i], parameters[i]); });
}

void MeasureOn(const Gpu& gpu, const Sizes& sizes, Report& report) {
  report.BeginTable("kernel");
  const auto bench = KernelBench::Make(gpu, sizes, report);
  if (!bench.ok()) return report.Fail(bench.status(), "a device to measure on");
  MeasureSquare(**bench, sizes.square);
  for (const KernelSizes& model : sizes.kernels) {
    ModelKernels(**bench, model).Measure();
    MeasureMatmuls(**bench, model, report);
  }
  MeasureAdamW(**bench, sizes.adamw_elements);
  report.Fail((*bench)->device().status(), "the kernels");
}

}  // namespace

void MeasureKernels(const Gpu& gpu, const Sizes& sizes, Report& report) {
  OnGpuThread([&] { MeasureOn(gpu, sizes, report); });
}

}  // namespace zerobox::gpu_check
