// SPDX-License-Identifier: Apache-2.0
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
#include "ops/device/plan_device.h"
#include "ops/ops.h"
#include "tests/device_streams.h"

namespace zerobox {
namespace {

TEST(HostDevice, RunsAStreamInOrder) {
  for (const StreamId stream : kAllStreams) {
    Abort abort;
    auto device = MakeDevice(abort);
    std::vector<int> order;
    for (int i = 0; i < 1000; ++i) {
      device->Enqueue(stream, "note", [&order, i] {
        order.push_back(i);
        return absl::OkStatus();
      });
    }
    ASSERT_TRUE(WaitForAll(*device).ok());
    ASSERT_EQ(order.size(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(HostDevice, RunsComputeInTheWorkersThreadAndOtherStreamsInTheirOwn) {
  Abort abort;
  auto device = MakeDevice(abort);
  std::array<std::thread::id, kStreams> ids;
  for (const StreamId stream : kAllStreams) {
    device->Enqueue(stream, "id", [&ids, stream] {
      ids[static_cast<size_t>(stream)] = std::this_thread::get_id();
      return absl::OkStatus();
    });
  }
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  for (size_t a = 0; a < kStreams; ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(ids[a], ids[b]);
  }
}

TEST(HostDevice, EnqueueingDoesNotWaitForTheWork) {
  for (const StreamId stream : kThreads) {
    Abort abort;
    auto device = MakeDevice(abort);
    std::latch gate(1);
    bool ran = false;
    device->Enqueue(stream, "gate", [&] {
      gate.wait();
      ran = true;
      return absl::OkStatus();
    });
    const auto event = device->MakeEvent("behind the gate");
    device->Record(*event, stream);
    gate.count_down();  // reached although the stream stands still
    EXPECT_TRUE(device->HostWait(*event).ok());
    EXPECT_TRUE(ran);
  }
}

TEST(HostDevice, OrdersEveryPairOfStreamsByAnEvent) {
  for (const StreamId first : kThreads) {
    for (const StreamId second : kAllStreams) {
      if (first == second) continue;
      Abort abort;
      auto device = MakeDevice(abort);
      const auto event = device->MakeEvent("edge");
      std::latch gate(1);
      Log log;
      device->Enqueue(first, "gate", [&] {
        gate.wait();
        return absl::OkStatus();
      });
      device->Enqueue(first, "first", log.Note("first"));
      device->Record(*event, first);
      // The gate opens once the second stream stands at the event.
      std::thread opener([&] {
        AwaitArrival(*device, second, "edge");
        EXPECT_TRUE(log.lines().empty());
        gate.count_down();
      });
      device->Wait(second, *event);
      device->Enqueue(second, "second", log.Note("second"));
      ASSERT_TRUE(WaitForAll(*device).ok());
      opener.join();
      EXPECT_EQ(log.lines(), (std::vector<std::string>{"first", "second"}));
      EXPECT_EQ(device->WaitingFor(second), "");
    }
  }
}

TEST(HostDevice, WaitsForWhatComputeRecordedBefore) {
  for (const StreamId second : kThreads) {
    Abort abort;
    auto device = MakeDevice(abort);
    const auto event = device->MakeEvent("edge");
    int value = 0;
    int seen = 0;
    device->Enqueue(kCompute, "write", [&] {
      value = 7;
      return absl::OkStatus();
    });
    device->Record(*event, kCompute);
    device->Wait(second, *event);
    device->Enqueue(second, "read", [&] {
      seen = value;
      return absl::OkStatus();
    });
    ASSERT_TRUE(WaitForAll(*device).ok());
    EXPECT_EQ(seen, 7);
  }
}

TEST(HostDevice, WaitsForTheLatestRecordBeforeTheCallAndForNoLaterOne) {
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("edge");
  Log log;
  std::latch first_gate(1);
  std::latch second_gate(1);
  std::latch third_gate(1);
  const auto enqueue_gate = [&](std::latch& gate) {
    device->Enqueue(kCommunication, "gate", [&gate] {
      gate.wait();
      return absl::OkStatus();
    });
  };
  enqueue_gate(first_gate);
  device->Record(*event, kCommunication);
  enqueue_gate(second_gate);
  device->Enqueue(kCommunication, "two", log.Note("two"));
  device->Record(*event, kCommunication);
  device->Wait(kToHost, *event);  // the second Record
  enqueue_gate(third_gate);
  device->Record(*event, kCommunication);
  device->Enqueue(kToHost, "after", log.Note("after"));
  const auto after = device->MakeEvent("after");
  device->Record(*after, kToHost);

  first_gate.count_down();
  AwaitArrival(*device, kToHost, "edge");
  EXPECT_TRUE(log.lines().empty());  // the first Record does not do
  second_gate.count_down();
  EXPECT_TRUE(device->HostWait(*after).ok());  // while the third gate is closed
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"two", "after"}));
  third_gate.count_down();
  EXPECT_TRUE(device->HostWait(*event).ok());
}

TEST(HostDevice, HasNothingToWaitForBeforeTheFirstRecord) {
  Abort abort;
  auto device = MakeDevice(abort);
  const auto event = device->MakeEvent("never");
  for (const StreamId stream : kAllStreams) device->Wait(stream, *event);
  EXPECT_TRUE(device->HostWait(*event).ok());
  EXPECT_TRUE(WaitForAll(*device).ok());
}

TEST(HostDevice, AnEventMayBeDestroyedBeforeItHappens) {
  Abort abort;
  auto device = MakeDevice(abort);
  std::latch gate(1);
  Log log;
  device->Enqueue(kCommunication, "gate", [&] {
    gate.wait();
    return log.Note("first")();
  });
  {
    const auto event = device->MakeEvent("short-lived");
    device->Record(*event, kCommunication);
    device->Wait(kToHost, *event);
  }
  device->Enqueue(kToHost, "second", log.Note("second"));
  gate.count_down();
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"first", "second"}));
}

TEST(HostDevice, DropWaitTakesOneNamedEdgeAway) {
  Abort abort;
  HostDeviceOptions options;
  options.drop_wait = "dropped -> to_host";
  auto device = MakeDevice(abort, options);
  const auto dropped = device->MakeEvent("dropped");
  const auto kept = device->MakeEvent("kept");
  std::latch gate(1);
  Log log;
  device->Enqueue(kCommunication, "gate", [&] {
    gate.wait();
    return log.Note("first")();
  });
  device->Record(*dropped, kCommunication);
  device->Record(*kept, kCommunication);
  device->Wait(kToHost, *dropped);
  device->Enqueue(kToHost, "early", [&] {
    absl::Status status = log.Note("early")();
    gate.count_down();  // would never be reached with the edge
    return status;
  });
  device->Wait(kFromHost, *kept);
  device->Wait(kFromHost, *dropped);  // another edge of the same event stays
  device->Enqueue(kFromHost, "late", log.Note("late"));
  ASSERT_TRUE(WaitForAll(*device).ok());
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"early", "first", "late"}));
}

TEST(HostDevice, CopiesAndZeroesOnEveryStream) {
  for (const StreamId stream : kAllStreams) {
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
    ASSERT_TRUE(WaitForAll(*device).ok());
    EXPECT_EQ(out, (std::vector<float>{1, 0, 0, 4, 5}));
    EXPECT_EQ(device->copied(), (CopiedBytes{.to_host = 20, .from_host = 20}));
  }
}

// Opens a gate when this thread really sleeps.
class OpenWhenAsleep final : public WaitObserver {
 public:
  explicit OpenWhenAsleep(std::latch& gate) : gate_(gate) {}
  void Watch(std::thread::id thread) { thread_ = thread; }
  void OnSleep(const WaitPoint*) override {
    if (thread_.load() == std::this_thread::get_id() && !gate_.try_wait()) gate_.count_down();
  }
  void OnWake(const WaitPoint*) override {}
  void OnReady(const WaitPoint*) override {}

 private:
  std::latch& gate_;
  std::atomic<std::thread::id> thread_;
};

TEST(HostDevice, TakesTheTimeThatComputeStandsStillForCommunication) {
  for (const bool threaded : {false, true}) {
    std::latch gate(1);
    OpenWhenAsleep observer(gate);
    Abort::ObserveAll(&observer);
    Abort abort;
    Abort::ObserveAll(nullptr);
    HostDeviceOptions options;
    options.threaded_compute = threaded;
    auto device = MakeDevice(abort, options);
    const auto event = device->MakeEvent("edge");
    device->Record(*event, kCommunication);
    ASSERT_TRUE(device->HostWait(*event).ok());
    device->Wait(kCompute, *event);  // for nothing
    device->Enqueue(kCommunication, "gate", [&] {
      gate.wait();
      return absl::OkStatus();
    });
    device->Record(*event, kCommunication);
    std::latch enqueued(threaded ? 1 : 0);  // a thread without work would sleep, too
    device->Enqueue(kCompute, "watch", [&] {
      enqueued.wait();
      observer.Watch(std::this_thread::get_id());
      return absl::OkStatus();
    });
    device->Wait(kCompute, *event);
    if (threaded) enqueued.count_down();
    EXPECT_EQ(device->communication_waits(), 2);
    // Neither another stream's wait for communication nor compute's for another stream.
    device->Wait(kToHost, *event);
    device->Record(*event, kFromHost);
    device->Wait(kCompute, *event);
    ASSERT_TRUE(WaitForAll(*device).ok());
    EXPECT_EQ(device->communication_waits(), 2);
    EXPECT_EQ(device->SecondsExposed(1), 0);
    EXPECT_TRUE(device->SecondsExposed(2) > 0);
    EXPECT_EQ(device->SecondsExposed(2), 0) << "each wait is asked for once";
  }
}

TEST(HostDevice, TakesNoTimeOfAWaitThatIsDropped) {
  Abort abort;
  HostDeviceOptions options;
  options.drop_wait = "edge -> compute";
  auto device = MakeDevice(abort, options);
  const auto event = device->MakeEvent("edge");
  device->Record(*event, kCommunication);
  device->Wait(kCompute, *event);
  EXPECT_EQ(device->communication_waits(), 0);
}

TEST(HostDevice, PoisonsFreshMemoryWhenAsked) {
  Abort abort;
  HostDeviceOptions options;
  options.poison = true;
  auto device = MakeDevice(abort, options);
  EXPECT_TRUE(std::isnan(Floats(*device, 1).As<float>()[0]));
  EXPECT_EQ(device->memory().poisoned_bytes(), 128);
}

TEST(HostDevice, ParallelForGivesEveryTaskToOneThreadAlwaysTheSame) {
  for (const int threads : {1, 2, 3, 5}) {
    Abort abort;
    HostDeviceOptions options;
    options.threads = threads;
    auto device = MakeDevice(abort, options);
    EXPECT_EQ(device->threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 100}) {
      std::vector<std::thread::id> first(static_cast<size_t>(tasks));
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<int> count(static_cast<size_t>(tasks));
        std::vector<std::thread::id> ids(static_cast<size_t>(tasks));
        device->ParallelFor(StreamId::kCompute, tasks, [&](int64_t i) {
          ++count[static_cast<size_t>(i)];
          ids[static_cast<size_t>(i)] = std::this_thread::get_id();
        });
        EXPECT_EQ(count, std::vector<int>(static_cast<size_t>(tasks), 1));
        if (repeat == 0) first = ids;
        EXPECT_EQ(ids, first);
      }
      if (tasks == 100) {
        size_t changes = 0;  // contiguous shares: each thread is met once
        for (size_t i = 1; i < first.size(); ++i) changes += first[i] != first[i - 1] ? 1 : 0;
        EXPECT_EQ(changes, static_cast<size_t>(threads - 1));
        EXPECT_EQ(first[0], std::this_thread::get_id());
      }
    }
  }
}

TEST(HostDevice, ParallelForReallyRunsInParallel) {
  Abort abort;
  HostDeviceOptions options;
  options.threads = 3;
  auto device = MakeDevice(abort, options);
  std::latch all(3);
  device->ParallelFor(StreamId::kCompute, 3, [&](int64_t) { all.arrive_and_wait(); });
  EXPECT_TRUE(all.try_wait());
}

class Spans final : public Recorder {
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
  std::vector<std::string> seen;

 private:
  void Add(const char* what, int rank, StreamId stream, std::string_view op, int64_t id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen.push_back(std::string(what) + " " + std::to_string(rank) + " " +
                   std::string(Name(stream)) + " " + std::string(op) + " " + std::to_string(id));
  }
  std::mutex mutex_;
};

TEST(HostDevice, TellsTheRecorderWhenEachOpIsEnqueuedBeginsAndEnds) {
  Abort abort;
  Spans spans;
  HostDeviceOptions options;
  options.rank = 1;
  options.recorder = &spans;
  auto device = MakeDevice(abort, options);
  const Buffer a = Floats(*device, 5);
  device->Zero(kCompute, a);
  const auto event = device->MakeEvent("edge");
  std::latch gate(1);
  device->Enqueue(kCommunication, "gated", [&] {
    gate.wait();
    return absl::OkStatus();
  });
  device->Record(*event, kCommunication);
  device->Copy(kCompute, a, a);
  gate.count_down();
  ASSERT_TRUE(device->HostWait(*event).ok());
  std::vector<std::string> expected = {"enqueue 1 compute zero 0", "begin 1 compute zero 0",
                                       "end 1 compute zero 0", "enqueue 1 communication gated 1"};
  const std::vector<std::string> first(spans.seen.begin(), spans.seen.begin() + 4);
  EXPECT_EQ(first, expected);
  std::sort(spans.seen.begin(), spans.seen.end());
  expected.insert(expected.end(),
                  {"begin 1 communication gated 1", "end 1 communication gated 1",
                   "enqueue 1 compute copy 2", "begin 1 compute copy 2", "end 1 compute copy 2"});
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(spans.seen, expected);
}

TEST(PlanDevice, CountsWithoutTouchingMemory) {
  PlanDevice device;
  const Buffer big = device.Allocate(Region::kPersistent, Category::kParameters, DType::kFloat32,
                                     int64_t{1} << 40, "parameters of a giant");
  device.Zero(kCompute, big);
  device.Copy(kCompute, big.Slice(0, 8), big.Slice(8, 8));
  device.CopyToHost(kToHost, nullptr, big.Slice(0, 10));
  device.CopyFromHost(kFromHost, big.Slice(0, 3), nullptr);
  device.ops().Fill(big, 1.0f);
  const auto event = device.MakeEvent("edge");
  EXPECT_EQ(event->name(), "edge");
  device.Record(*event, kCompute);
  EXPECT_TRUE(device.HostWait(*event).ok());
  EXPECT_EQ(device.memory().ledger().live_bytes, int64_t{1} << 42);
  EXPECT_EQ(device.copied(), (CopiedBytes{.to_host = 40, .from_host = 12}));
  device.Fail(absl::InternalError("first"));
  device.Fail(absl::InternalError("second"));
  EXPECT_EQ(device.status(), absl::InternalError("first"));
}

}  // namespace
}  // namespace zerobox
