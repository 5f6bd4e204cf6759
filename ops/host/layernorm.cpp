// SPDX-License-Identifier: Apache-2.0
//
// Layer normalization (arXiv:1607.06450, section 3), over the C channels of a row:
//   n = (x - mean) rstd,  rstd = 1 / sqrt(variance + eps),  y = n weight + bias.
// Backward, with dn = weight dy and means over the channels:
//   dx      += rstd (dn - mean(dn) - n mean(dn n))
//   dweight += sum over rows of dy n,  dbias += sum over rows of dy.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/layernorm.cpp"
#include <cmath>
#include <tuple>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

constexpr float kEpsilon = 1e-5f;

// Rows [0, rows). The variance is taken around the mean, not from the sum of squares, which would
// cancel where the mean is large.
template <typename T>
void LayerNormForwardRows(T* out, float* mean, float* rstd, const T* x, const T* weight,
                          const T* bias, size_t rows, size_t channels) {
  const hn::ScalableTag<float> d;
  const float scale = 1.0f / static_cast<float>(channels);
  for (size_t row = 0; row < rows; ++row, x += channels, out += channels) {
    auto sum = hn::Zero(d);
    ForLanes(d, channels,
             [&](size_t i, auto memory) HWY_ATTR { sum = hn::Add(sum, memory.Load(d, x + i)); });
    const float average = Sum(d, sum) * scale;
    const auto m = hn::Set(d, average);
    auto squares = hn::Zero(d);
    ForLanes(d, channels, [&](size_t i, auto memory) HWY_ATTR {
      const auto centered = memory.Mask(d, hn::Sub(memory.Load(d, x + i), m));
      squares = hn::MulAdd(centered, centered, squares);
    });
    const float inverse = 1.0f / std::sqrt(Sum(d, squares) * scale + kEpsilon);
    const auto r = hn::Set(d, inverse);
    ForLanes(d, channels, [&](size_t i, auto memory) HWY_ATTR {
      const auto n = hn::Mul(hn::Sub(memory.Load(d, x + i), m), r);
      memory.Store(d, hn::MulAdd(n, memory.Load(d, weight + i), memory.Load(d, bias + i)), out + i);
    });
    mean[row] = average;
    rstd[row] = inverse;
  }
}

template <typename T>
void LayerNormBackwardRows(T* dx, const T* dout, const T* x, const float* mean, const float* rstd,
                           const T* weight, size_t rows, size_t channels) {
  const hn::ScalableTag<float> d;
  const float scale = 1.0f / static_cast<float>(channels);
  for (size_t row = 0; row < rows; ++row, x += channels, dx += channels, dout += channels) {
    const auto m = hn::Set(d, mean[row]);
    const auto r = hn::Set(d, rstd[row]);
    auto sum_dn = hn::Zero(d);
    auto sum_dn_n = hn::Zero(d);
    ForLanes(d, channels, [&](size_t i, auto memory) HWY_ATTR {
      const auto n = hn::Mul(hn::Sub(memory.Load(d, x + i), m), r);
      const auto dn = hn::Mul(memory.Load(d, weight + i), memory.Load(d, dout + i));  // 0 in a tail
      sum_dn = hn::Add(sum_dn, dn);
      sum_dn_n = hn::MulAdd(dn, n, sum_dn_n);
    });
    const auto mean_dn = hn::Set(d, Sum(d, sum_dn) * scale);
    const auto mean_dn_n = hn::Set(d, Sum(d, sum_dn_n) * scale);
    ForLanes(d, channels, [&](size_t i, auto memory) HWY_ATTR {
      const auto n = hn::Mul(hn::Sub(memory.Load(d, x + i), m), r);
      const auto dn = hn::Mul(memory.Load(d, weight + i), memory.Load(d, dout + i));
      const auto inner = hn::NegMulAdd(n, mean_dn_n, hn::Sub(dn, mean_dn));
      memory.Store(d, hn::MulAdd(r, inner, memory.Load(d, dx + i)), dx + i);
    });
  }
}

// Sums over all rows, for `columns` of the `channels`, added to dweight and dbias in the end.
// Blocks of rows are summed in registers, and the blocks' sums in memory: the rounding errors of a
// sum of rows / kRowBlock terms, not of rows.
template <typename T, typename G>
void LayerNormBackwardColumns(G* dweight, G* dbias, const T* dout, const T* x, const float* mean,
                              const float* rstd, size_t rows, size_t channels, size_t columns) {
  constexpr size_t kRowBlock = 32, kColumns = 256;
  const hn::ScalableTag<float> d;
  for (size_t first = 0; first < columns; first += kColumns) {
    const size_t count = HWY_MIN(kColumns, columns - first);
    HWY_ALIGN float weight_sums[kColumns] = {};
    HWY_ALIGN float bias_sums[kColumns] = {};
    for (size_t begin = 0; begin < rows; begin += kRowBlock) {
      const size_t end = HWY_MIN(rows, begin + kRowBlock);
      ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
        auto weights = hn::Zero(d);
        auto biases = hn::Zero(d);
        for (size_t row = begin; row < end; ++row) {
          const size_t at = row * channels + first + i;
          const auto dy = memory.Load(d, dout + at);
          const auto n = hn::Mul(hn::Sub(memory.Load(d, x + at), hn::Set(d, mean[row])),
                                 hn::Set(d, rstd[row]));
          weights = hn::MulAdd(dy, n, weights);
          biases = hn::Add(biases, dy);
        }
        memory.Store(d, hn::Add(memory.Load(d, weight_sums + i), weights), weight_sums + i);
        memory.Store(d, hn::Add(memory.Load(d, bias_sums + i), biases), bias_sums + i);
      });
    }
    AddTo(dweight + first, weight_sums, count);
    AddTo(dbias + first, bias_sums, count);
  }
}

auto LayerNormForwards() {
  return std::make_tuple(LayerNormForwardRows<float>, LayerNormForwardRows<BFloat16>);
}
auto LayerNormBackwards() {
  return std::make_tuple(LayerNormBackwardRows<float>, LayerNormBackwardRows<BFloat16>);
}
auto LayerNormColumns() {
  return std::make_tuple(LayerNormBackwardColumns<float, float>,
                         LayerNormBackwardColumns<BFloat16, BFloat16>,
                         LayerNormBackwardColumns<BFloat16, float>);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(LayerNormForwards);
HWY_EXPORT(LayerNormBackwards);
HWY_EXPORT(LayerNormColumns);

constexpr int64_t kRowGrain = 16;
constexpr int64_t kColumnGrain = 64;

template <typename T>
void LayerNormForward(Threads& threads, T* out, float* mean, float* rstd, const T* x,
                      const T* weight, const T* bias, int64_t rows, int64_t channels) {
  const auto forward = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(LayerNormForwards)());
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    forward(out + begin * channels, mean + begin, rstd + begin, x + begin * channels, weight, bias,
            static_cast<size_t>(end - begin), static_cast<size_t>(channels));
  });
}

template <typename T, typename G>
void LayerNormBackward(Threads& threads, T* dx, G* dweight, G* dbias, const T* dout, const T* x,
                       const float* mean, const float* rstd, const T* weight, int64_t rows,
                       int64_t channels) {
  const auto backward = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(LayerNormBackwards)());
  ForRanges(threads, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    backward(dx + begin * channels, dout + begin * channels, x + begin * channels, mean + begin,
             rstd + begin, weight, static_cast<size_t>(end - begin), static_cast<size_t>(channels));
  });
  const auto sum_columns = InstanceOf<T, G>(HWY_DYNAMIC_DISPATCH(LayerNormColumns)());
  ForRanges(threads, channels, kColumnGrain, [&](int64_t begin, int64_t end) {
    sum_columns(dweight + begin, dbias + begin, dout + begin, x + begin, mean, rstd,
                static_cast<size_t>(rows), static_cast<size_t>(channels),
                static_cast<size_t>(end - begin));
  });
}

template void LayerNormForward(Threads&, float*, float*, float*, const float*, const float*,
                               const float*, int64_t, int64_t);
template void LayerNormForward(Threads&, BFloat16*, float*, float*, const BFloat16*,
                               const BFloat16*, const BFloat16*, int64_t, int64_t);
template void LayerNormBackward(Threads&, float*, float*, float*, const float*, const float*,
                                const float*, const float*, const float*, int64_t, int64_t);
template void LayerNormBackward(Threads&, BFloat16*, BFloat16*, BFloat16*, const BFloat16*,
                                const BFloat16*, const float*, const float*, const BFloat16*,
                                int64_t, int64_t);
template void LayerNormBackward(Threads&, BFloat16*, float*, float*, const BFloat16*,
                                const BFloat16*, const float*, const float*, const BFloat16*,
                                int64_t, int64_t);

}  // namespace zerobox::host
#endif  // HWY_ONCE
