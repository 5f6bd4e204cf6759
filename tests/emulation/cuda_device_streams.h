// SPDX-License-Identifier: Apache-2.0
//
// A CUDA device of the fake runtime, under every order of its streams.
#ifndef ZEROBOX_TESTS_EMULATION_CUDA_DEVICE_STREAMS_H_
#define ZEROBOX_TESTS_EMULATION_CUDA_DEVICE_STREAMS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/cuda_device.h"
#include "ops/cuda/status.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox {

using cuda::CudaDevice;
using fake_cuda::Access;
using fake_cuda::Policy;

inline constexpr auto kCompute = StreamId::kCompute;
inline constexpr auto kCommunication = StreamId::kCommunication;
inline constexpr auto kToHost = StreamId::kToHost;
inline constexpr auto kFromHost = StreamId::kFromHost;
inline constexpr StreamId kAllStreams[] = {kCompute, kCommunication, kToHost, kFromHost};

inline CudaDeviceOptions Options() {
  CudaDeviceOptions options;
  options.regions = {4096, 0, 0, 8 << 20};
  options.host_regions = {8 << 20, 0, 0, 0};
  options.threads = 2;
  options.workspace_bytes = 1024;
  return options;
}

inline std::unique_ptr<CudaDevice> MakeDevice(Abort& abort,
                                              const CudaDeviceOptions& options = Options()) {
  auto device = CudaDevice::Make(options, abort);
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

inline Buffer Floats(Device& device, int64_t elements) {
  return device.Allocate(Region::kTransient, Category::kWorkspace, DType::kFloat32, elements,
                         "test");
}

// Puts `work` into a stream, as a kernel that touches `accesses`.
inline void Launch(CudaDevice& device, StreamId stream, std::function<void()> work,
                   std::vector<Access> accesses = {}) {
  device.Enqueue(stream, "kernel", [&](cudaStream_t handle) {
    return cuda::ToStatus(fake_cuda::Enqueue(handle, "kernel", accesses, work), "launch");
  });
}
inline Access Read(const Buffer& b) { return {b.data, static_cast<size_t>(b.bytes()), false}; }
inline Access Write(const Buffer& b) { return {b.data, static_cast<size_t>(b.bytes()), true}; }

inline absl::Status WaitForAll(Device& device) {
  for (const StreamId stream : kAllStreams) {
    const std::unique_ptr<Event> end = device.MakeEvent("end");
    device.Record(*end, stream);
    if (absl::Status status = device.HostWait(*end); !status.ok()) return status;
  }
  return absl::OkStatus();
}

class CudaDeviceTest : public testing::TestWithParam<Policy> {
 protected:
  void SetUp() override { Reset(); }
  void TearDown() override { EXPECT_THAT(fake_cuda::TakeReports(), testing::IsEmpty()); }
  void Reset() const { fake_cuda::Reset({.policy = GetParam(), .seed = 3}); }
};

INSTANTIATE_TEST_SUITE_P(, CudaDeviceTest, testing::ValuesIn(fake_cuda::kPolicies),
                         [](const testing::TestParamInfo<Policy>& policy) {
                           std::string name = fake_cuda::Name(policy.param);
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_EMULATION_CUDA_DEVICE_STREAMS_H_
