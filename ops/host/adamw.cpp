// SPDX-License-Identifier: Apache-2.0
//
// AdamW (arXiv:1711.05101, algorithm 2) in one pass over memory, in fp32. With g the clipped
// gradient, w the fp32 weight and a the steps applied, this one included:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w -= lr ((m / (1 - beta1^a)) / (sqrt(v / (1 - beta2^a)) + epsilon) + weight_decay w)
//   p = w, rounded where p is bf16;  g = 0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/adamw.cpp"
#include <algorithm>
#include <cassert>
#include <tuple>
#include <type_traits>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// w is p itself where p is fp32.
template <typename P, typename G>
void AdamWRange(P* p, float* w, G* g, float* m, float* v, size_t n, bool decay,
                const StepState& state, const OptimizerSettings& settings) {
  const hn::ScalableTag<float> d;
  // One rounding each, from the settings in fp64.
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<float>(value)); };
  const auto clip = set(state.clip_scale);
  const auto beta1 = set(settings.beta1), one_minus_beta1 = set(1 - settings.beta1);
  const auto beta2 = set(settings.beta2), one_minus_beta2 = set(1 - settings.beta2);
  const auto inverse1 = set(1 / state.bias_correction1);
  const auto inverse2 = set(1 / state.bias_correction2);
  const auto epsilon = set(settings.epsilon);
  const auto learning_rate = set(state.learning_rate);
  const auto weight_decay = set(decay ? settings.weight_decay : 0);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    const auto gi = hn::Mul(memory.Load(d, g + i), clip);
    const auto mi = hn::MulAdd(beta1, memory.Load(d, m + i), hn::Mul(one_minus_beta1, gi));
    const auto vi =
        hn::MulAdd(beta2, memory.Load(d, v + i), hn::Mul(one_minus_beta2, hn::Mul(gi, gi)));
    const auto wi = memory.Load(d, w + i);
    const auto denominator = hn::Add(hn::Sqrt(hn::Mul(vi, inverse2)), epsilon);
    const auto step = hn::Div(hn::Mul(mi, inverse1), denominator);
    memory.Store(d, mi, m + i);
    memory.Store(d, vi, v + i);
    const auto updated = hn::NegMulAdd(learning_rate, hn::MulAdd(weight_decay, wi, step), wi);
    memory.Store(d, updated, w + i);
    if constexpr (!std::is_same_v<P, float>) memory.Store(d, updated, p + i);
    memory.Store(d, hn::Zero(d), g + i);
  });
}

auto AdamWRanges() {
  return std::make_tuple(AdamWRange<float, float>, AdamWRange<BFloat16, BFloat16>,
                         AdamWRange<BFloat16, float>);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(AdamWRanges);

template <typename P, typename G>
void AdamW(Threads& threads, P* parameters, float* master, G* gradients, float* m, float* v,
           int64_t n, bool decay, const StepState& state, const OptimizerSettings& settings) {
  if constexpr (std::is_same_v<P, float>) {
    assert(master == nullptr);
    master = parameters;
  }
  const auto range = InstanceOf<P, G>(HWY_DYNAMIC_DISPATCH(AdamWRanges)());
  ForRanges(threads, n, 4096, [&](int64_t begin, int64_t end) {
    if (state.skip != 0) {
      if constexpr (!std::is_same_v<P, float>) {
        std::transform(master + begin, master + end, parameters + begin, ToBFloat16);
      }
      std::fill(gradients + begin, gradients + end, G{});
    } else {
      range(parameters + begin, master + begin, gradients + begin, m + begin, v + begin,
            static_cast<size_t>(end - begin), decay, state, settings);
    }
  });
}

template void AdamW(Threads&, float*, float*, float*, float*, float*, int64_t, bool,
                    const StepState&, const OptimizerSettings&);
template void AdamW(Threads&, BFloat16*, float*, BFloat16*, float*, float*, int64_t, bool,
                    const StepState&, const OptimizerSettings&);
template void AdamW(Threads&, BFloat16*, float*, float*, float*, float*, int64_t, bool,
                    const StepState&, const OptimizerSettings&);

}  // namespace zerobox::host
#endif  // HWY_ONCE
