// SPDX-License-Identifier: Apache-2.0
#include "ops/host/host_ops.h"

#include <cassert>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "ops/device/host_device.h"
#include "ops/host/kernels.h"
#include "ops/host/threads.h"

namespace zerobox {
namespace {

// The threads of one stream of a device.
class StreamThreads final : public host::Threads {
 public:
  StreamThreads(HostDevice& device, StreamId stream) : device_(device), stream_(stream) {}
  int count() const override { return device_.threads(stream_); }
  void For(int64_t tasks, const std::function<void(int64_t)>& task) override {
    device_.ParallelFor(stream_, tasks, task);
  }

 private:
  HostDevice& device_;
  const StreamId stream_;
};

// Called in the compute stream's turn, when samples can be followed.
host::DropoutMask Mask(const Dropout& dropout) {
  return {.p = dropout.p,
          .seed = dropout.seed,
          .samples = dropout.p > 0 ? dropout.samples.As<int64_t>() : nullptr,
          .site = dropout.site,
          .layer = dropout.layer};
}

float* Floats(const Buffer& buffer, int64_t at_least) {
  assert(buffer.elements >= at_least);
  (void)at_least;
  return buffer.As<float>();
}

int32_t* Integers(const Buffer& buffer, int64_t at_least) {
  assert(buffer.elements >= at_least);
  (void)at_least;
  return buffer.As<int32_t>();
}

class HostOps final : public Ops {
 public:
  HostOps(HostDevice& device, StreamId stream)
      : device_(device), stream_(stream), threads_(device, stream) {}

  void EmbeddingForward(Buffer out, Buffer tokens, Buffer wte, Buffer wpe, SequenceShape shape,
                        const Dropout& dropout) override {
    Run("embedding_forward", [=, this] {
      host::EmbeddingForward(threads_, Floats(out, shape.elements()),
                             Integers(tokens, shape.rows()), Floats(wte, shape.channels),
                             Floats(wpe, shape.positions * shape.channels), shape, Mask(dropout));
    });
  }

  void EmbeddingBackward(Buffer dwte, Buffer dwpe, Buffer dout, Buffer tokens, SequenceShape shape,
                         const Dropout& dropout) override {
    Run("embedding_backward", [=, this] {
      host::EmbeddingBackward(
          threads_, Floats(dwte, shape.channels), Floats(dwpe, shape.positions * shape.channels),
          Floats(dout, shape.elements()), Integers(tokens, shape.rows()), shape, Mask(dropout));
    });
  }

  void LayerNormForward(Buffer out, Buffer mean, Buffer rstd, Buffer x, Buffer weight, Buffer bias,
                        int64_t rows, int64_t channels) override {
    Run("layernorm_forward", [=, this] {
      host::LayerNormForward(threads_, Floats(out, rows * channels), Floats(mean, rows),
                             Floats(rstd, rows), Floats(x, rows * channels),
                             Floats(weight, channels), Floats(bias, channels), rows, channels);
    });
  }

  void LayerNormBackward(Buffer dx, Buffer dweight, Buffer dbias, Buffer dout, Buffer x,
                         Buffer mean, Buffer rstd, Buffer weight, int64_t rows,
                         int64_t channels) override {
    Run("layernorm_backward", [=, this] {
      host::LayerNormBackward(threads_, Floats(dx, rows * channels), Floats(dweight, channels),
                              Floats(dbias, channels), Floats(dout, rows * channels),
                              Floats(x, rows * channels), Floats(mean, rows), Floats(rstd, rows),
                              Floats(weight, channels), rows, channels);
    });
  }

  void LinearForward(Buffer y, Buffer x, Buffer w, Buffer bias, int64_t rows, int64_t in,
                     int64_t out) override {
    Run("linear_forward", [=, this] {
      host::LinearForward(threads_, Floats(y, rows * out), Floats(x, rows * in),
                          Floats(w, in * out), Floats(bias, out), rows, in, out);
    });
  }

  void LinearBackward(Buffer dx, Buffer dw, Buffer dbias, Buffer dy, Buffer x, Buffer w,
                      int64_t rows, int64_t in, int64_t out) override {
    Run("linear_backward", [=, this] {
      host::LinearBackward(threads_, Floats(dx, rows * in), Floats(dw, in * out),
                           Floats(dbias, out), Floats(dy, rows * out), Floats(x, rows * in),
                           Floats(w, in * out), rows, in, out);
    });
  }

  void HeadForward(Buffer logits, Buffer x, Buffer wte, int64_t rows, int64_t channels,
                   int64_t vocabulary) override {
    Run("head_forward", [=, this] {
      host::HeadForward(threads_, Floats(logits, rows * vocabulary), Floats(x, rows * channels),
                        Floats(wte, vocabulary * channels), rows, channels, vocabulary);
    });
  }

  void HeadBackward(Buffer dx, Buffer dwte, Buffer dlogits, Buffer x, Buffer wte, int64_t rows,
                    int64_t channels, int64_t vocabulary) override {
    Run("head_backward", [=, this] {
      host::HeadBackward(threads_, Floats(dx, rows * channels), Floats(dwte, vocabulary * channels),
                         Floats(dlogits, rows * vocabulary), Floats(x, rows * channels),
                         Floats(wte, vocabulary * channels), rows, channels, vocabulary);
    });
  }

  void AttentionForward(Buffer out, Buffer logsumexp, Buffer qkv, SequenceShape shape,
                        int64_t heads, const Dropout& dropout) override {
    Run("attention_forward", [=, this] {
      host::AttentionForward(threads_, Floats(out, shape.elements()),
                             Floats(logsumexp, shape.rows() * heads),
                             Floats(qkv, 3 * shape.elements()), shape, heads, Mask(dropout));
    });
  }

  void AttentionBackward(Buffer dqkv, Buffer dout, Buffer qkv, Buffer out, Buffer logsumexp,
                         SequenceShape shape, int64_t heads, const Dropout& dropout) override {
    Run("attention_backward", [=, this] {
      host::AttentionBackward(threads_, Floats(dqkv, 3 * shape.elements()),
                              Floats(dout, shape.elements()), Floats(qkv, 3 * shape.elements()),
                              Floats(out, shape.elements()),
                              Floats(logsumexp, shape.rows() * heads), shape, heads, Mask(dropout));
    });
  }

  void GeluForward(Buffer out, Buffer x) override {
    Run("gelu_forward", [=, this] {
      host::GeluForward(threads_, Floats(out, x.elements), x.As<float>(), x.elements);
    });
  }

  void GeluBackward(Buffer dx, Buffer x, Buffer dout) override {
    Run("gelu_backward", [=, this] {
      host::GeluBackward(threads_, Floats(dx, x.elements), x.As<float>(), Floats(dout, x.elements),
                         x.elements);
    });
  }

  void ResidualForward(Buffer out, Buffer x, Buffer branch, SequenceShape shape,
                       const Dropout& dropout) override {
    Run("residual_forward", [=, this] {
      host::ResidualForward(threads_, Floats(out, shape.elements()), Floats(x, shape.elements()),
                            Floats(branch, shape.elements()), shape, Mask(dropout));
    });
  }

  void DropoutBackward(Buffer dbranch, Buffer dout, SequenceShape shape,
                       const Dropout& dropout) override {
    Run("dropout_backward", [=, this] {
      host::DropoutBackward(threads_, Floats(dbranch, shape.elements()),
                            Floats(dout, shape.elements()), shape, Mask(dropout));
    });
  }

  void CrossEntropyForward(Buffer losses, Buffer logits, Buffer targets, int64_t rows,
                           int64_t vocabulary) override {
    Run("cross_entropy_forward", [=, this] {
      host::CrossEntropyForward(threads_, Floats(losses, rows), Floats(logits, rows * vocabulary),
                                Integers(targets, rows), rows, vocabulary);
    });
  }

  void CrossEntropyBackward(Buffer logits, Buffer targets, int64_t rows, int64_t vocabulary,
                            float scale) override {
    Run("cross_entropy_backward", [=, this] {
      host::CrossEntropyBackward(threads_, Floats(logits, rows * vocabulary),
                                 Integers(targets, rows), rows, vocabulary, scale);
    });
  }

  void AccumulateSum(Buffer sum, Buffer x) override {
    Run("accumulate_sum",
        [=, this] { host::AccumulateSum(threads_, sum.As<double>(), x.As<float>(), x.elements); });
  }

  void AccumulateSquares(Buffer sum, Buffer x) override {
    Run("accumulate_squares", [=, this] {
      host::AccumulateSquares(threads_, sum.As<double>(), x.As<float>(), x.elements);
    });
  }

  void Add(Buffer to, Buffer from) override {
    Run("add", [=, this] {
      host::Add(threads_, Floats(to, from.elements), from.As<float>(), from.elements);
    });
  }

  void Fill(Buffer out, float value) override {
    Run("fill", [=, this] {
      if (out.dtype == DType::kFloat64) {
        std::fill_n(out.As<double>(), out.elements, double{value});
      } else {
        host::Fill(threads_, out.As<float>(), out.elements, value);
      }
    });
  }

  void FillNormal(Buffer out, uint64_t seed, uint64_t stream, int64_t first,
                  float stddev) override {
    Run("fill_normal", [=, this] {
      host::FillNormal(threads_, out.As<float>(), out.elements, seed, stream, first, stddev);
    });
  }

  void PrepareStep(Buffer state, Buffer sums, const OptimizerSettings& settings) override {
    Run("prepare_step", [=, this] {
      zerobox::PrepareStep(State(state), sums.As<double>(), sums.elements, settings);
    });
  }

  void AdamW(Buffer parameters, Buffer, Buffer gradients, Buffer m, Buffer v, bool decay,
             Buffer state, const OptimizerSettings& settings) override {
    Run("adamw", [=, this] {
      const int64_t n = parameters.elements;
      host::AdamW(threads_, parameters.As<float>(), Floats(gradients, n), Floats(m, n),
                  Floats(v, n), n, decay, State(state), settings);
      host::Fill(threads_, gradients.As<float>(), n, 0);
    });
  }

 private:
  static StepState& State(const Buffer& buffer) {
    assert(buffer.bytes() >= static_cast<int64_t>(sizeof(StepState)));
    return *reinterpret_cast<StepState*>(buffer.data);
  }

  // Runs `kernel`, which has copies of its arguments, in its turn on the stream.
  template <typename Kernel>
  void Run(std::string_view name, Kernel kernel) {
    device_.Enqueue(stream_, name, [kernel = std::move(kernel)] {
      kernel();
      return absl::OkStatus();
    });
  }

  HostDevice& device_;
  const StreamId stream_;
  StreamThreads threads_;
};

}  // namespace

std::unique_ptr<Ops> MakeHostOps(HostDevice& device, StreamId stream) {
  return std::make_unique<HostOps>(device, stream);
}

}  // namespace zerobox
