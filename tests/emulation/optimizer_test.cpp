// SPDX-License-Identifier: Apache-2.0
//
// What ends a step on the GPU: ops/cuda/sums.cu and ops/cuda/adamw.cu.
#include "ops/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using reference::Array;

class OptimizerKernels : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(OptimizerKernels);

//---- Sums ---------------------------------------------------------------------------------------

template <typename T>
double Squares(const Values<T>& x, int64_t shift, double before) {
  const DeviceArray<T> device_x(x, shift);
  DeviceArray<double> sum(std::vector<double>{before});
  DeviceArray<double> workspace(cuda::AccumulateWorkspace(x.size()));
  EXPECT_EQ(
      cuda::AccumulateSquares(nullptr, sum.data(), device_x.data(), x.size(), workspace.data()),
      cudaSuccess);
  return sum[0];
}

// Parts are of 32768 elements.
TEST_P(OptimizerKernels, AccumulatesSquaresInFp64) {
  for (const int64_t n : {1, 7, 9, 2049, 32768, 70001}) {
    const auto x = Values<BFloat16>::Random(n, 1);
    double expected = 0.25;
    for (const double value : x.Doubles()) expected += value * value;
    const double sum = Squares(x, 0, 0.25);
    EXPECT_TRUE(std::abs(sum - expected) <= 1e-13 * expected) << n;
    // Wherever they stand, and in fp32.
    EXPECT_EQ(Squares(x, 3, 0.25), sum) << n;
    EXPECT_EQ(Squares(x.As<float>(), 0, 0.25), sum) << n;
    EXPECT_EQ(Squares(x.As<float>(), 1, 0.25), sum) << n;
  }
}

TEST_P(OptimizerKernels, AccumulatesSumsInFp64) {
  for (const int64_t n : {1, 33, 40000}) {
    auto x = Floats::Random(n, 1);
    x[n - 1] = 1e9f;  // beside which fp32 would lose the others
    double expected = -2;
    for (const double value : x.Doubles()) expected += value;
    for (const int64_t shift : {0, 1}) {
      const DeviceArray<float> device_x(x, shift);
      DeviceArray<double> sum(std::vector<double>{-2}), workspace(cuda::AccumulateWorkspace(n));
      ASSERT_EQ(cuda::AccumulateSum(nullptr, sum.data(), device_x.data(), n, workspace.data()),
                cudaSuccess);
      EXPECT_TRUE(std::abs(sum[0] - expected) <= 1e-13 * std::abs(expected)) << n;
    }
  }
}

TEST_P(OptimizerKernels, SumsOfNanAndInfinityAreNotFinite) {
  auto x = Floats::Random(40000, 1);
  for (const int64_t i : {int64_t{0}, int64_t{39999}}) {
    auto broken = x;
    broken[i] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(Squares(broken, 0, 0)));
    broken[i] = -INFINITY;
    EXPECT_EQ(Squares(broken, 0, 0), INFINITY);
  }
}

//---- PrepareStep --------------------------------------------------------------------------------

TEST_P(OptimizerKernels, PrepareStepDecidesAsTheHost) {
  OptimizerSettings settings;
  settings.warmup_steps = 3;
  settings.total_steps = 9;
  StepState host;
  DeviceArray<StepState> device(std::vector<StepState>{host});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::vector<double>& sums : {std::vector{0.25, 0.11},
                                          {9, 16},
                                          {1e-30, 0},
                                          {nan, 1},
                                          {4, 5},
                                          {INFINITY, 1},
                                          {1e90, 0},
                                          {2, 2},
                                          {1, 0},
                                          {3, 0},
                                          {1, 1},
                                          {0, 0},
                                          {7, 1}}) {
    const DeviceArray<double> device_sums(sums);
    ASSERT_EQ(cuda::PrepareStep(nullptr, device.data(), device_sums.data(), 2, settings),
              cudaSuccess);
    PrepareStep(host, sums.data(), 2, settings);
    const StepState state = device[0];
    EXPECT_EQ(state.applied, host.applied);
    EXPECT_EQ(state.skip, host.skip);
    EXPECT_TRUE(state.gradient_norm == host.gradient_norm ||
                (std::isnan(state.gradient_norm) && std::isnan(host.gradient_norm)));
    EXPECT_EQ(state.clip_scale, host.clip_scale);
    EXPECT_TRUE(std::abs(state.learning_rate - host.learning_rate) <= 1e-15 * host.learning_rate);
    EXPECT_TRUE(std::abs(state.bias_correction1 - host.bias_correction1) <= 1e-15);
    EXPECT_TRUE(std::abs(state.bias_correction2 - host.bias_correction2) <= 1e-15);
  }
  EXPECT_EQ(host.applied, 10);  // of 13 three are skipped, and the schedule has ended
}

//---- AdamW --------------------------------------------------------------------------------------

// The fp32 weights are those of `master`, or the parameters where these are fp32.
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
};

// Elements that an array begins behind an aligned place.
struct Shifts {
  int64_t parameters = 0, master = 0, gradients = 0, m = 0, v = 0;
};
constexpr Shifts kShifts[] = {{1, 1, 1, 1, 1},  {.parameters = 1}, {.master = 1},
                              {.gradients = 1}, {.m = 1},          {.v = 1}};

template <typename P, typename G>
Arrays<P, G> Step(const Arrays<P, G>& before, const Shifts& shifts, bool decay,
                  const StepState& state, const OptimizerSettings& settings) {
  const int64_t n = before.parameters.size();
  DeviceArray<P> parameters(before.parameters, shifts.parameters);
  DeviceArray<float> master(before.master, shifts.master), m(before.m, shifts.m),
      v(before.v, shifts.v);
  DeviceArray<G> gradients(before.gradients, shifts.gradients);
  const DeviceArray<StepState> device_state(std::vector<StepState>{state});
  float* const master_data = std::is_same_v<P, float> ? nullptr : master.data();
  EXPECT_EQ(cuda::AdamW(nullptr, parameters.data(), master_data, gradients.data(), m.data(),
                        v.data(), n, decay, device_state.data(), settings),
            cudaSuccess);
  return {OnHost(parameters), OnHost(master), OnHost(gradients), OnHost(m), OnHost(v)};
}

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

// In fp32 with fused multiply-adds, as the host has it where its vectors do.
template <typename P, typename G>
Arrays<P, G> Formula(Arrays<P, G> a, bool decay) {
  const float inverse1 = static_cast<float>(1 / SomeState().bias_correction1);
  const float inverse2 = static_cast<float>(1 / SomeState().bias_correction2);
  const float weight_decay = decay ? 0.05f : 0.0f;
  for (int64_t i = 0; i < a.m.size(); ++i) {
    const float w = a.weights()[i], g = ToFloat(a.gradients[i]) * 0.5f;
    a.m[i] = std::fma(0.8f, a.m[i], static_cast<float>(1 - 0.8) * g);
    a.v[i] = std::fma(0.97f, a.v[i], static_cast<float>(1 - 0.97) * (g * g));
    const float step = a.m[i] * inverse1 / (std::sqrt(a.v[i] * inverse2) + 1e-3f);
    const float updated = std::fma(-0.01f, std::fma(weight_decay, w, step), w);
    a.parameters[i] = FromFloat<P>(updated);
    if constexpr (!std::is_same_v<P, float>) a.master[i] = updated;
    a.gradients[i] = G{};
  }
  return a;
}

TEST_P(OptimizerKernels, AdamWFollowsTheFormulaAndSetsGradientsToZero) {
  ForEachTypes([]<typename P, typename G>() {
    for (const int64_t n : {1, 7, 8, 15, 2051}) {
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
        const auto after = Step(before, {}, decay, SomeState(), SomeSettings());
        ExpectClose(after.weights(), new_w, 1e-6, "weights");
        ExpectClose(after.m, new_m, 1e-6, "m");
        ExpectClose(after.v, new_v, 1e-6, "v");
        const auto formula = Formula(before, decay);
        EXPECT_TRUE(after.HasTheBitsOf(formula)) << n;
        for (const Shifts& shifts : kShifts) {
          EXPECT_TRUE(
              Step(before, shifts, decay, SomeState(), SomeSettings()).HasTheBitsOf(formula))
              << n;
        }
      }
    }
  });
}

TEST_P(OptimizerKernels, SkippedStepChangesNoWeightAndSetsGradientsToZero) {
  ForEachTypes([]<typename P, typename G>() {
    for (const Shifts& shift : {Shifts{}, kShifts[0]}) {
      auto before = Arrays<P, G>::Random(2051), expected = before;
      before.gradients[1000] = FromFloat<G>(std::numeric_limits<float>::quiet_NaN());
      // Parameters beside master weights may be memory that never held them.
      if constexpr (std::is_same_v<P, BFloat16>) before.parameters = Values<P>(2051);
      expected.gradients = Values<G>(Array(2051, 0));
      StepState state = SomeState();
      state.skip = 1;
      EXPECT_TRUE(Step(before, shift, true, state, SomeSettings()).HasTheBitsOf(expected));
    }
  });
}

TEST(OptimizerLaunchers, LaunchNothingForNoElements) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::AdamW(nullptr, none, none, none, none, none, 0, true, nullptr, {}), cudaSuccess);
  EXPECT_EQ(cuda::AccumulateSquares(nullptr, nullptr, nothing, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cuda::AccumulateSum(nullptr, nullptr, nothing, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cuda::AccumulateWorkspace(0), 0);
  EXPECT_EQ(cuda::AccumulateWorkspace(32769), 2);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
