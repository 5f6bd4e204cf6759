// SPDX-License-Identifier: Apache-2.0
//
// The optimizer on the host side: the same bits as on the device, and every byte where it should
// be.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "tests/expected_bytes.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

int64_t HostBytes(const SmallRun& run, int rank, Category category) {
  return run.result.ranks[rank].host_memory.live[static_cast<size_t>(category)];
}

struct Types {
  DType parameters, gradients;
};
constexpr Types kFp32 = {DType::kFloat32, DType::kFloat32};
constexpr Types kBf16 = {DType::kBFloat16, DType::kBFloat16};
constexpr Types kBf16SummedInFp32 = {DType::kBFloat16, DType::kFloat32};

class OptimizerOffload : public testing::TestWithParam<std::tuple<int, Types>> {
 protected:
  static TrainSettings Settings() {
    TrainSettings settings = SmallSettings();
    settings.devices = std::get<0>(GetParam());
    settings.dtype = std::get<1>(GetParam()).parameters;
    settings.grad_accum_dtype = std::get<1>(GetParam()).gradients;
    return settings;
  }
};

constexpr int64_t kBuckets[] = {int64_t{25} << 20, 1};  // the default; one parameter each

void ExpectWitness(const SmallRun& run, const SmallRun& reference, const TrainSettings& settings) {
  const int64_t n = settings.devices, m = settings.grad_accum;
  const int64_t padded = run.plan.parameters + run.plan.padding;
  const int64_t owned = settings.zero_stage == 0 || n == 1 ? padded : padded / n;
  const int64_t p = SizeOf(settings.dtype), g = SizeOf(settings.grad_accum_dtype);
  const bool shards_gradients = settings.zero_stage >= 2 && n > 1;
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(LiveBytes(run, rank, Category::kOptimizerStates), 0);
    EXPECT_EQ(LiveBytes(run, rank, Category::kGradients), shards_gradients ? 0 : g * padded);
    // In fp32 too the host keeps weights of its own.
    EXPECT_EQ(HostBytes(run, rank, Category::kOptimizerStates), 12 * owned);
    EXPECT_EQ(HostBytes(run, rank, Category::kGradients), g * owned);
    EXPECT_EQ(HostBytes(reference, rank, Category::kOptimizerStates), 0);
    const CopiedBytes more =
        run.result.ranks[rank].step_copies - reference.result.ranks[rank].step_copies;
    // Gradients, the squares by owner, and the step's state.
    EXPECT_EQ(more.to_host, (shards_gradients ? m : 1) * g * owned + 56);
    EXPECT_EQ(more.from_host, p * owned + 8 * n);
    EXPECT_EQ(run.result.ranks[rank].step_copies, run.plan.ranks[rank].step_copies);
    EXPECT_EQ(run.result.ranks[rank].host_memory.live, run.plan.ranks[rank].host_memory.live);
  }
}

TEST_P(OptimizerOffload, DoesNotChangeABit) {
  for (const int64_t m : {1, 3}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t bucket_bytes : kBuckets) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << ", m = " << m << ", bucket_bytes " << bucket_bytes);
        TrainSettings settings = Settings();
        settings.zero_stage = stage;
        settings.grad_accum = m;
        settings.bucket_bytes = bucket_bytes;
        settings.steps = 5;
        const SmallRun reference = RunSmall(settings);
        settings.offload_optimizer = true;
        const SmallRun run = RunSmall(settings);
        ASSERT_TRUE(run.result.status.ok()) << run.result.status;
        EXPECT_EQ(Bits(run.result), Bits(reference.result));
        EXPECT_TRUE(run.parameters == reference.parameters);  // too much to print
        ExpectWitness(run, reference, settings);
      }
    }
  }
}

// In the first step the moments are zeros, and parameters come up for the first time.
TEST_P(OptimizerOffload, SkipsAStepAsTheDeviceDoes) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t bucket_bytes : kBuckets) {
      for (const int64_t skipped : {1, 3}) {
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", bucket_bytes " << bucket_bytes
                                        << ", skipped step " << skipped);
        TrainSettings settings = Settings();
        settings.zero_stage = stage;
        settings.bucket_bytes = bucket_bytes;
        settings.steps = 4;
        const TrainHooks skip = {.loss_scale = [&](int rank, int64_t step) {
          return rank == settings.devices - 1 && step == skipped ? std::nan("") : 1.0;
        }};
        const SmallRun reference = RunSmall(settings, skip);
        settings.offload_optimizer = true;
        const SmallRun run = RunSmall(settings, skip);
        ASSERT_TRUE(run.result.status.ok()) << run.result.status;
        EXPECT_EQ(run.result.skipped, 1);
        for (const StepMetrics& step : run.result.step_metrics) {
          EXPECT_EQ(step.skipped, step.step == skipped);
          EXPECT_TRUE(std::isfinite(step.loss)) << step.step;
        }
        EXPECT_EQ(reference.result.skipped, 1);
        EXPECT_TRUE(run.parameters == reference.parameters);
        for (const auto& [name, values] : run.parameters) {
          for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
        }
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<std::tuple<int, Types>>& info) {
  const auto& [devices, types] = info.param;
  return std::to_string(devices) + "_" + std::string(Name(types.parameters)) + "_" +
         std::string(Name(types.gradients));
}

INSTANTIATE_TEST_SUITE_P(Fp32, OptimizerOffload,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(kFp32)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Mixed, OptimizerOffload,
                         testing::Combine(testing::Values(1, 3),
                                          testing::Values(kBf16, kBf16SummedInFp32)),
                         NameOf);

// All that persists on the host side was NaN at first, and all that a device allocates.
TEST(OptimizerOffload, ReadsNothingOfFreshMemory) {
  for (const Types& types : {kFp32, kBf16, kBf16SummedInFp32}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t bucket_bytes : kBuckets) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << ", " << Name(types.parameters) << ", gradients in "
                     << Name(types.gradients) << ", bucket_bytes " << bucket_bytes);
        TrainSettings settings = SmallSettings();
        settings.devices = 3;
        settings.model.n_layer = 3;
        settings.dtype = types.parameters;
        settings.grad_accum_dtype = types.gradients;
        settings.zero_stage = stage;
        settings.bucket_bytes = bucket_bytes;
        settings.grad_accum = 2;
        settings.steps = 2;
        settings.offload_optimizer = true;
        if (bucket_bytes == 1) {
          settings.activation_checkpointing = ActivationCheckpointing::kFull;
          settings.offload_activations = true;
        }
        const SmallRun reference = RunSmall(settings);
        const SmallRun run = RunSmall(settings, {.poison = true});
        ASSERT_TRUE(run.result.status.ok()) << run.result.status;
        EXPECT_EQ(Bits(run.result), Bits(reference.result));
        EXPECT_TRUE(run.parameters == reference.parameters);
        const PerCategory<int64_t> on_host = ExpectedBytes(settings).PersistentOnHost();
        for (int rank = 0; rank < settings.devices; ++rank) {
          EXPECT_EQ(run.result.ranks[rank].host_poisoned_bytes,
                    std::accumulate(on_host.begin(), on_host.end(), int64_t{0}));
          EXPECT_GE(run.result.ranks[rank].poisoned_bytes,
                    run.result.ranks[rank].memory.peak_bytes);
          EXPECT_EQ(reference.result.ranks[rank].host_poisoned_bytes, 0);
        }
      }
    }
  }
}

// The host side's kernels have a team of their own, as large as the device's.
TEST(OptimizerOffload, OnSeveralThreadsOfTheHostSideDoesNotChangeABit) {
  for (const Types& types : {kFp32, kBf16, kBf16SummedInFp32}) {
    for (const int stage : {0, 3}) {
      SCOPED_TRACE(testing::Message() << "stage " << stage << ", " << Name(types.parameters)
                                      << ", gradients in " << Name(types.gradients));
      TrainSettings settings = SmallSettings();
      settings.devices = 2;
      settings.dtype = types.parameters;
      settings.grad_accum_dtype = types.gradients;
      settings.zero_stage = stage;
      settings.grad_accum = 2;
      settings.steps = 3;
      settings.offload_optimizer = true;
      settings.threads = settings.devices;
      const SmallRun reference = RunSmall(settings);
      ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
      settings.threads = (stage == 0 ? 2 : 3) * settings.devices;
      const SmallRun run = RunSmall(settings);
      ASSERT_TRUE(run.result.status.ok()) << run.result.status;
      EXPECT_EQ(Bits(run.result), Bits(reference.result));
      EXPECT_TRUE(run.parameters == reference.parameters);
    }
  }
}

}  // namespace
}  // namespace zerobox
