// SPDX-License-Identifier: Apache-2.0
//
// The emulator itself, beside what it finds (tests/emulation/seeded_bugs_test.cpp).
#include "tests/emulation/simt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulation/access_checker.h"
#include "tests/emulation/primitives.h"

namespace zerobox {
namespace {

using simt::KernelLaunch;
using simt::Order;

class Simt : public testing::Test {
 protected:
  void TearDown() override {
    simt::options() = {};
    EXPECT_TRUE(simt::TakeReports().empty());
  }
};

// The numbers of blocks and, of each, of threads, in the order in which they ran.
using Trace = std::vector<std::pair<uint32_t, uint32_t>>;
Trace RunAndTrace(dim3 grid, dim3 block) {
  Trace trace;
  simt::Run({.grid = grid, .block = block, .thread = [&] {
               const simt::Thread& thread = *simt::current_thread;
               const uint3 index = thread.block->index;
               trace.emplace_back(
                   (index.z * grid.y + index.y) * grid.x + index.x,
                   (thread.index.z * block.y + thread.index.y) * block.x + thread.index.x);
             }});
  return trace;
}

TEST_F(Simt, RunsBlocksAndThreadsInTheOrderAsked) {
  const dim3 grid(3, 2, 2), block(5, 3, 2);
  Trace all;
  for (uint32_t b = 0; b < 12; ++b) {
    for (uint32_t t = 0; t < 30; ++t) all.emplace_back(b, t);
  }
  EXPECT_EQ(RunAndTrace(grid, block), all);

  simt::options().order = Order::kReverse;
  Trace reversed = RunAndTrace(grid, block);
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(reversed, all);

  simt::options() = {.order = Order::kRandom, .seed = 1};
  Trace random = RunAndTrace(grid, block);
  EXPECT_EQ(RunAndTrace(grid, block), random);
  simt::options().seed = 2;
  EXPECT_NE(RunAndTrace(grid, block), random);
  EXPECT_NE(random, all);
  std::sort(random.begin(), random.end());
  EXPECT_EQ(random, all);
}

TEST_F(Simt, LetsBarriersOrderThreadsOfABlock) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    simt::options().order = order;
    std::vector<int> arrived(4), sums;
    simt::Run({.grid = dim3(4), .block = dim3(100), .thread = [&] {
                 ++arrived[simt::current_thread->block->index.x];
                 const int odd =
                     simt::BlockBarrier(simt::Barrier::kCount,
                                        simt::current_thread->number % 2 == 1, simt::Site::Here());
                 sums.push_back(arrived[simt::current_thread->block->index.x] + odd);
               }});
    EXPECT_EQ(sums, std::vector<int>(400, 100 + 50));
  }
}

TEST_F(Simt, RunsGridsOnSeveralOsThreadsAtOnce) {
  std::vector<int> counts(4);
  {
    std::vector<std::jthread> workers;
    for (int& count : counts) {
      workers.emplace_back([&count] {
        for (int i = 0; i < 20; ++i) {
          simt::Run({.grid = dim3(2), .block = dim3(64), .thread = [&count] {
                       simt::BlockBarrier(simt::Barrier::kPlain, false, simt::Site::Here());
                       ++count;
                     }});
        }
      });
    }
  }
  EXPECT_EQ(counts, std::vector<int>(4, 20 * 2 * 64));
}

TEST_F(Simt, HandsLaunchesToTheRuntimeThatIsSet) {
  std::vector<KernelLaunch> queue;
  simt::SetLauncher([&](cudaStream_t, KernelLaunch launch) {
    queue.push_back(std::move(launch));
    return cudaErrorNotReady;
  });
  int runs = 0;
  EXPECT_EQ(simt::Launch(nullptr, {.grid = dim3(1), .block = dim3(1), .thread = [&] { ++runs; }}),
            cudaErrorNotReady);
  simt::SetLauncher(nullptr);
  EXPECT_EQ(runs, 0);
  ASSERT_EQ(queue.size(), 1u);
  simt::Run(queue[0]);
  EXPECT_EQ(runs, 1);
}

// Operations 1 and 3 are on one stream, operation 2 on another.
TEST_F(Simt, AsksTheStreamsForTheOrderOfOperations) {
  simt::AccessChecker* checker = simt::access_checker();
  if (checker == nullptr) GTEST_SKIP() << "no checker of accesses in this build";
  checker->SetStreamOrder([](uint32_t earlier, uint32_t later) { return earlier % 2 == later % 2; },
                          [](uint32_t number) { return "operation " + std::to_string(number); });
  float value = 0;
  checker->Watch(&value, sizeof(value), simt::MemoryKind::kDevice);
  const auto access = [&](uint32_t operation, simt::AccessKind kind) {
    checker->SetOperation(operation);
    checker->HostAccess(&value, sizeof(value), kind);
    return simt::TakeReports();
  };
  EXPECT_TRUE(access(1, simt::AccessKind::kWrite).empty());
  EXPECT_TRUE(access(3, simt::AccessKind::kRead).empty());
  const auto reports = access(2, simt::AccessKind::kRead);
  ASSERT_FALSE(reports.empty());
  EXPECT_NE(reports[0].find("in operation 2, unordered after"), std::string::npos) << reports[0];
  // The reader of operation 3 is not forgotten for that of 2.
  EXPECT_FALSE(access(2, simt::AccessKind::kWrite).empty());
  checker->SetOperation(0);
  checker->SetStreamOrder(nullptr, nullptr);
  checker->Forget(&value);
}

}  // namespace
}  // namespace zerobox
