// SPDX-License-Identifier: Apache-2.0
//
// A CUDA device whose work or GPU fails, whose run is aborted, or of which too much is wanted:
// nothing hangs, and the first error stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ops/ops.h"
#include "tests/emulation/cuda_device_streams.h"

namespace zerobox {
namespace {
using testing::HasSubstr;
using testing::IsEmpty;

TEST_P(CudaDeviceTest, SkipsEveryStreamsWorkAfterAFailure) {
  for (const StreamId failing : kAllStreams) {
    Reset();
    Abort abort;
    CudaDeviceOptions options = Options();
    options.rank = 2;
    auto device = MakeDevice(abort, options);
    int ran = 0;
    device->EnqueueOnHost(failing, "fail", [] { return absl::DataLossError("broken"); });
    device->EnqueueOnHost(failing, "behind", [&] {
      ++ran;
      return absl::OkStatus();
    });
    const auto event = device->MakeEvent("behind");
    device->Record(*event, failing);
    const absl::Status status = device->HostWait(*event);
    EXPECT_EQ(status, absl::DataLossError("rank 2: broken"));
    for (const StreamId stream : kAllStreams) {
      Launch(*device, stream, [&] { ++ran; });
      device->Wait(stream, *event);
      device->Record(*event, stream);
    }
    EXPECT_FALSE(WaitForAll(*device).ok());
    EXPECT_EQ(device->status(), status);
    EXPECT_EQ(abort.status(), status);
    device.reset();
    EXPECT_EQ(ran, 0);
  }
}

// Else kernels that were enqueued behind it would read what was there before.
TEST_P(CudaDeviceTest, ACopyThatWasEnqueuedBeforeAFailureIsWhole) {
  for (const StreamId stream : kAllStreams) {
    Reset();
    Abort abort;
    auto device = MakeDevice(abort);
    const Buffer buffer = Floats(*device, 3);
    const std::vector<float> in = {1, 2, 3};
    device->CopyFromHost(stream, buffer, in.data());
    device->Fail(absl::InternalError("broken"));
    device->StopStreams();
    EXPECT_EQ(std::vector<float>(buffer.As<float>(), buffer.As<float>() + 3), in);
  }
}

TEST_P(CudaDeviceTest, KeepsItsFirstFailureAndTheRunKeepsTheFirstOfAll) {
  fake_cuda::Reset({.devices = 2, .policy = GetParam()});
  Abort abort;
  CudaDeviceOptions options = Options();
  auto zero = MakeDevice(abort, options);
  options.rank = 1;
  options.gpu = 1;
  auto one = MakeDevice(abort, options);
  one->Fail(absl::InternalError("one broke"));
  zero->Fail(abort.status());  // passed on: it stays rank 1's
  EXPECT_EQ(zero->status(), absl::InternalError("rank 1: one broke"));
  one->Fail(absl::InternalError("again"));
  EXPECT_EQ(one->status(), absl::InternalError("rank 1: one broke"));
}

TEST_P(CudaDeviceTest, TurnsExceptionsOfHostFunctionsIntoAStatus) {
  for (const StreamId stream : kAllStreams) {
    Reset();
    Abort abort;
    auto device = MakeDevice(abort);
    device->EnqueueOnHost(stream, "throw", []() -> absl::Status { throw std::bad_alloc(); });
    EXPECT_EQ(WaitForAll(*device).code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST_P(CudaDeviceTest, AnAbortWakesTheWorker) {
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("never happens");
  fake_cuda::Hold(true);
  Launch(*device, kCommunication, [] {});
  device->Record(*event, kCommunication);
  std::thread failing([&] {
    while (device->WaitingFor(kCompute) != "never happens") std::this_thread::yield();
    abort.Fail(absl::InternalError("rank 5: broken"));
  });
  EXPECT_EQ(device->HostWait(*event), absl::InternalError("rank 5: broken"));
  failing.join();
  EXPECT_EQ(device->WaitingFor(kCompute), "never happens");
  fake_cuda::Hold(false);
}

TEST_P(CudaDeviceTest, FinishesItsStreamsBeforeItIsDestroyedAndGivesEverythingBack) {
  Abort abort;
  int ran = 0;
  auto device = MakeDevice(abort);
  for (const StreamId stream : kAllStreams) {
    for (int i = 0; i < 10; ++i) {
      device->EnqueueOnHost(stream, "note", [&] {
        ++ran;
        return absl::OkStatus();
      });
    }
  }
  device.reset();
  EXPECT_EQ(ran, 40);
  const fake_cuda::Live live = fake_cuda::LiveNow();
  EXPECT_EQ(live.device_allocations, 0);
  EXPECT_EQ(live.pinned_allocations, 0);
  EXPECT_EQ(live.streams, 0);
  EXPECT_EQ(live.events, 0);
}

TEST_P(CudaDeviceTest, LeavesItsThreadNoErrorWhenItHasWaitedForItsStreams) {
  Abort abort;
  auto device = MakeDevice(abort);
  fake_cuda::Hold(true);
  Launch(*device, kToHost, [] {});
  std::thread later([] {
    while (fake_cuda::Calls()["cudaStreamQuery"] < 5) std::this_thread::yield();
    fake_cuda::Hold(false);
  });
  device.reset();
  later.join();
  // The next device of the thread would take it for one of its own.
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_P(CudaDeviceTest, AFullRegionBecomesItsFailureAndNothingFollowsTheBuffer) {
  Abort abort;
  CudaDeviceOptions options = Options();
  options.rank = 3;
  auto device = MakeDevice(abort, options);
  const Buffer big = Floats(*device, 3 << 20);
  EXPECT_EQ(big.data, nullptr);
  device->Zero(kCompute, big);
  device->Free(big);
  EXPECT_EQ(device->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(device->status().message()), testing::StartsWith("rank 3: "));
}

TEST_P(CudaDeviceTest, RefusesMoreMemoryThanTheGpuHas) {
  Abort abort;
  CudaDeviceOptions options = Options();
  options.regions = {int64_t{1} << 40, 0, 0, 0};
  const absl::Status status = CudaDevice::Make(options, abort).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("wanted 1099511628800 bytes, free are 1073741824 of 1073741824"));
  EXPECT_FALSE(abort.failed());
  EXPECT_EQ(fake_cuda::LiveNow().device_allocations, 0);
}

// One of everything, twice. The first error, of set-up or later.
absl::Status UseEverything() {
  Abort abort;
  auto made = MakeCudaDevice(Options(), abort);
  if (!made.ok()) return made.status();
  const std::unique_ptr<Device> device = *std::move(made);
  const Buffer buffer = Floats(*device, 100);
  const Buffer side = device->AllocateOnHost(Category::kWorkspace, DType::kFloat32, 100, "side");
  std::vector<float> values(100);
  for (int i = 0; i < 2; ++i) {
    const auto uploaded = device->MakeEvent("uploaded");
    const auto done = device->MakeEvent("done");
    device->CopyFromHost(kFromHost, buffer, values.data());
    device->Record(*uploaded, kFromHost);
    device->Wait(kCompute, *uploaded);
    device->Zero(kCompute, buffer.Slice(0, 50));
    device->Record(*uploaded, kCompute);
    device->Wait(kToHost, *uploaded);
    device->CopyToHost(kToHost, side.data, buffer);
    device->host_ops().Fill(side, 1);
    device->CopyToHost(kToHost, values.data(), buffer);
    device->Record(*done, kToHost);
    const absl::Status status = device->HostWait(*done);
    EXPECT_EQ(status, device->status());
    device->Wait(kFromHost, *done);
    device->Record(*done, kCommunication);
    device->Wait(kCompute, *done);
    device->Record(*done, kCompute);
    (void)device->HostWait(*done);
    (void)device->SecondsExposed(i + 1);
  }
  device->StopStreams();
  return device->status();
}

TEST_P(CudaDeviceTest, AnErrorOfAnyCallIsReturnedWithItsNameAndNothingHangs) {
  ASSERT_TRUE(UseEverything().ok());
  const std::map<std::string, int> calls = fake_cuda::Calls();
  EXPECT_GE(calls.size(), 18u);
  for (const auto& [function, times] : calls) {
    const bool clean_up = function == "cudaFree" || function == "cudaFreeHost" ||
                          function == "cudaStreamDestroy" || function == "cudaEventDestroy" ||
                          function == "cudaStreamQuery" || function == "cudaGetDevice";
    for (int nth = 1; nth <= times; ++nth) {
      Reset();
      fake_cuda::FailCall(function, nth, cudaErrorLaunchTimeout);
      const absl::Status status = UseEverything();
      EXPECT_EQ(status.ok(), clean_up) << function << " " << nth;
      if (!clean_up) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(function + ": "));
        const bool of_cublaslt = function.starts_with("cublasLt");
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(of_cublaslt ? "CUBLAS_STATUS_" : "cudaErrorLaunchTimeout"));
        EXPECT_EQ(fake_cuda::LiveNow().device_allocations, 0) << function;
        EXPECT_EQ(fake_cuda::LiveNow().pinned_allocations, 0) << function;
      }
      EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()) << function << " " << nth;
    }
  }
}

TEST_P(CudaDeviceTest, AGpuThatBreaksIsAnErrorAndNothingHangs) {
  ASSERT_TRUE(UseEverything().ok());
  const auto operations = static_cast<int>(fake_cuda::OperationsRun());
  ASSERT_EQ(operations, 14);
  for (int nth = 1; nth <= operations; ++nth) {
    Reset();
    fake_cuda::FailWork(nth);
    const absl::Status status = UseEverything();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << nth;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cudaErrorIllegalAddress"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: "));
  }
}

TEST(CudaDevices, AreCountedWithTheReasonWhereThereAreNone) {
  fake_cuda::Reset({.devices = 3});
  EXPECT_EQ(CountGpus().value(), 3);
  EXPECT_STREQ(getenv("CUDA_MODULE_LOADING"), "EAGER");
  const std::pair<cudaError_t, const char*> reasons[] = {
      {cudaErrorInsufficientDriver, "no NVIDIA driver, or one older than"},
      {cudaErrorNoDevice, "cudaGetDeviceCount: "}};
  for (const auto& [error, reason] : reasons) {
    fake_cuda::FailCall("cudaGetDeviceCount", 1, error);
    const absl::Status status = CountGpus().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
    // Programs with other flags show it too.
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("--")));
  }
}

}  // namespace
}  // namespace zerobox
