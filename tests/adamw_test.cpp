// SPDX-License-Identifier: Apache-2.0
//
// AdamW on the host, over the types of parameters and gradients, for every SIMD target of this CPU.
// Tolerances are relative to the largest element expected: a few roundings of fp32 (6e-8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "ops/optimizer.h"
#include "tests/reference.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

using reference::Array;

class AdamWTest : public SimdTargetTest {};
ZEROBOX_FOR_EACH_SIMD_TARGET(AdamWTest);

// What AdamW works on. The fp32 weights are those of `master`, or the parameters where these are
// fp32.
template <typename P, typename G>
struct Arrays {
  Values<P> parameters;
  Floats master;
  Values<G> gradients;
  Floats m, v;

  static Arrays Random(int64_t n) {
    const Floats weights = Floats::Random(n, 1);
    Arrays result{weights.As<P>(), weights, Values<G>::Random(n, 2), Floats::Random(n, 3),
                  Floats::Random(n, 4)};
    for (int64_t i = 0; i < n; ++i) result.v[i] = std::abs(result.v[i]);
    return result;
  }
  // Elements [begin, begin + count), `shift` elements from an aligned address.
  Arrays Piece(int64_t begin, int64_t count, int64_t shift) const {
    const auto piece = [&]<typename T>(const Values<T>& whole) {
      Values<T> result(count, shift);
      std::copy_n(whole.data() + begin, count, result.data());
      return result;
    };
    return {piece(parameters), piece(master), piece(gradients), piece(m), piece(v)};
  }

  void Step(int threads, bool decay, const StepState& state, const OptimizerSettings& settings) {
    TestThreads team(threads);
    float* const master_data = std::is_same_v<P, float> ? nullptr : master.data();
    host::AdamW(team, parameters.data(), master_data, gradients.data(), m.data(), v.data(),
                parameters.size(), decay, state, settings);
  }
  const Floats& weights() const {
    if constexpr (std::is_same_v<P, float>) {
      return parameters;
    } else {
      return master;
    }
  }
  bool HasTheBitsOf(const Arrays& other) const {
    return parameters.HasTheBitsOf(other.parameters) && weights().HasTheBitsOf(other.weights()) &&
           gradients.HasTheBitsOf(other.gradients) && m.HasTheBitsOf(other.m) &&
           v.HasTheBitsOf(other.v);
  }
  bool GuardsAreIntact() const {
    return parameters.GuardsAreIntact() && master.GuardsAreIntact() &&
           gradients.GuardsAreIntact() && m.GuardsAreIntact() && v.GuardsAreIntact();
  }
};

// Calls test<P, G>() for the types that there are.
template <typename Test>
void ForEachTypes(const Test& test) {
  test.template operator()<float, float>();
  test.template operator()<BFloat16, BFloat16>();
  test.template operator()<BFloat16, float>();
}

OptimizerSettings SomeSettings() {
  OptimizerSettings settings;
  settings.beta1 = 0.8;
  settings.beta2 = 0.97;
  settings.epsilon = 1e-3;
  settings.weight_decay = 0.05;
  return settings;
}

// Of the third step with SomeSettings.
StepState SomeState() {
  StepState state;
  state.applied = 3;
  state.clip_scale = 0.5;
  state.learning_rate = 0.01;
  state.bias_correction1 = 1 - 0.8 * 0.8 * 0.8;
  state.bias_correction2 = 1 - 0.97 * 0.97 * 0.97;
  return state;
}

TEST_P(AdamWTest, FollowsTheFormulaAndSetsGradientsToZero) {
  ForEachTypes([]<typename P, typename G>() {
    const int64_t n = 10007;
    const auto before = Arrays<P, G>::Random(n);
    const Array w = before.weights().Doubles(), g = before.gradients.Doubles();
    for (const bool decay : {false, true}) {
      Array new_w(n), new_m(n), new_v(n);
      for (int64_t i = 0; i < n; ++i) {
        const double gradient = g[i] * 0.5;
        new_m[i] = 0.8 * before.m[i] + 0.2 * gradient;
        new_v[i] = 0.97 * before.v[i] + 0.03 * gradient * gradient;
        const double step = new_m[i] / 0.488 / (std::sqrt(new_v[i] / 0.087327) + 1e-3);
        new_w[i] = w[i] - 0.01 * (step + (decay ? 0.05 * w[i] : 0));
      }
      for (const int threads : {1, 2, 3}) {
        auto after = before;
        after.Step(threads, decay, SomeState(), SomeSettings());
        ExpectClose(after.weights(), new_w, 1e-6, "weights");
        ExpectClose(after.m, new_m, 2e-7, "m");
        ExpectClose(after.v, new_v, 2e-7, "v");
        EXPECT_TRUE(after.parameters.HasTheBitsOf(after.weights().template As<P>()));
        EXPECT_TRUE(after.gradients.HasTheBitsOf(Values<G>(Array(n, 0))));
        EXPECT_TRUE(after.GuardsAreIntact());
      }
    }
  });
}

TEST_P(AdamWTest, SkippedStepChangesNoWeightAndSetsGradientsToZero) {
  ForEachTypes([]<typename P, typename G>() {
    for (const int threads : {1, 3}) {
      auto arrays = Arrays<P, G>::Random(9001), expected = arrays;
      arrays.gradients[5000] = FromFloat<G>(std::numeric_limits<float>::quiet_NaN());
      // Parameters beside master weights may be memory that never held them.
      if constexpr (std::is_same_v<P, BFloat16>) arrays.parameters = Values<P>(9001);
      expected.gradients = Values<G>(Array(9001, 0));
      StepState state = SomeState();
      state.skip = 1;
      arrays.Step(threads, true, state, SomeSettings());
      EXPECT_TRUE(arrays.HasTheBitsOf(expected));
      EXPECT_TRUE(arrays.GuardsAreIntact());
    }
  });
}

TEST_P(AdamWTest, ElementHasTheSameBitsWhereverItStandsAndForAllThreads) {
  ForEachTypes([]<typename P, typename G>() {
    const int64_t n = 9000;
    const auto before = Arrays<P, G>::Random(n);
    auto whole = before;
    whole.Step(1, true, SomeState(), SomeSettings());
    for (const int threads : {2, 3}) {
      auto split = before;
      split.Step(threads, true, SomeState(), SomeSettings());
      EXPECT_TRUE(split.HasTheBitsOf(whole)) << threads;
    }
    for (int64_t begin = 0; begin < 33; ++begin) {
      for (const int64_t count : {1, 3, 8, 15, 16, 17, 31, 33, 64, 100}) {
        auto part = before.Piece(begin, count, begin % 5);
        part.Step(1, true, SomeState(), SomeSettings());
        ASSERT_TRUE(part.HasTheBitsOf(whole.Piece(begin, count, 0))) << begin << " " << count;
        ASSERT_TRUE(part.GuardsAreIntact());
      }
    }
  });
}

TEST_P(AdamWTest, MasterWeightsCarryStepsTooSmallForBFloat16) {
  // Each step is lr = 2^-13 long, but below 1 a bf16 has steps of 2^-8: up to 2^-9, which is 16
  // steps of AdamW, all rounds to 1. A bf16 without a master would stay there for ever.
  OptimizerSettings settings;
  settings.beta1 = settings.beta2 = 0;
  settings.epsilon = 0;
  settings.weight_decay = 0;
  StepState state;
  state.learning_rate = 0x1p-13;
  Values<BFloat16> parameter(Array{1.0}), gradient(1);
  Floats master(Array{1.0}), m(Array{0.0}), v(Array{0.0});
  TestThreads threads(1);
  for (int step = 1; step <= 40; ++step) {
    gradient[0] = ToBFloat16(3);
    host::AdamW(threads, parameter.data(), master.data(), gradient.data(), m.data(), v.data(), 1,
                false, state, settings);
    EXPECT_EQ(master[0], 1 - step * 0x1p-13) << step;
    EXPECT_EQ(ToFloat(parameter[0]), step <= 16 ? 1 : 1 - 0x1p-8f) << step;
  }
}

}  // namespace
}  // namespace zerobox
