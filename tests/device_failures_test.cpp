// SPDX-License-Identifier: Apache-2.0
//
// A host device whose work fails, whose run is aborted, or which ends: nothing hangs, and the first
// error stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ops/device/host_device.h"
#include "ops/ops.h"
#include "tests/device_streams.h"

namespace zerobox {
namespace {

TEST(HostDevice, SkipsEveryStreamsWorkAfterAFailure) {
  for (const StreamId failing : kAllStreams) {
    Abort abort;
    HostDeviceOptions options;
    options.rank = 2;
    auto device = MakeDevice(abort, options);
    Log log;
    device->Enqueue(failing, "fail", [] { return absl::DataLossError("broken"); });
    const auto event = device->MakeEvent("behind");
    device->Record(*event, failing);
    const absl::Status status = device->HostWait(*event);
    EXPECT_EQ(status, absl::DataLossError("rank 2: broken"));
    for (const StreamId stream : kAllStreams) {
      device->Enqueue(stream, "after", log.Note("after"));
      device->Wait(stream, *event);
      device->Record(*event, stream);
    }
    EXPECT_FALSE(WaitForAll(*device).ok());
    EXPECT_EQ(device->status(), status);
    EXPECT_EQ(abort.status(), status);
    device.reset();
    EXPECT_TRUE(log.lines().empty());
  }
}

TEST(HostDevice, KeepsItsFirstFailureAndTheRunKeepsTheFirstOfAll) {
  Abort abort;
  HostDeviceOptions options;
  auto zero = MakeDevice(abort, options);
  options.rank = 1;
  auto one = MakeDevice(abort, options);
  one->Fail(absl::InternalError("one broke"));
  zero->Fail(abort.status());  // passed on: it stays rank 1's
  EXPECT_EQ(zero->status(), absl::InternalError("rank 1: one broke"));
  one->Fail(absl::InternalError("again"));
  EXPECT_EQ(one->status(), absl::InternalError("rank 1: one broke"));
  auto two = MakeDevice(abort, options);
  EXPECT_EQ(two->status(), absl::InternalError("rank 1: one broke"));
}

TEST(HostDevice, TurnsExceptionsIntoAStatus) {
  for (const StreamId stream : kAllStreams) {
    Abort abort;
    auto device = MakeDevice(abort);
    device->Enqueue(stream, "throw", []() -> absl::Status { throw std::bad_alloc(); });
    EXPECT_EQ(WaitForAll(*device).code(), absl::StatusCode::kResourceExhausted);
  }
  Abort abort;
  auto device = MakeDevice(abort);
  device->Enqueue(kToHost, "throw", []() -> absl::Status { throw std::runtime_error("odd"); });
  const absl::Status status = WaitForAll(*device);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(status.message()).find("odd"), std::string::npos);
}

// Records the event in communication, behind work that waits for the gate.
void RecordBehind(std::latch& gate, HostDevice& device, Event& event) {
  device.Enqueue(kCommunication, "gate", [&gate] {
    gate.wait();
    return absl::OkStatus();
  });
  device.Record(event, kCommunication);
}

TEST(HostDevice, AnAbortWakesAStreamThatWaits) {
  for (const StreamId waiter : {kToHost, kFromHost}) {
    Abort abort;
    auto device = MakeDevice(abort);
    const auto event = device->MakeEvent("never happens");
    std::latch gate(1);
    RecordBehind(gate, *device, *event);
    device->Wait(waiter, *event);
    Log log;
    device->Enqueue(waiter, "after", log.Note("after"));
    AwaitArrival(*device, waiter, "never happens");
    abort.Fail(absl::InternalError("rank 5: broken"));
    EXPECT_EQ(device->HostWait(*event), absl::InternalError("rank 5: broken"));
    EXPECT_EQ(device->WaitingFor(waiter), "never happens");
    gate.count_down();
    device.reset();
    EXPECT_TRUE(log.lines().empty());
  }
}

TEST(HostDevice, AnAbortWakesTheWorker) {
  for (const bool host_wait : {false, true}) {
    Abort abort;
    auto device = MakeDevice(abort);
    const auto event = device->MakeEvent("never happens");
    std::latch gate(1);
    RecordBehind(gate, *device, *event);
    std::thread failing([&] {
      AwaitArrival(*device, kCompute, "never happens");
      abort.Fail(absl::InternalError("rank 5: broken"));
    });
    if (host_wait) {
      EXPECT_EQ(device->HostWait(*event), absl::InternalError("rank 5: broken"));
    } else {
      device->Wait(kCompute, *event);
    }
    failing.join();
    EXPECT_EQ(device->WaitingFor(kCompute), "never happens");
    EXPECT_EQ(device->status(), absl::InternalError("rank 5: broken"));
    gate.count_down();
  }
}

TEST(HostDevice, FinishesItsStreamsBeforeItIsDestroyed) {
  Abort abort;
  Log log;
  auto device = MakeDevice(abort);
  for (const StreamId stream : kThreads) {
    for (int i = 0; i < 100; ++i) device->Enqueue(stream, "note", log.Note("x"));
  }
  device.reset();
  EXPECT_EQ(log.lines().size(), 300u);
}

TEST(HostDevice, AFullRegionBecomesItsFailureAndNothingFollowsTheBuffer) {
  Abort abort;
  HostDeviceOptions options;
  options.rank = 3;
  auto device = MakeDevice(abort, options);
  const Buffer big = Floats(*device, 1025);
  EXPECT_EQ(big.data, nullptr);
  EXPECT_EQ(big.elements, 1025);
  device->Zero(kCompute, big);
  device->Zero(kToHost, big.Slice(1000, 25));
  device->Free(big);
  EXPECT_EQ(device->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(device->status().message()).substr(0, 8), "rank 3: ");
}

TEST(HostDevice, RefusesMoreMemoryThanTheMachineHas) {
  Abort abort;
  HostDeviceOptions options;
  options.regions = {int64_t{1} << 50, 0, 0, 0};
  const absl::Status status = HostDevice::Make(options, abort).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("wanted 1125899906842624 bytes, available "),
            std::string::npos)
      << status;
  EXPECT_FALSE(abort.failed());
}

TEST(HostDevice, ParallelForTurnsAnExceptionIntoTheDevicesFailure) {
  for (const int64_t bad : {0, 3}) {  // on the caller, on a helper
    Abort abort;
    HostDeviceOptions options;
    options.threads = 2;
    auto device = MakeDevice(abort, options);
    device->ParallelFor(StreamId::kCompute, 4, [&](int64_t i) {
      if (i == bad) throw std::bad_alloc();
    });
    EXPECT_EQ(device->status().code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace zerobox
