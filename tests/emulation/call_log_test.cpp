// SPDX-License-Identifier: Apache-2.0
//
// The call that a GPU's communication stream is in, as its worker sees it while it waits.
#include "ops/cuda/call_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/status.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox {
namespace {

using cuda::CallLog;
using cuda::CudaDevice;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kCommunication = StreamId::kCommunication;

class CallLogTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset({.policy = fake_cuda::Policy::kComputeFirst});
    // The device itself makes no event.
    auto made = CudaDevice::Make(
        {.regions = {4096, 0, 0, 4096}, .workspace_bytes = 1024, .ops_ahead = 1 << 30}, abort_);
    ASSERT_TRUE(made.ok()) << made.status();
    device_ = *std::move(made);
    log_ = std::make_unique<CallLog>(*device_);
  }
  void TearDown() override { EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()); }

  // A call that does `work`.
  void Call(int64_t number, const std::function<void()>& work, bool ends = true) {
    device_->Enqueue(kCommunication, "call", [&](cudaStream_t stream) {
      absl::Status status = log_->Begin(
          {.rank = 0, .number = number, .collective = Collective::kAllGather, .label = kLabel},
          stream);
      if (status.ok()) {
        status = cuda::ToStatus(fake_cuda::Enqueue(stream, "call", {}, work), "launch");
      }
      return status.ok() && ends ? log_->End(stream) : status;
    });
  }
  // Until the stream has done what it has.
  void Finish() {
    const auto end = device_->MakeEvent("end");
    device_->Record(*end, kCommunication);
    EXPECT_TRUE(device_->HostWait(*end).ok());
  }
  // In the place of what the device calls while it waits.
  std::string Look() {
    log_->Look();
    return device_->WaitingFor(kCommunication);
  }

  static constexpr CallLabel kLabel = {Purpose::kParameters, 3};
  Abort abort_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CallLog> log_;
};

TEST_F(CallLogTest, NamesNoCallThatHasNotBegunOrThatHasEnded) {
  EXPECT_EQ(Look(), "");
  for (int i = 0; i < 3; ++i) Call(i, [] {});
  EXPECT_EQ(log_->calls(), 3u);
  fake_cuda::Hold(true);
  EXPECT_EQ(Look(), "") << "none has begun";
  EXPECT_EQ(log_->calls(), 3u);
  fake_cuda::Hold(false);
  Finish();
  EXPECT_EQ(Look(), "");
  EXPECT_EQ(log_->calls(), 0u);
}

TEST_F(CallLogTest, OfACallThatNeverEndsStaysAndKeepsItsTime) {
  Call(0, [] {});
  Call(
      17, [] {}, /*ends=*/false);
  Call(18, [] {});
  Finish();
  EXPECT_EQ(Look(), "all-gather number 17 (parameters, unit 3)");
  const Waiting first = device_->CurrentWait(kCommunication);
  EXPECT_EQ(Look(), "all-gather number 17 (parameters, unit 3)");
  EXPECT_TRUE(device_->CurrentWait(kCommunication).since == first.since);
  EXPECT_EQ(log_->calls(), 2u);
}

TEST_F(CallLogTest, UsesItsEventsAgainAlsoIfNobodyLooks) {
  for (int i = 0; i < 3; ++i) {
    for (int call = 0; call < 10; ++call) Call(call, [] {});
    Finish();
    EXPECT_EQ(Look(), "");
    EXPECT_EQ(fake_cuda::LiveNow().events, 20);
  }
  for (int call = 0; call < 2000; ++call) {
    Call(call, [] {});
    if (call % 100 == 99) Finish();
  }
  EXPECT_LE(log_->calls(), 256u);
  EXPECT_LE(fake_cuda::LiveNow().events, 2 * 257);
  log_ = nullptr;
  EXPECT_EQ(fake_cuda::LiveNow().events, 0);
}

TEST_F(CallLogTest, WhatCannotBeAskedIsTheDevicesFailure) {
  Call(0, [] {});
  fake_cuda::FailCall("cudaEventQuery", 1);
  EXPECT_EQ(Look(), "");
  EXPECT_THAT(std::string(device_->status().message()), HasSubstr("rank 0: cudaEventQuery: "));
}

}  // namespace
}  // namespace zerobox
