// SPDX-License-Identifier: Apache-2.0
//
// Whole training runs of several ranks on one GPU, against the same runs on as many host devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda_runs.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/emulation/train_runs.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using fake_cuda::Policy;
using testing::IsEmpty;

struct VirtualKind {
  CudaRunKind run;
  int devices = 2;
};
std::string NameOf(const VirtualKind& kind) {
  return absl::StrCat(NameOf(kind.run), "_", kind.devices, "_ranks");
}

std::vector<VirtualKind> VirtualKinds() {
  std::vector<VirtualKind> kinds;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      static constexpr const char* kNames[] = {"stage0", "stage1", "stage2", "stage3"};
      kinds.push_back({{.name = kNames[stage], .dtype = dtype, .stage = stage}});
    }
  }
  return kinds;
}

TrainSettings SettingsOf(const VirtualKind& kind, const char* device) {
  TrainSettings settings = SettingsOf(kind.run, device);
  settings.devices = kind.devices;
  settings.virtual_devices = true;
  settings.bucket_bytes = 16 << 10;  // a few a unit
  return settings;
}

SmallRun OnHost(const VirtualKind& kind, const TrainHooks& hooks = {}) {
  return RunSmall(SettingsOf(kind, "host"), hooks);
}
SmallRun OnGpu(const VirtualKind& kind, Policy policy, TrainHooks hooks = {}) {
  fake_cuda::Reset({.policy = policy, .workers = kind.devices});
  hooks.waits = &fake_cuda::Waits();
  return RunSmall(SettingsOf(kind, "cuda"), hooks);
}

class VirtualTrain : public testing::TestWithParam<VirtualKind> {};
INSTANTIATE_TEST_SUITE_P(, VirtualTrain, testing::ValuesIn(VirtualKinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(VirtualTrain, GivesTheLossesMemoryAndTrafficOfHostDevicesUnderEveryOrderOfTheStreams) {
  const VirtualKind kind = GetParam();
  const SmallRun host = OnHost(kind);
  ASSERT_TRUE(host.result.status.ok()) << host.result.status;
  EXPECT_EQ(host.result.ranks[0].step_traffic.scalars.bytes_sent > 0, kind.run.stage > 0);
  for (const Policy policy : fake_cuda::kPolicies) {
    SCOPED_TRACE(fake_cuda::Name(policy));
    const SmallRun gpu = OnGpu(kind, policy);
    ASSERT_TRUE(gpu.result.status.ok()) << gpu.result.status;
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
    ASSERT_EQ(gpu.result.step_metrics.size(), 10u);
    ASSERT_EQ(gpu.result.eval_metrics.size(), 2u);
    ExpectSameLosses(gpu, host, kind.run.dtype);
    ExpectSameTables(gpu, host);
    for (const StepMetrics& step : gpu.result.step_metrics) {
      EXPECT_TRUE(step.exposed_seconds > 0) << step.exposed_seconds;
    }
    std::map<std::string, int> calls = fake_cuda::Calls();
    EXPECT_EQ(calls["cudaMalloc"], kind.devices);
    EXPECT_EQ(calls["cudaStreamSynchronize"], 0);
  }
}

}  // namespace
}  // namespace zerobox
