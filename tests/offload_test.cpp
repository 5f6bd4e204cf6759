// SPDX-License-Identifier: Apache-2.0
//
// The optimizer on the host side: the same bits as on the device, and every byte where it should
// be.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/small_run.h"

namespace zerobox {
namespace {

std::vector<uint64_t> Bits(const RunResult& result) {
  std::vector<uint64_t> bits;
  for (const StepMetrics& step : result.step_metrics) {
    bits.push_back(std::bit_cast<uint64_t>(step.loss));
    bits.push_back(std::bit_cast<uint64_t>(step.grad_norm));
    bits.push_back(std::bit_cast<uint64_t>(step.clip));
  }
  return bits;
}

int64_t HostBytes(const SmallRun& run, int rank, Category category) {
  return run.result.ranks[rank].host_memory.live[static_cast<size_t>(category)];
}

class OptimizerOffload : public testing::TestWithParam<int> {};  // devices

TEST_P(OptimizerOffload, DoesNotChangeABit) {
  const int n = GetParam();
  for (const int64_t m : {1, 3}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t bucket_bytes : {int64_t{25} << 20, int64_t{1}}) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << ", m = " << m << ", bucket_bytes " << bucket_bytes);
        TrainSettings settings = SmallSettings();
        settings.devices = n;
        settings.zero_stage = stage;
        settings.grad_accum = m;
        settings.bucket_bytes = bucket_bytes;
        settings.steps = 10;
        const SmallRun reference = RunSmall(settings);
        settings.offload_optimizer = true;
        const SmallRun run = RunSmall(settings);
        ASSERT_TRUE(run.result.status.ok()) << run.result.status;
        EXPECT_EQ(Bits(run.result), Bits(reference.result));
        EXPECT_EQ(run.parameters, reference.parameters);

        const int64_t padded = run.plan.parameters + run.plan.padding;
        const int64_t owned = stage == 0 || n == 1 ? padded : padded / n;
        const bool shards_gradients = stage >= 2 && n > 1;
        for (int rank = 0; rank < n; ++rank) {
          EXPECT_EQ(LiveBytes(run, rank, Category::kOptimizerStates), 0);
          EXPECT_EQ(LiveBytes(run, rank, Category::kGradients), shards_gradients ? 0 : 4 * padded);
          // In fp32 too the host keeps weights of its own.
          EXPECT_EQ(HostBytes(run, rank, Category::kOptimizerStates), 12 * owned);
          EXPECT_EQ(HostBytes(run, rank, Category::kGradients), 4 * owned);
          EXPECT_EQ(HostBytes(reference, rank, Category::kOptimizerStates), 0);
          const CopiedBytes more =
              run.result.ranks[rank].step_copies - reference.result.ranks[rank].step_copies;
          // Gradients, the squares by owner, and the step's state.
          EXPECT_EQ(more.to_host, (shards_gradients ? m : 1) * 4 * owned + 56);
          EXPECT_EQ(more.from_host, 4 * owned + 8 * n);
          EXPECT_EQ(run.result.ranks[rank].step_copies, run.plan.ranks[rank].step_copies);
          EXPECT_EQ(run.result.ranks[rank].host_memory.live, run.plan.ranks[rank].host_memory.live);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, OptimizerOffload, testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(OptimizerOffload, SkipsAStepAsTheDeviceDoes) {
  for (int stage = 0; stage <= 3; ++stage) {
    TrainSettings settings = SmallSettings();
    settings.zero_stage = stage;
    settings.steps = 6;
    const TrainHooks skip = {.loss_scale = [](int rank, int64_t step) {
      return rank == 1 && step == 3 ? std::nan("") : 1.0;
    }};
    const SmallRun reference = RunSmall(settings, skip);
    settings.offload_optimizer = true;
    const SmallRun run = RunSmall(settings, skip);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    EXPECT_EQ(run.result.skipped, 1);
    EXPECT_EQ(run.parameters, reference.parameters);
    for (const auto& [name, values] : run.parameters) {
      for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
}

}  // namespace
}  // namespace zerobox
