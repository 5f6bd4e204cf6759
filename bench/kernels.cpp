// SPDX-License-Identifier: Apache-2.0
//
// How fast the host kernels are, beside what the machine can do: matrix products and attention as a
// share of the peak of fp32 multiply-adds, AdamW as a share of the bandwidth of memory, the others
// in nanoseconds an element. Everything takes turns with the peaks, because a machine's clock
// wanders; a figure is the median over the rounds, a share the median of the rounds' shares. On a
// CPU with instructions for bf16, products in bf16 can be beyond the peak of fp32.
#include "bench/peak.h"

#if HWY_ONCE
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "ops/host/matmul.h"

namespace zerobox {
namespace {

constexpr int kRounds = 7;
constexpr int64_t kRows = 1024;  // of the linear layers

class OneThread final : public host::Threads {
 public:
  int count() const override { return 1; }
  void For(int64_t tasks, const std::function<void(int64_t)>& task) override {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename T = float>
std::vector<T> Values(int64_t n) {
  std::vector<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const float value = static_cast<float>(i * 7919 % 2000 - 1000) * 1e-3f;
    values[static_cast<size_t>(i)] = FromFloat<T>(value);
  }
  return values;
}

// The four linear layers of a block of width C over 1024 rows: their y = x w, dx = dy w^T or
// dw += x^T dy, all in T.
template <typename T>
class Linears {
 public:
  explicit Linears(int64_t width)
      : width_(width),
        x_(Values<T>(kRows * 4 * width)),
        w_(Values<T>(4 * width * width)),
        y_(x_),
        dw_(w_) {}

  double flops() const { return 2.0 * kRows * 12 * static_cast<double>(width_ * width_); }
  void Run(int direction) {
    const int64_t C = width_;
    const int64_t layers[4][2] = {{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}};
    for (const auto& [in, out] : layers) {
      if (direction == 0) {
        Multiply(false, false, kRows, out, in, x_.data(), w_.data(), 0, y_.data());
      } else if (direction == 1) {
        Multiply(false, true, kRows, in, out, x_.data(), w_.data(), 0, y_.data());
      } else {
        Multiply(true, false, in, out, kRows, x_.data(), x_.data(), 1, dw_.data());
      }
    }
  }

 private:
  static void Multiply(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                       const T* a, const T* b, float beta, T* c) {
    Matmul<T, T, T>({.transpose_a = transpose_a,
                     .transpose_b = transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = a,
                     .lda = transpose_a ? m : k,
                     .b = b,
                     .ldb = transpose_b ? k : n,
                     .beta = beta,
                     .c = c,
                     .ldc = n});
  }

  int64_t width_;
  std::vector<T> x_, w_, y_, dw_;
};

template <typename T>
void MeasureMatmul(const char* type, int threads) {
  constexpr const char* kDirections[] = {"y = x w", "dx = dy w^T", "dw += x^T dy"};
  for (const int64_t width : {128, 384, 768}) {
    std::vector<Linears<T>> work(static_cast<size_t>(threads), Linears<T>(width));
    const int repeats = width == 128 ? 10 : 1;
    std::vector<double> rates[3], shares[3];
    for (int round = 0; round < kRounds; ++round) {
      for (int direction = 0; direction < 3; ++direction) {
        const double peak = peak::PeakFlops(threads);
        const double seconds = peak::Seconds(threads, [&](int thread) {
          for (int i = 0; i < repeats; ++i) work[static_cast<size_t>(thread)].Run(direction);
        });
        const double rate = threads * repeats * work[0].flops() / seconds;
        rates[direction].push_back(rate);
        shares[direction].push_back(rate / peak);
      }
    }
    for (int direction = 0; direction < 3; ++direction) {
      std::printf("  %2d thread%s %s  width %3lld  %-13s %7.1f GFLOP/s  %3.0f%% of peak\n", threads,
                  threads == 1 ? " " : "s", type, static_cast<long long>(width),
                  kDirections[direction], Median(rates[direction]) * 1e-9,
                  100 * Median(shares[direction]));
    }
  }
}

// Nanoseconds that an element of `work` takes, on one thread.
void MeasureElements(const char* name, int64_t elements, const std::function<void()>& work) {
  work();  // warms memory and caches
  std::vector<double> times;
  times.reserve(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    times.push_back(peak::Seconds(1, [&](int) {
      for (int i = 0; i < 4; ++i) work();
    }));
  }
  std::printf("  %-46s %6.3f ns an element\n", name,
              Median(times) / 4 / static_cast<double>(elements) * 1e9);
}

template <typename T>
void MeasureElementwise() {
  OneThread threads;
  const SequenceShape shape{4, 256, 384};
  const int64_t rows = shape.rows(), C = shape.channels, n = shape.elements();
  const std::vector<T> x = Values<T>(n), dout(x), weight = Values<T>(C), bias(weight);
  std::vector<T> out(x), dx(x), dweight = Values<T>(C), dbias(dweight);
  std::vector<float> mean = Values(rows), rstd(mean);
  const std::vector<int64_t> samples = {1, 2, 3, 4};
  const host::DropoutMask none, dropout{.p = 0.1f, .seed = 1, .samples = samples.data()};
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i * 31 % 256);
  }
  std::vector<T> wte = Values<T>(256 * C), wpe(wte);

  MeasureElements("gelu forward", n, [&] { GeluForward(threads, out.data(), x.data(), n); });
  MeasureElements("gelu backward", n,
                  [&] { GeluBackward(threads, dx.data(), x.data(), dout.data(), n); });
  for (const int64_t width : {128, 384}) {
    const int64_t r = n / width, m = std::min(r, rows);
    const std::string suffix = ", width " + std::to_string(width);
    MeasureElements(("layernorm forward" + suffix).c_str(), m * width, [&] {
      LayerNormForward(threads, out.data(), mean.data(), rstd.data(), x.data(), weight.data(),
                       bias.data(), m, width);
    });
    MeasureElements(("layernorm backward" + suffix).c_str(), m * width, [&] {
      LayerNormBackward(threads, dx.data(), dweight.data(), dbias.data(), dout.data(), x.data(),
                        mean.data(), rstd.data(), weight.data(), m, width);
    });
  }
  MeasureElements("residual", n, [&] {
    ResidualForward(threads, out.data(), x.data(), dout.data(), shape, none);
  });
  MeasureElements("residual with dropout", n, [&] {
    ResidualForward(threads, out.data(), x.data(), dout.data(), shape, dropout);
  });
  MeasureElements("dropout backward", n,
                  [&] { DropoutBackward(threads, dx.data(), dout.data(), shape, dropout); });
  MeasureElements("embedding forward", n, [&] {
    EmbeddingForward(threads, out.data(), tokens.data(), wte.data(), wpe.data(), shape, none);
  });
  MeasureElements("embedding backward", n, [&] {
    EmbeddingBackward(threads, wte.data(), wpe.data(), dout.data(), tokens.data(), shape, none);
  });
  MeasureElements("sum of squares", n, [&] {
    double sum = 0;
    AccumulateSquares(threads, &sum, x.data(), n);
  });
  MeasureElements("column sums", n,
                  [&] { AddColumnSums(threads, dbias.data(), dout.data(), rows, C); });
  MeasureElements("fill with normal numbers", n / 16,
                  [&] { FillNormal(threads, out.data(), n / 16, 1, 2, 0, 0.02f); });
}

template <typename T>
void MeasureCrossEntropy(int64_t rows, int64_t vocabulary) {
  OneThread threads;
  std::vector<T> logits = Values<T>(rows * vocabulary);
  std::vector<float> losses(static_cast<size_t>(rows));
  const std::vector<int32_t> targets(static_cast<size_t>(rows), 5);
  const std::string suffix = ", vocabulary " + std::to_string(vocabulary);
  MeasureElements(("cross-entropy forward" + suffix).c_str(), rows * vocabulary, [&] {
    CrossEntropyForward(threads, losses.data(), logits.data(), targets.data(), rows, vocabulary);
  });
  MeasureElements(("cross-entropy backward" + suffix).c_str(), rows * vocabulary, [&] {
    CrossEntropyBackward(threads, logits.data(), targets.data(), rows, vocabulary, 1.0f);
  });
}

// Counted are the multiply-adds that causal attention needs, T (T + 1) / 2 pairs a head: 4 d of
// them forward, 10 d backward.
template <typename T = float>
void MeasureAttention(SequenceShape shape, int64_t heads, float p) {
  OneThread threads;
  const std::vector<T> qkv = Values<T>(3 * shape.elements()), dout = Values<T>(shape.elements());
  std::vector<T> out(dout), dqkv(qkv);
  std::vector<float> logsumexp = Values(shape.rows() * heads);
  std::vector<int64_t> samples(static_cast<size_t>(shape.batch), 3);
  const host::DropoutMask dropout{.p = p, .seed = 1, .samples = samples.data()};
  const double pairs =
      static_cast<double>(shape.rows() * (shape.positions + 1)) / 2;  // times channels, over heads
  const double flops[2] = {4 * pairs * static_cast<double>(shape.channels),
                           10 * pairs * static_cast<double>(shape.channels)};
  std::vector<double> times[2], shares[2];
  for (int round = 0; round <= kRounds; ++round) {
    for (int backward = 0; backward < 2; ++backward) {
      const double peak = peak::PeakFlops(1);
      const double seconds = peak::Seconds(1, [&](int) {
        if (backward == 0) {
          AttentionForward(threads, out.data(), logsumexp.data(), qkv.data(), shape, heads,
                           dropout);
        } else {
          AttentionBackward(threads, dqkv.data(), dout.data(), qkv.data(), out.data(),
                            logsumexp.data(), shape, heads, dropout);
        }
      });
      if (round == 0) continue;  // warms memory and caches
      times[backward].push_back(seconds);
      shares[backward].push_back(flops[backward] / seconds / peak);
    }
  }
  for (int backward = 0; backward < 2; ++backward) {
    std::printf("  %-8s %s  T %4lld, %2lld heads of %2lld%s %8.0f ns a token  %3.0f%% of peak\n",
                backward == 0 ? "forward" : "backward", std::is_same_v<T, float> ? "fp32" : "bf16",
                static_cast<long long>(shape.positions), static_cast<long long>(heads),
                static_cast<long long>(shape.channels / heads), p > 0 ? ", dropout" : "         ",
                Median(times[backward]) / static_cast<double>(shape.rows()) * 1e9,
                100 * Median(shares[backward]));
  }
}

// The share of the bandwidth that scaling arrays in place reaches. Counted are the bytes that have
// to move: weights, m, v and gradients are read and written, a bf16 parameter is only written.
template <typename P, typename G>
void MeasureAdamW(const char* types, int threads) {
  constexpr int64_t kParameters = 16 << 20;
  constexpr bool kOwnMaster = std::is_same_v<P, float>;
  constexpr double kBytes = 3 * 8 + 2 * sizeof(G) + (kOwnMaster ? 0 : sizeof(P));
  OneThread one;
  std::vector<float> weights = Values(kParameters), m = weights, v(kParameters, 0.5f);
  std::vector<BFloat16> parameters(kOwnMaster ? 0 : kParameters);
  std::vector<G> g(kParameters, FromFloat<G>(1e-3f));
  OptimizerSettings settings;
  StepState state;
  state.learning_rate = 1e-4;
  const int64_t share = kParameters / threads / 1024 * 1024;
  std::vector<double> rates, shares, memory;
  for (int round = 0; round < kRounds; ++round) {
    const double scale = peak::Seconds(threads, [&](int thread) {
      for (std::vector<float>* x : {&weights, &m, &v}) {
        peak::ScaleInPlace(x->data() + thread * share, static_cast<size_t>(share), 0.999f);
      }
    });
    const double adamw = peak::Seconds(threads, [&](int thread) {
      const int64_t at = thread * share;
      float* const w = weights.data() + at;
      if constexpr (kOwnMaster) {
        AdamW<float, G>(one, w, nullptr, g.data() + at, m.data() + at, v.data() + at, share, true,
                        state, settings);
      } else {
        AdamW(one, parameters.data() + at, w, g.data() + at, m.data() + at, v.data() + at, share,
              true, state, settings);
      }
    });
    const double count = static_cast<double>(threads * share);
    memory.push_back(3 * 8 * count / scale);
    rates.push_back(kBytes * count / adamw);
    shares.push_back(rates.back() / memory.back());
  }
  std::printf(
      "  %2d thread%s %-9s %5.2f ns a parameter, %5.1f GB/s: %3.0f%% of %.1f GB/s in place\n",
      threads, threads == 1 ? " " : "s", types, kBytes / Median(rates) * 1e9, Median(rates) * 1e-9,
      100 * Median(shares), Median(memory) * 1e-9);
}

int Main() {
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> counts = {1};
  if (all > 1) counts.push_back(all);

  std::printf("Peak of fp32 multiply-adds (%s):\n", peak::TargetName());
  for (const int threads : counts) {
    std::vector<double> rates;
    rates.reserve(3 * kRounds);
    for (int round = 0; round < 3 * kRounds; ++round) rates.push_back(peak::PeakFlops(threads));
    std::printf("  %2d thread%s %7.1f GFLOP/s\n", threads, threads == 1 ? " " : "s",
                Median(rates) * 1e-9);
  }
  std::printf("Matrix products of a block's linear layers, %lld rows, each thread its own:\n",
              static_cast<long long>(kRows));
  for (const int threads : counts) {
    MeasureMatmul<float>("fp32", threads);
    MeasureMatmul<BFloat16>("bf16", threads);
  }
  std::printf("Causal attention, one thread:\n");
  MeasureAttention({16, 128, 128}, 4, 0);
  MeasureAttention({16, 128, 128}, 4, 0.1f);
  MeasureAttention({4, 256, 384}, 6, 0);
  MeasureAttention<BFloat16>({4, 256, 384}, 6, 0);
  MeasureAttention({1, 1024, 768}, 12, 0);
  std::printf("Element by element in fp32, one thread:\n");
  MeasureElementwise<float>();
  MeasureCrossEntropy<float>(2048, 256);
  MeasureCrossEntropy<float>(16, 50304);
  std::printf("Element by element in bf16, one thread:\n");
  MeasureElementwise<BFloat16>();
  MeasureCrossEntropy<BFloat16>(2048, 256);
  MeasureCrossEntropy<BFloat16>(16, 50304);
  std::printf("AdamW, parameters and gradients, against scaling in place:\n");
  for (const int threads : counts) {
    MeasureAdamW<float, float>("fp32 fp32", threads);
    MeasureAdamW<BFloat16, BFloat16>("bf16 bf16", threads);
    MeasureAdamW<BFloat16, float>("bf16 fp32", threads);
  }
  return 0;
}

}  // namespace
}  // namespace zerobox

int main() { return zerobox::Main(); }
#endif  // HWY_ONCE
