// SPDX-License-Identifier: Apache-2.0
#include "ops/device/abort.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace zerobox {
namespace {

TEST(Abort, IsOkUntilSomethingFails) {
  Abort abort;
  EXPECT_FALSE(abort.failed());
  EXPECT_TRUE(abort.status().ok());
}

TEST(Abort, KeepsTheFirstError) {
  Abort abort;
  abort.Fail(absl::DataLossError("first"));
  abort.Fail(absl::InternalError("second"));
  EXPECT_TRUE(abort.failed());
  EXPECT_EQ(abort.status(), absl::DataLossError("first"));
}

TEST(WaitPoint, WaitsForWhatAnotherThreadChanges) {
  Abort abort;
  WaitPoint point(abort);
  int turn = 0;
  std::vector<int> order;
  std::thread other([&] {
    for (int i = 1; i < 100; i += 2) {
      EXPECT_TRUE(point.WaitUntil([&] { return turn == i; }));
      point.Notify([&] { order.push_back(turn++); });
    }
  });
  for (int i = 0; i < 100; i += 2) {
    EXPECT_TRUE(point.WaitUntil([&] { return turn == i; }));
    point.Notify([&] { order.push_back(turn++); });
  }
  other.join();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(WaitPoint, EndsEveryWaitWhenTheRunFails) {
  Abort abort;
  std::vector<std::unique_ptr<WaitPoint>> points;
  for (int i = 0; i < 3; ++i) points.push_back(std::make_unique<WaitPoint>(abort));
  std::latch waiting(6);
  std::vector<std::thread> threads;
  std::atomic<int> woken{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      bool first = true;
      const bool ready = points[static_cast<size_t>(t % 3)]->WaitUntil([&] {
        if (first) waiting.count_down();
        first = false;
        return false;
      });
      if (!ready) ++woken;
    });
  }
  waiting.wait();
  abort.Fail(absl::InternalError("stop"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, 6);
}

TEST(WaitPoint, DoesNotBlockOnceTheRunHasFailed) {
  Abort abort;
  abort.Fail(absl::InternalError("stop"));
  WaitPoint point(abort);
  EXPECT_FALSE(point.WaitUntil([] { return false; }));
  EXPECT_TRUE(point.WaitUntil([] { return true; }));
}

// For the thread sanitizer, and against lost wake-ups: failing races with making, waiting and
// destroying.
TEST(WaitPoint, MayBeMadeAndDestroyedWhileTheRunFails) {
  for (int round = 0; round < 200; ++round) {
    Abort abort;
    std::latch start(4);
    std::vector<std::thread> threads;
    std::atomic<int> ended{0};
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        WaitPoint point(abort);
        if (!point.WaitUntil([] { return false; })) ++ended;
      });
    }
    start.arrive_and_wait();
    abort.Fail(absl::InternalError(std::to_string(round)));
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ended, 3);
    ASSERT_EQ(abort.status(), absl::InternalError(std::to_string(round)));
  }
}

TEST(Abort, AgreesOnOneErrorWhenManyFailAtOnce) {
  Abort abort;
  std::latch start(4);
  std::vector<std::thread> threads;
  std::vector<std::string> seen(4);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      abort.Fail(absl::InternalError("rank " + std::to_string(t)));
      seen[t] = std::string(abort.status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : seen) EXPECT_EQ(message, seen[0]);
  EXPECT_EQ(seen[0].substr(0, 5), "rank ");
}

}  // namespace
}  // namespace zerobox
