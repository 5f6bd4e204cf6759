// SPDX-License-Identifier: Apache-2.0
//
// The promises of ops/device/device.h, kept by the CUDA device under every order of its streams.
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
TEST_P(CudaDeviceTest, RunsAStreamInOrder) {
  for (const StreamId stream : kAllStreams) {
    Reset();
    Abort abort;
    auto device = MakeDevice(abort);
    std::vector<int> order;
    for (int i = 0; i < 50; ++i) {
      if (i % 3 == 0) {
        device->EnqueueOnHost(stream, "note", [&order, i] {
          order.push_back(i);
          return absl::OkStatus();
        });
      } else {
        Launch(*device, stream, [&order, i] { order.push_back(i); });
      }
    }
    EXPECT_THAT(order, IsEmpty()) << "enqueueing waited for the work";
    ASSERT_TRUE(WaitForAll(*device).ok());
    std::vector<int> expected(50);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
}

TEST_P(CudaDeviceTest, OrdersEveryPairOfStreamsByAnEvent) {
  for (const StreamId first : kAllStreams) {
    for (const StreamId second : kAllStreams) {
      if (first == second) continue;
      Reset();
      Abort abort;
      auto device = MakeDevice(abort);
      const Buffer buffer = Floats(*device, 8);
      const auto event = device->MakeEvent("edge");
      float seen = 0;
      for (int i = 0; i < 5; ++i) Launch(*device, first, [] {});
      Launch(*device, first, [buffer] { buffer.As<float>()[0] = 7; }, {Write(buffer)});
      device->Record(*event, first);
      device->Wait(second, *event);
      Launch(*device, second, [&, buffer] { seen = buffer.As<float>()[0]; }, {Read(buffer)});
      ASSERT_TRUE(WaitForAll(*device).ok());
      EXPECT_EQ(seen, 7);
    }
  }
}

TEST_P(CudaDeviceTest, AMissingEventIsReportedWithItsStreamsAndTheBuffer) {
  for (const StreamId first : kAllStreams) {
    for (const StreamId second : kAllStreams) {
      if (first == second) continue;
      Reset();
      Abort abort;
      CudaDeviceOptions options = Options();
      options.drop_wait = "edge -> " + std::string(Name(second));
      auto device = MakeDevice(abort, options);
      const Buffer buffer = Floats(*device, 8);
      fake_cuda::NameMemory(
          [buffer](const void* data) { return data == buffer.Slice(4, 1).data ? "gradient" : ""; });
      const auto event = device->MakeEvent("edge");
      device->Zero(first, buffer);
      device->Record(*event, first);
      device->Wait(second, *event);
      Launch(*device, second, [] {}, {Read(buffer.Slice(4, 2))});
      ASSERT_TRUE(WaitForAll(*device).ok());
      // Which of both came second depends on the policy.
      const std::vector<std::string> reports = fake_cuda::TakeReports();
      ASSERT_EQ(reports.size(), 1u);
      EXPECT_THAT(reports[0], HasSubstr("race: "));
      EXPECT_THAT(reports[0], HasSubstr("stream " + std::string(Name(first)) + " of device 0"));
      EXPECT_THAT(reports[0], HasSubstr("stream " + std::string(Name(second)) + " of device 0"));
      EXPECT_THAT(reports[0], HasSubstr("memory of device 0 +51"));
      if (reports[0].find("reads 8 bytes") != std::string::npos) {
        EXPECT_THAT(reports[0], HasSubstr("(gradient)"));
      }
    }
  }
}

TEST_P(CudaDeviceTest, TheHostSeesWhatItWaitedForAndNothingElse) {
  for (const bool dropped : {false, true}) {
    Reset();
    Abort abort;
    CudaDeviceOptions options = Options();
    if (dropped) options.drop_wait = "copied -> host";
    auto device = MakeDevice(abort, options);
    const Buffer on_host =
        device->AllocateOnHost(Category::kWorkspace, DType::kFloat32, 8, "landed");
    const Buffer buffer = Floats(*device, 8);
    const auto event = device->MakeEvent("copied");
    const auto other = device->MakeEvent("other");
    device->Zero(kToHost, buffer);
    device->CopyToHost(kToHost, on_host.data, buffer);
    device->Record(*event, kToHost);
    device->Record(*other, kFromHost);
    ASSERT_TRUE(device->HostWait(*event).ok());
    EXPECT_EQ(on_host.As<float>()[7] == 0, !dropped) << "NaN before";
    ASSERT_TRUE(WaitForAll(*device).ok());
  }
}

TEST_P(CudaDeviceTest, WaitsForTheLatestRecordBeforeTheCall) {
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("edge");
  std::vector<std::string> log;
  Launch(*device, kCommunication, [&] { log.push_back("one"); });
  device->Record(*event, kCommunication);
  Launch(*device, kCommunication, [&] { log.push_back("two"); });
  device->Record(*event, kCommunication);
  device->Wait(kToHost, *event);
  Launch(*device, kToHost, [&] { log.push_back("after"); });
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(log, (std::vector<std::string>{"one", "two", "after"}));
}

TEST_P(CudaDeviceTest, WaitsForNoLaterRecord) {
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("edge");
  const auto back = device->MakeEvent("back");
  std::vector<std::string> log;
  device->Record(*event, kCommunication);
  device->Wait(kToHost, *event);
  Launch(*device, kToHost, [&] { log.push_back("after the first"); });
  device->Record(*back, kToHost);
  device->Wait(kCommunication, *back);  // a deadlock if kToHost waited for the record below
  Launch(*device, kCommunication, [&] { log.push_back("second"); });
  device->Record(*event, kCommunication);
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(log, (std::vector<std::string>{"after the first", "second"}));
}

TEST_P(CudaDeviceTest, HasNothingToWaitForBeforeTheFirstRecord) {
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("never");
  for (const StreamId stream : kAllStreams) device->Wait(stream, *event);
  EXPECT_TRUE(device->HostWait(*event).ok());
  EXPECT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(fake_cuda::Calls().count("cudaStreamWaitEvent"), 0u);
}

TEST_P(CudaDeviceTest, AnEventMayBeDestroyedBeforeItHappens) {
  Abort abort;
  auto device = MakeDevice(abort);
  std::vector<std::string> log;
  Launch(*device, kCommunication, [&] { log.push_back("first"); });
  {
    const auto event = device->MakeEvent("short-lived");
    device->Record(*event, kCommunication);
    device->Wait(kToHost, *event);
  }
  Launch(*device, kToHost, [&] { log.push_back("second"); });
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(log, (std::vector<std::string>{"first", "second"}));
}

TEST_P(CudaDeviceTest, ReservesItsMemoryOnceForTheWholeRun) {
  Abort abort;
  CudaDeviceOptions options = Options();
  options.regions = {1000, 0, 0, 100};
  options.host_regions = {129, 0, 0, 0};
  auto device = MakeDevice(abort, options);
  EXPECT_EQ(fake_cuda::LiveNow().device_bytes, 1024 + 1024 + 128);
  EXPECT_EQ(fake_cuda::LiveNow().pinned_bytes, 256 + (4 << 20));
  for (int i = 0; i < 3; ++i) {
    const Buffer buffer = Floats(*device, 4);
    float value = 0;
    device->Zero(kCompute, buffer);
    device->CopyToHost(kCompute, &value, buffer.Slice(0, 1));
    ASSERT_TRUE(WaitForAll(*device).ok());
    device->Free(buffer);
  }
  std::map<std::string, int> calls = fake_cuda::Calls();
  EXPECT_EQ(calls["cudaMalloc"], 1);
  EXPECT_EQ(calls["cudaHostAlloc"], 1);
  EXPECT_EQ(calls["cudaSetDevice"], 1);
  EXPECT_EQ(calls["cudaStreamCreateWithPriority"], 4);
  EXPECT_EQ(calls["cudaFree"] + calls["cudaFreeHost"] + calls["cudaStreamSynchronize"], 0);
}

TEST_P(CudaDeviceTest, CopiesAndZeroesOnEveryStream) {
  for (const StreamId stream : kAllStreams) {
    Reset();
    Abort abort;
    auto device = MakeDevice(abort);
    const Buffer a = Floats(*device, 5);
    const Buffer b = Floats(*device, 5);
    const std::vector<float> in = {1, 2, 3, 4, 5};
    std::vector<float> out(5);
    device->CopyFromHost(stream, a, in.data());
    device->Copy(stream, b, a);
    device->Zero(stream, b.Slice(1, 2));
    device->CopyToHost(stream, out.data(), b);
    device->CopyToHost(stream, out.data(), b.Slice(0, 0));
    device->Zero(stream, b.Slice(0, 0));
    ASSERT_TRUE(WaitForAll(*device).ok());
    EXPECT_EQ(out, (std::vector<float>{1, 0, 0, 4, 5}));
    EXPECT_EQ(device->copied(), (CopiedBytes{.to_host = 20, .from_host = 20}));
  }
}

TEST_P(CudaDeviceTest, CopiesPinnedMemoryDirectlyAndOtherMemoryInPieces) {
  constexpr int64_t kElements = 700'000;  // 2.7 MiB: three pieces
  for (const bool pinned : {false, true}) {
    Reset();
    Abort abort;
    auto device = MakeDevice(abort);
    const Buffer buffer = Floats(*device, kElements);
    const Buffer side =
        device->AllocateOnHost(Category::kWorkspace, DType::kFloat32, kElements, "side");
    std::vector<float> in(kElements);
    std::vector<float> out(kElements);
    std::iota(in.begin(), in.end(), 0.0f);
    if (pinned) std::copy(in.begin(), in.end(), side.As<float>());
    device->CopyFromHost(kFromHost, buffer, pinned ? side.As<float>() : in.data());
    const auto event = device->MakeEvent("uploaded");
    device->Record(*event, kFromHost);
    device->Wait(kToHost, *event);
    if (pinned) device->Zero(kToHost, side);
    device->CopyToHost(kToHost, pinned ? side.As<float>() : out.data(), buffer);
    // The staging memory is the same for each piece of each copy.
    if (!pinned) device->CopyFromHost(kFromHost, buffer, in.data());
    EXPECT_EQ(out[1], 0);
    ASSERT_TRUE(WaitForAll(*device).ok());
    if (pinned) out.assign(side.As<float>(), side.As<float>() + kElements);
    EXPECT_TRUE(out == in);
    EXPECT_EQ(fake_cuda::Calls()["cudaMemcpyAsync"], pinned ? 2 : 9);
    // Without pinned memory the second upload races with the download, which is a test of the test.
    EXPECT_EQ(fake_cuda::TakeReports().empty(), pinned);
  }
}

TEST_P(CudaDeviceTest, ZeroesPinnedMemoryInTheStreamsTurn) {
  for (const StreamId stream : kAllStreams) {
    Reset();
    Abort abort;
    auto device = MakeDevice(abort);
    const Buffer buffer = Floats(*device, 8);
    const Buffer side = device->AllocateOnHost(Category::kWorkspace, DType::kFloat32, 8, "side");
    Launch(*device, stream, [buffer] { buffer.As<float>()[3] = 5; });
    device->CopyToHost(stream, side.data, buffer);
    device->Zero(stream, side.Slice(0, 3));
    device->Zero(stream, side.Slice(4, 4));
    ASSERT_TRUE(WaitForAll(*device).ok());
    EXPECT_THAT(std::vector<float>(side.As<float>(), side.As<float>() + 8),
                testing::ElementsAre(0, 0, 0, 5, 0, 0, 0, 0));
  }
}

TEST_P(CudaDeviceTest, RunsTheHostSidesKernelsInOrderWithTheCopiesThatBringTheirOperands) {
  Abort abort;
  auto device = MakeDevice(abort);
  const Buffer gradient = Floats(*device, 1000);
  const Buffer landed =
      device->AllocateOnHost(Category::kCommunicationBuffers, DType::kFloat32, 1000, "landed");
  const Buffer sum = device->AllocateOnHost(Category::kGradients, DType::kFloat32, 1000, "sum");
  const std::vector<float> twos(1000, 2);
  device->CopyFromHost(kToHost, gradient, twos.data());
  device->host_ops().Fill(sum, 1);
  for (int i = 0; i < 2; ++i) {
    device->CopyToHost(kToHost, landed.data, gradient);
    device->host_ops().Add(sum, landed);
  }
  EXPECT_TRUE(std::isnan(sum.As<float>()[0])) << "a kernel ran before its turn";
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(sum.As<float>()[0], 5);
  EXPECT_EQ(sum.As<float>()[999], 5);
  EXPECT_EQ(device->copied().to_host, 2 * 4 * 1000);
}

class Enqueued final : public Recorder {
 public:
  void OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t id) override {
    Add("enqueue", rank, stream, op, id);
  }
  void OnBegin(int rank, StreamId stream, std::string_view op, int64_t id) override {
    Add("begin", rank, stream, op, id);
  }
  void OnEnd(int rank, StreamId stream, std::string_view op, int64_t id) override {
    Add("end", rank, stream, op, id);
  }
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}
  void OnRecord(int, StreamId stream, const Event& event) override {
    seen.push_back("record " + event.name() + " " + std::string(Name(stream)));
  }
  void OnHostWait(int, const Event& event) override { seen.push_back("host " + event.name()); }
  std::vector<std::string> seen;

 private:
  void Add(const char* what, int rank, StreamId stream, std::string_view op, int64_t id) {
    seen.push_back(std::string(what) + " " + std::to_string(rank) + " " +
                   std::string(Name(stream)) + " " + std::string(op) + " " + std::to_string(id));
  }
};

TEST_P(CudaDeviceTest, TellsTheRecorderWhatIsEnqueuedAndWhenHostWorkRuns) {
  Abort abort;
  Enqueued recorder;
  CudaDeviceOptions options = Options();
  options.rank = 1;
  options.recorder = &recorder;
  auto device = MakeDevice(abort, options);
  const Buffer side = device->AllocateOnHost(Category::kWorkspace, DType::kFloat32, 8, "side");
  const auto event = device->MakeEvent("edge");
  device->Zero(kCompute, Floats(*device, 8));
  device->host_ops().Fill(side, 1);
  device->Record(*event, kToHost);
  ASSERT_TRUE(device->HostWait(*event).ok());
  EXPECT_EQ(recorder.seen,
            (std::vector<std::string>{"enqueue 1 compute zero 0", "enqueue 1 to_host fill 1",
                                      "record edge to_host", "host edge", "begin 1 to_host fill 1",
                                      "end 1 to_host fill 1"}));
}

TEST_P(CudaDeviceTest, TakesTheTimeThatComputeStandsStillForCommunication) {
  constexpr auto kWork = std::chrono::milliseconds(2);
  constexpr int kRounds = 3;
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("edge");
  int created = 0;
  for (int round = 0; round < kRounds; ++round) {
    Launch(*device, kCommunication, [&] {
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < kWork) continue;
    });
    device->Record(*event, kCommunication);
    device->Wait(kCompute, *event);
    device->Wait(kCompute, *event);
    EXPECT_EQ(device->communication_waits(), 2 * (round + 1));
    // Neither another stream's wait for communication nor compute's for another stream.
    device->Wait(kToHost, *event);
    device->Record(*event, kFromHost);
    device->Wait(kCompute, *event);
    ASSERT_TRUE(WaitForAll(*device).ok());
    const double first = device->SecondsExposed(2 * round + 1);
    EXPECT_TRUE(first > 0);
    // Where compute came to its wait before communication began.
    if (GetParam() == Policy::kComputeFirst) {
      EXPECT_TRUE(first >= std::chrono::duration<double>(kWork).count()) << first;
    }
    EXPECT_TRUE(device->SecondsExposed(2 * round + 2) > 0);
    EXPECT_EQ(device->SecondsExposed(2 * round + 2), 0) << "each wait is asked for once";
    if (round == 0) created = fake_cuda::LiveNow().events;
    EXPECT_EQ(fake_cuda::LiveNow().events, created) << "events are used again";
  }
  EXPECT_EQ(device->communication_waits(), 2 * kRounds);
  fake_cuda::FailCall("cudaEventElapsedTime", 1);
  device->Record(*event, kCommunication);
  device->Wait(kCompute, *event);
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(device->SecondsExposed(2 * kRounds + 1), 0);
  EXPECT_THAT(std::string(device->status().message()), HasSubstr("rank 0: cudaEventElapsedTime: "));
}

TEST_P(CudaDeviceTest, TakesNoTimeOfAWaitThatIsDropped) {
  Abort abort;
  CudaDeviceOptions options = Options();
  options.drop_wait = "edge -> compute";
  auto device = MakeDevice(abort, options);
  const auto event = device->MakeEvent("edge");
  device->Record(*event, kCommunication);
  device->Wait(kCompute, *event);
  EXPECT_EQ(device->communication_waits(), 0);
  EXPECT_EQ(fake_cuda::LiveNow().events, 1);
}

TEST_P(CudaDeviceTest, StoresTheTimeInTheOrderOfTheStream) {
  Abort abort;
  auto device = MakeDevice(abort, Options());
  using Clock = std::chrono::steady_clock;
  Clock::time_point before, time, after;
  Launch(*device, StreamId::kToHost, [&before] { before = Clock::now(); });
  device->StoreTime(StreamId::kToHost, &time);
  Launch(*device, StreamId::kToHost, [&after] { after = Clock::now(); });
  EXPECT_EQ(time, Clock::time_point{}) << "the stream has not come there";
  const auto end = device->MakeEvent("end");
  device->Record(*end, StreamId::kToHost);
  ASSERT_TRUE(device->HostWait(*end).ok());
  EXPECT_LT(Clock::time_point{}, before);
  EXPECT_LE(before, time);
  EXPECT_LE(time, after);
}

TEST_P(CudaDeviceTest, IsNeverMoreThanAFewOpsAheadOfItsGpu) {
  Abort abort;
  CudaDeviceOptions options = Options();
  options.ops_ahead = 4;
  auto device = MakeDevice(abort, options);
  int ran = 0;
  int events = 0;
  for (int i = 0; i < 100; ++i) {
    Launch(*device, kCompute, [&ran] { ++ran; });
    EXPECT_LE(i + 1 - ran, 12) << "nothing waited";  // three times ops_ahead
    if (i == 50) events = fake_cuda::Calls()["cudaEventCreateWithFlags"];
  }
  EXPECT_EQ(fake_cuda::Calls()["cudaEventCreateWithFlags"], events);
  // The same holds of another stream.
  int copies = 0;
  for (int i = 0; i < 100; ++i) {
    Launch(*device, StreamId::kToHost, [&copies] { ++copies; });
    EXPECT_LE(i + 1 - copies, 12) << "nothing waited";
  }
  // A worker that waits here says so, looks after its calls, and sees the run fail.
  fake_cuda::Hold(true);
  std::string waits_for;
  device->set_while_waiting([&] {
    waits_for = device->WaitingFor(kCompute);
    abort.Fail(absl::AbortedError("another rank"));
  });
  for (int i = 0; i < 100; ++i) Launch(*device, kCompute, [&ran] { ++ran; });
  EXPECT_EQ(waits_for, "its GPU");
  EXPECT_EQ(device->status(), absl::AbortedError("another rank"));
  fake_cuda::Hold(false);
  device->set_while_waiting(nullptr);
}

}  // namespace
}  // namespace zerobox
