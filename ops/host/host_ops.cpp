// SPDX-License-Identifier: Apache-2.0
#include "ops/host/host_ops.h"

#include <cassert>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "ops/bfloat16.h"
#include "ops/device/host_device.h"
#include "ops/host/kernels.h"
#include "ops/host/threads.h"
#include "ops/typed.h"

namespace zerobox {
namespace {

// The threads of a host device's stream.
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

// Called in the stream's turn, when samples can be followed.
host::DropoutMask Mask(const Dropout& dropout) {
  return {.p = dropout.p,
          .seed = dropout.seed,
          .samples = dropout.p > 0 ? dropout.samples.As<int64_t>() : nullptr,
          .site = dropout.site,
          .layer = dropout.layer};
}

class HostOps final : public Ops {
 public:
  HostOps(EnqueueWork enqueue, std::unique_ptr<host::Threads> threads)
      : enqueue_(std::move(enqueue)), owned_threads_(std::move(threads)) {}

  void EmbeddingForward(Buffer out, Buffer tokens, Buffer wte, Buffer wpe, SequenceShape shape,
                        const Dropout& dropout) override {
    Run("embedding_forward", out.dtype, [=, this]<typename T>() {
      host::EmbeddingForward(threads_, Data<T>(out, shape.elements()),
                             Data<int32_t>(tokens, shape.rows()), Data<T>(wte, shape.channels),
                             Data<T>(wpe, shape.positions * shape.channels), shape, Mask(dropout));
    });
  }

  void EmbeddingBackward(Buffer dwte, Buffer dwpe, Buffer dout, Buffer tokens, SequenceShape shape,
                         const Dropout& dropout) override {
    Run("embedding_backward", dout.dtype, dwte.dtype, [=, this]<typename T, typename G>() {
      host::EmbeddingBackward(threads_, Data<G>(dwte, shape.channels),
                              Data<G>(dwpe, shape.positions * shape.channels),
                              Data<T>(dout, shape.elements()), Data<int32_t>(tokens, shape.rows()),
                              shape, Mask(dropout));
    });
  }

  void LayerNormForward(Buffer out, Buffer mean, Buffer rstd, Buffer x, Buffer weight, Buffer bias,
                        int64_t rows, int64_t channels) override {
    Run("layernorm_forward", x.dtype, [=, this]<typename T>() {
      host::LayerNormForward(threads_, Data<T>(out, rows * channels), Data<float>(mean, rows),
                             Data<float>(rstd, rows), Data<T>(x, rows * channels),
                             Data<T>(weight, channels), Data<T>(bias, channels), rows, channels);
    });
  }

  void LayerNormBackward(Buffer dx, Buffer dweight, Buffer dbias, Buffer dout, Buffer x,
                         Buffer mean, Buffer rstd, Buffer weight, int64_t rows,
                         int64_t channels) override {
    Run("layernorm_backward", x.dtype, dweight.dtype, [=, this]<typename T, typename G>() {
      host::LayerNormBackward(threads_, Data<T>(dx, rows * channels), Data<G>(dweight, channels),
                              Data<G>(dbias, channels), Data<T>(dout, rows * channels),
                              Data<T>(x, rows * channels), Data<float>(mean, rows),
                              Data<float>(rstd, rows), Data<T>(weight, channels), rows, channels);
    });
  }

  void LinearForward(Buffer y, Buffer x, Buffer w, Buffer bias, int64_t rows, int64_t in,
                     int64_t out) override {
    Run("linear_forward", x.dtype, [=, this]<typename T>() {
      host::LinearForward(threads_, Data<T>(y, rows * out), Data<T>(x, rows * in),
                          Data<T>(w, in * out), Data<T>(bias, out), rows, in, out);
    });
  }

  void LinearBackward(Buffer dx, Buffer dw, Buffer dbias, Buffer dy, Buffer x, Buffer w,
                      int64_t rows, int64_t in, int64_t out) override {
    Run("linear_backward", x.dtype, dw.dtype, [=, this]<typename T, typename G>() {
      host::LinearBackward(threads_, Data<T>(dx, rows * in), Data<G>(dw, in * out),
                           Data<G>(dbias, out), Data<T>(dy, rows * out), Data<T>(x, rows * in),
                           Data<T>(w, in * out), rows, in, out);
    });
  }

  void HeadForward(Buffer logits, Buffer x, Buffer wte, int64_t rows, int64_t channels,
                   int64_t vocabulary) override {
    Run("head_forward", x.dtype, [=, this]<typename T>() {
      host::HeadForward(threads_, Data<T>(logits, rows * vocabulary), Data<T>(x, rows * channels),
                        Data<T>(wte, vocabulary * channels), rows, channels, vocabulary);
    });
  }

  void HeadBackward(Buffer dx, Buffer dwte, Buffer dlogits, Buffer x, Buffer wte, int64_t rows,
                    int64_t channels, int64_t vocabulary) override {
    Run("head_backward", x.dtype, dwte.dtype, [=, this]<typename T, typename G>() {
      host::HeadBackward(threads_, Data<T>(dx, rows * channels),
                         Data<G>(dwte, vocabulary * channels), Data<T>(dlogits, rows * vocabulary),
                         Data<T>(x, rows * channels), Data<T>(wte, vocabulary * channels), rows,
                         channels, vocabulary);
    });
  }

  void AttentionForward(Buffer out, Buffer logsumexp, Buffer qkv, SequenceShape shape,
                        int64_t heads, const Dropout& dropout) override {
    Run("attention_forward", qkv.dtype, [=, this]<typename T>() {
      host::AttentionForward(threads_, Data<T>(out, shape.elements()),
                             Data<float>(logsumexp, shape.rows() * heads),
                             Data<T>(qkv, 3 * shape.elements()), shape, heads, Mask(dropout));
    });
  }

  void AttentionBackward(Buffer dqkv, Buffer dout, Buffer qkv, Buffer out, Buffer logsumexp,
                         SequenceShape shape, int64_t heads, const Dropout& dropout) override {
    Run("attention_backward", qkv.dtype, [=, this]<typename T>() {
      host::AttentionBackward(
          threads_, Data<T>(dqkv, 3 * shape.elements()), Data<T>(dout, shape.elements()),
          Data<T>(qkv, 3 * shape.elements()), Data<T>(out, shape.elements()),
          Data<float>(logsumexp, shape.rows() * heads), shape, heads, Mask(dropout));
    });
  }

  void GeluForward(Buffer out, Buffer x) override {
    Run("gelu_forward", x.dtype, [=, this]<typename T>() {
      host::GeluForward(threads_, Data<T>(out, x.elements), x.As<T>(), x.elements);
    });
  }

  void GeluBackward(Buffer dx, Buffer x, Buffer dout) override {
    Run("gelu_backward", x.dtype, [=, this]<typename T>() {
      host::GeluBackward(threads_, Data<T>(dx, x.elements), x.As<T>(), Data<T>(dout, x.elements),
                         x.elements);
    });
  }

  void ResidualForward(Buffer out, Buffer x, Buffer branch, SequenceShape shape,
                       const Dropout& dropout) override {
    Run("residual_forward", x.dtype, [=, this]<typename T>() {
      host::ResidualForward(threads_, Data<T>(out, shape.elements()), Data<T>(x, shape.elements()),
                            Data<T>(branch, shape.elements()), shape, Mask(dropout));
    });
  }

  void DropoutBackward(Buffer dbranch, Buffer dout, SequenceShape shape,
                       const Dropout& dropout) override {
    Run("dropout_backward", dout.dtype, [=, this]<typename T>() {
      host::DropoutBackward(threads_, Data<T>(dbranch, shape.elements()),
                            Data<T>(dout, shape.elements()), shape, Mask(dropout));
    });
  }

  void CrossEntropyForward(Buffer losses, Buffer logits, Buffer targets, int64_t rows,
                           int64_t vocabulary) override {
    Run("cross_entropy_forward", logits.dtype, [=, this]<typename T>() {
      host::CrossEntropyForward(threads_, Data<float>(losses, rows),
                                Data<T>(logits, rows * vocabulary), Data<int32_t>(targets, rows),
                                rows, vocabulary);
    });
  }

  void CrossEntropyBackward(Buffer logits, Buffer targets, int64_t rows, int64_t vocabulary,
                            float scale) override {
    Run("cross_entropy_backward", logits.dtype, [=, this]<typename T>() {
      host::CrossEntropyBackward(threads_, Data<T>(logits, rows * vocabulary),
                                 Data<int32_t>(targets, rows), rows, vocabulary, scale);
    });
  }

  void AccumulateSum(Buffer sum, Buffer x) override {
    Run("accumulate_sum", [=, this] {
      host::AccumulateSum(threads_, Data<double>(sum, 1), Data<float>(x, 0), x.elements);
    });
  }

  void AccumulateSquares(Buffer sum, Buffer x) override {
    Run("accumulate_squares", x.dtype, [=, this]<typename G>() {
      host::AccumulateSquares(threads_, Data<double>(sum, 1), x.As<G>(), x.elements);
    });
  }

  void Add(Buffer to, Buffer from) override {
    Run("add", to.dtype, [=, this]<typename T>() {
      host::Add(threads_, Data<T>(to, from.elements), Data<T>(from, 0), from.elements);
    });
  }

  void Fill(Buffer out, float value) override {
    if (out.dtype == DType::kFloat64) {
      return Run("fill", [=] { std::fill_n(out.As<double>(), out.elements, value); });
    }
    Run("fill", out.dtype,
        [=, this]<typename T>() { host::Fill(threads_, out.As<T>(), out.elements, value); });
  }

  void FillNormal(Buffer out, uint64_t seed, uint64_t stream, int64_t first,
                  float stddev) override {
    Run("fill_normal", out.dtype, [=, this]<typename T>() {
      host::FillNormal(threads_, out.As<T>(), out.elements, seed, stream, first, stddev);
    });
  }

  void PrepareStep(Buffer state, Buffer sums, const OptimizerSettings& settings) override {
    Run("prepare_step", [=, this] {
      zerobox::PrepareStep(State(state), Data<double>(sums, 0), sums.elements, settings);
    });
  }

  void AdamW(Buffer parameters, Buffer master, Buffer gradients, Buffer m, Buffer v, bool decay,
             Buffer state, const OptimizerSettings& settings) override {
    Run("adamw", parameters.dtype, gradients.dtype, [=, this]<typename P, typename G>() {
      const int64_t n = parameters.elements;
      constexpr bool kOwnMaster = std::is_same_v<P, float>;
      assert(!kOwnMaster || master.empty());
      host::AdamW(threads_, parameters.As<P>(), kOwnMaster ? nullptr : Data<float>(master, n),
                  Data<G>(gradients, n), Data<float>(m, n), Data<float>(v, n), n, decay,
                  State(state), settings);
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
    enqueue_(name, [kernel = std::move(kernel)] {
      kernel();
      return absl::OkStatus();
    });
  }
  // The same with a kernel over T, and over T and G.
  template <typename Kernel>
  void Run(std::string_view name, DType t, Kernel kernel) {
    Run(name, [t, kernel = std::move(kernel)] { CallWith(t, kernel); });
  }
  template <typename Kernel>
  void Run(std::string_view name, DType t, DType g, Kernel kernel) {
    Run(name, [t, g, kernel = std::move(kernel)] { CallWith(t, g, kernel); });
  }

  const EnqueueWork enqueue_;
  const std::unique_ptr<host::Threads> owned_threads_;
  host::Threads& threads_ = *owned_threads_;
};

}  // namespace

std::unique_ptr<Ops> MakeHostOps(HostDevice& device, StreamId stream) {
  return MakeHostOps(
      [&device, stream](std::string_view name, std::function<absl::Status()> work) {
        device.Enqueue(stream, name, std::move(work));
      },
      std::make_unique<StreamThreads>(device, stream));
}

std::unique_ptr<Ops> MakeHostOps(EnqueueWork enqueue, std::unique_ptr<host::Threads> threads) {
  return std::make_unique<HostOps>(std::move(enqueue), std::move(threads));
}

}  // namespace zerobox
