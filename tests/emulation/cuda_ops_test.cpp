// SPDX-License-Identifier: Apache-2.0
//
// The ops of the CUDA device against the host's, which tests/ops_test.cpp compares with double: one
// layer of everything, forward and backward, under every order of the device's streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "ops/cuda/cuda.h"
#include "ops/device/host_device.h"
#include "tests/emulation/fake_cublaslt.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/ops_network.h"

namespace zerobox {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr NetworkShape kShape = {.sequence = {.batch = 2, .positions = 7, .channels = 24},
                                 .heads = 3,
                                 .wide = 40,
                                 .vocabulary = 19};
constexpr RegionBytes kRegions = {256 << 10, 0, 0, 0};

class CudaOpsTest : public testing::TestWithParam<std::tuple<fake_cuda::Policy, NetworkTypes>> {};
INSTANTIATE_TEST_SUITE_P(, CudaOpsTest,
                         testing::Combine(testing::ValuesIn(fake_cuda::kPolicies),
                                          testing::ValuesIn(kNetworkTypes)),
                         [](const testing::TestParamInfo<CudaOpsTest::ParamType>& info) {
                           std::string name = fake_cuda::Name(std::get<0>(info.param));
                           std::erase(name, ' ');
                           return name + "_" + NameOf(std::get<1>(info.param));
                         });

TEST_P(CudaOpsTest, AgreeWithTheHosts) {
  const auto& [policy, types] = GetParam();
  Abort host_abort;
  auto host = HostDevice::Make({.regions = kRegions}, host_abort);
  ASSERT_TRUE(host.ok()) << host.status();
  OpsNetwork on_host(**host, kShape, types);
  on_host.Run();
  const auto expected = on_host.Read();
  ASSERT_TRUE(expected.ok()) << expected.status();

  fake_cuda::Reset({.policy = policy});
  Abort abort;
  auto device = MakeCudaDevice({.regions = kRegions, .workspace_bytes = 1 << 20}, abort);
  ASSERT_TRUE(device.ok()) << device.status();
  OpsNetwork on_gpu(**device, kShape, types);
  on_gpu.Run();
  EXPECT_EQ(fake_cuda::OperationsRun(), 0);
  const auto actual = on_gpu.Read();
  ASSERT_TRUE(actual.ok()) << actual.status();

  EXPECT_GE(expected->size(), 40u);
  const NetworkDifference difference = Difference(*actual, *expected);
  EXPECT_TRUE(difference.value <= NetworkTolerance(types.t)) << difference.where;
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(CudaOps, AFailedLaunchIsTheDevicesFailureAndNamesTheOp) {
  std::map<std::string, int> calls;
  for (int nth = 0; nth <= calls["cudaLaunchKernelExC"]; ++nth) {
    fake_cuda::Reset({});
    if (nth > 0) fake_cuda::FailCall("cudaLaunchKernelExC", nth);
    Abort abort;
    auto device = MakeCudaDevice({.regions = kRegions, .workspace_bytes = 1 << 20}, abort);
    ASSERT_TRUE(device.ok()) << device.status();
    OpsNetwork network(**device, kShape, {DType::kFloat32, DType::kFloat32});
    network.Run();
    (*device)->StopStreams();
    if (nth == 0) {
      EXPECT_TRUE((*device)->status().ok()) << (*device)->status();
      calls = fake_cuda::Calls();
      EXPECT_GE(calls["cudaLaunchKernelExC"], 20);
    } else {
      EXPECT_THAT(std::string((*device)->status().message()), HasSubstr("cudaLaunchKernelExC: "));
      EXPECT_THAT(std::string((*device)->status().message()), HasSubstr(" on stream compute"));
    }
  }
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(CudaOps, MultiplyInTf32OnlyWhenAsked) {
  for (const bool tf32 : {false, true}) {
    fake_cuda::Reset({});
    Abort abort;
    auto device = MakeCudaDevice({.regions = kRegions, .tf32 = tf32}, abort);
    ASSERT_TRUE(device.ok()) << device.status();
    (void)fake_cublaslt::TakeCounts();
    OpsNetwork network(**device, kShape, {DType::kFloat32, DType::kFloat32});
    network.Run();
    ASSERT_TRUE(network.Read().ok()) << (*device)->status();
    const fake_cublaslt::Counts counts = fake_cublaslt::TakeCounts();
    EXPECT_GE(counts.products, 10);
    EXPECT_EQ(counts.tf32_products, tf32 ? counts.products : 0);
  }
}

TEST(CudaOps, HaveTheWorkspaceThatTheMicroBatchWants) {
  fake_cuda::Reset({});
  Abort abort;
  auto device = MakeCudaDevice(
      {.regions = kRegions,
       .workspace_bytes = 1000,
       .sizes = {.shape = kShape.sequence, .heads = kShape.heads, .vocabulary = kShape.vocabulary}},
      abort);
  ASSERT_TRUE(device.ok()) << device.status();
  OpsNetwork network(**device, kShape, {DType::kFloat32, DType::kFloat32});
  network.Run();
  EXPECT_TRUE(network.Read().ok()) << (*device)->status();
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(CudaOps, AWorkspaceThatIsTooSmallIsTheDevicesFailure) {
  fake_cuda::Reset({});
  Abort abort;
  auto device = MakeCudaDevice({.regions = kRegions, .workspace_bytes = 256}, abort);
  ASSERT_TRUE(device.ok()) << device.status();
  OpsNetwork network(**device, kShape, {DType::kFloat32, DType::kFloat32});
  network.Run();
  (*device)->StopStreams();  // before its host memory goes
  EXPECT_EQ((*device)->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string((*device)->status().message()), HasSubstr("wanted a workspace of "));
}

}  // namespace
}  // namespace zerobox
