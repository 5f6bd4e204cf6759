// SPDX-License-Identifier: Apache-2.0
//
// The host side of a device: memory outside its capacity, and kernels that the host runs there.
#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <memory>
#include <string>

#include "ops/device/host_device.h"
#include "ops/device/plan_device.h"
#include "ops/ops.h"

namespace zerobox {
namespace {

std::unique_ptr<HostDevice> MakeDevice(Abort& abort, bool poison = false) {
  auto device = HostDevice::Make(
      {.regions = {1024}, .host_regions = {1 << 20}, .threads = 2, .poison = poison}, abort);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

int64_t Live(const MemoryPool& pool, Category category) {
  return pool.ledger().live[static_cast<size_t>(category)];
}

TEST(HostSide, HasMemoryOutsideTheDevicesCapacity) {
  Abort abort;
  auto device = MakeDevice(abort);
  const Buffer states =
      device->AllocateOnHost(Category::kOptimizerStates, DType::kFloat32, 100'000, "AdamW m");
  EXPECT_TRUE(device->status().ok()) << device->status();
  EXPECT_EQ(states.elements, 100'000);
  EXPECT_EQ(Live(device->host_memory(), Category::kOptimizerStates), 400'000);
  EXPECT_EQ(device->host_memory().ledger().live_bytes, 400'000);
  EXPECT_EQ(device->memory().ledger().live_bytes, 0);
}

TEST(HostSide, ThatIsFullFailsTheDevice) {
  Abort abort;
  auto device = MakeDevice(abort);
  device->AllocateOnHost(Category::kOptimizerStates, DType::kFloat32, 300'000, "AdamW m");
  EXPECT_EQ(device->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(device->status().message().find("\"AdamW m\" (optimizer_states)"), std::string::npos)
      << device->status();
}

TEST(HostSide, IsPoisonedToo) {
  Abort abort;
  auto device = MakeDevice(abort, /*poison=*/true);
  const Buffer fresh = device->AllocateOnHost(Category::kGradients, DType::kFloat32, 8, "fresh");
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(fresh.As<float>()[i]));
}

TEST(HostSide, RunsItsKernelsInOrderWithTheCopiesThatBringTheirOperands) {
  Abort abort;
  auto device = MakeDevice(abort);
  const Buffer gradient =
      device->Allocate(Region::kPersistent, Category::kGradients, DType::kFloat32, 256, "gradient");
  const Buffer landed =
      device->AllocateOnHost(Category::kCommunicationBuffers, DType::kFloat32, 256, "landed");
  const Buffer sum = device->AllocateOnHost(Category::kGradients, DType::kFloat32, 256, "sum");
  const std::unique_ptr<Event> done = device->MakeEvent("done");
  std::latch gate(1);
  device->ops().Fill(gradient, 2);  // compute runs inline
  device->Enqueue(StreamId::kToHost, "gate", [&gate] {
    gate.wait();
    return absl::OkStatus();
  });
  device->host_ops().Fill(sum, 1);
  device->CopyToHost(StreamId::kToHost, landed.data, gradient);
  device->host_ops().Add(sum, landed);
  device->CopyToHost(StreamId::kToHost, landed.data, gradient);
  device->host_ops().Add(sum, landed);
  device->Record(*done, StreamId::kToHost);
  EXPECT_EQ(sum.As<float>()[255], 0) << "a kernel ran before its turn";
  gate.count_down();
  ASSERT_TRUE(device->HostWait(*done).ok());
  EXPECT_EQ(sum.As<float>()[255], 5);
  EXPECT_EQ(device->copied().to_host, 2 * 4 * 256);
}

TEST(HostSide, OfAPlanOnlyCounts) {
  PlanDevice device;
  device.AllocateOnHost(Category::kOptimizerStates, DType::kFloat32, int64_t{1} << 40, "AdamW m");
  EXPECT_TRUE(device.status().ok()) << device.status();
  EXPECT_EQ(Live(device.host_memory(), Category::kOptimizerStates), int64_t{4} << 40);
  EXPECT_EQ(device.memory().ledger().live_bytes, 0);
}

}  // namespace
}  // namespace zerobox
