// SPDX-License-Identifier: Apache-2.0
//
// Each seeded bug is found by every build that can find it; without the bug, no build finds one.
#include "tests/emulation/seeded_bugs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using seeded_bugs::Bug;
using seeded_bugs::kIn;
using seeded_bugs::kOut;
using simt::Order;

// How a bug shows.
struct Row {
  Bug bug;
  const char* name;
  // What the emulator reports, in every build and order; null: nothing.
  const char* report = nullptr;
  // What the checker of accesses reports, in every order.
  const char* checker = nullptr;
  // What the address or undefined-behaviour sanitizer says when it ends the program, in every
  // order.
  const char* sanitizer = nullptr;
  // Orders in which the numbers are wrong, in every build.
  std::vector<Order> wrong = {};
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
const std::vector<Order> kAll = {Order::kForward, Order::kReverse, Order::kRandom};
constexpr char kBeside[] = "AddressSanitizer: (use-after-poison|heap-buffer-overflow)";

const Row kRows[] = {
    {Bug::kMissingBarrier, "MissingBarrier", nullptr, "uninitialised read of shared", nullptr,
     kAll},
    {Bug::kMissingBarrierInPlace,
     "MissingBarrierInPlace",
     nullptr,
     "race of device",
     nullptr,
     {Order::kForward, Order::kReverse}},
    {Bug::kEarlyPrefetch, "EarlyPrefetch", nullptr, "race of shared", nullptr, kAll},
    {Bug::kMissingWait, "MissingWait", "without a wait", nullptr, nullptr, kAll},
    {Bug::kWaitBehindBarrier, "WaitBehindBarrier", nullptr, "race of shared", nullptr, kAll},
    {Bug::kMissingWarpBarrier, "MissingWarpBarrier", nullptr, "race of shared"},
    {Bug::kRaceBetweenBlocks, "RaceBetweenBlocks", nullptr, "write after write"},
    {Bug::kUninitialisedShared, "UninitialisedShared", nullptr, "uninitialised read of shared",
     nullptr, kAll},
    {Bug::kUninitialisedDevice, "UninitialisedDevice", nullptr, "uninitialised read of device",
     nullptr, kAll},
    {Bug::kOutOfBounds, "OutOfBounds", nullptr, nullptr, kBeside, kAll},
    {Bug::kOutOfBoundsShared, "OutOfBoundsShared", nullptr, nullptr, kBeside},
    {Bug::kOutOfBoundsDynamic, "OutOfBoundsDynamic", nullptr, nullptr, kBeside},
    {Bug::kOutOfBoundsRow, "OutOfBoundsRow", nullptr, nullptr, "out of bounds"},
    {Bug::kMisaligned, "Misaligned", "misaligned"},
    {Bug::kMisalignedCast, "MisalignedCast", nullptr, nullptr, "misaligned address"},
    {Bug::kDivergentBarrier, "DivergentBarrier", "divergent barrier"},
    {Bug::kSkippedBarrier, "SkippedBarrier", "divergent barrier"},
    {Bug::kMissingLane, "MissingLane", "divergent warp"},
    {Bug::kLaneOutsideMask, "LaneOutsideMask", "not in its mask"},
    {Bug::kDivergentCollectives, "DivergentCollectives", "divergent warp"},
    {Bug::kBarrierOrCollective, "BarrierOrCollective", "deadlock"},
    {Bug::kTooManyThreads, "TooManyThreads", "launch of"},
    {Bug::kTooMuchShared, "TooMuchShared", "launch of"},
};

constexpr bool SanitizerIsOn() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#else
  return false;
#endif
}

struct Outcome {
  cudaError_t error;
  bool numbers_are_right;
  std::vector<std::string> reports;
  bool HasReport(const std::string& part) const {
    return std::any_of(reports.begin(), reports.end(), [&](const std::string& report) {
      return report.find(part) != std::string::npos;
    });
  }
};

Outcome RunKernel(Bug bug, bool with_bug) {
  const DeviceArray<float> in(std::vector<float>(kIn, 1));
  DeviceArray<float> out(kOut), scratch(kOut);
  Outcome outcome;
  outcome.error = seeded_bugs::Run(bug, with_bug, out.data(), in.data(), scratch.data());
  outcome.reports = simt::TakeReports();
  outcome.numbers_are_right =
      std::all_of(out.data(), out.data() + kOut, [](float value) { return value == 1; });
  return outcome;
}

class SeededBugs : public testing::TestWithParam<Row> {
 protected:
  void TearDown() override { simt::options() = {}; }
};
INSTANTIATE_TEST_SUITE_P(, SeededBugs, testing::ValuesIn(kRows),
                         [](const testing::TestParamInfo<Row>& row) {
                           return std::string(row.param.name);
                         });

TEST_P(SeededBugs, AreFound) {
  const Row& row = GetParam();
  for (const Order order : kAll) {
    SCOPED_TRACE(static_cast<int>(order));
    simt::options().order = order;
    if (SanitizerIsOn() && row.sanitizer != nullptr) {
      EXPECT_DEATH(RunKernel(row.bug, true), row.sanitizer);
      continue;
    }
    const Outcome outcome = RunKernel(row.bug, true);
    const std::string reports = testing::PrintToString(outcome.reports);
    if (row.report != nullptr) {
      EXPECT_TRUE(outcome.HasReport(row.report)) << reports;
    } else if (simt::access_checker() == nullptr) {
      EXPECT_TRUE(outcome.reports.empty()) << reports;
    }
    if (simt::access_checker() != nullptr && row.checker != nullptr) {
      EXPECT_TRUE(outcome.HasReport(row.checker)) << reports;
    }
    if (std::count(row.wrong.begin(), row.wrong.end(), order) > 0) {
      EXPECT_FALSE(outcome.numbers_are_right);
    }
  }
}

TEST_P(SeededBugs, AreNotFoundWhereThereAreNone) {
  for (const Order order : kAll) {
    SCOPED_TRACE(static_cast<int>(order));
    simt::options().order = order;
    const Outcome outcome = RunKernel(GetParam().bug, false);
    EXPECT_EQ(outcome.error, cudaSuccess);
    EXPECT_TRUE(outcome.numbers_are_right);
    EXPECT_TRUE(outcome.reports.empty()) << testing::PrintToString(outcome.reports);
  }
}

// Every bug shows in some build, and a build that has a column finds all that stand in it.
TEST(SeededBugsTable, HasAWayToFindEachBug) {
  for (const Row& row : kRows) {
    EXPECT_TRUE(row.report != nullptr || row.checker != nullptr || row.sanitizer != nullptr)
        << row.name;
  }
}

TEST(Reports, SayWhereInTheSourceAndWhichThread) {
  simt::options() = {};
  const Outcome barrier = RunKernel(Bug::kDivergentBarrier, true);
  ASSERT_EQ(barrier.reports.size(), 1u);
  EXPECT_TRUE(barrier.HasReport("seeded_bugs.cu:")) << barrier.reports[0];
  EXPECT_TRUE(barrier.HasReport("DivergentBarrier<true> block (0,0,0) thread (32,0,0)"))
      << barrier.reports[0];
  if (simt::access_checker() == nullptr) return;
  const Outcome race = RunKernel(Bug::kMissingWarpBarrier, true);
  ASSERT_FALSE(race.reports.empty());
  EXPECT_TRUE(race.HasReport("read after write")) << race.reports[0];
  EXPECT_TRUE(race.HasReport("at seeded_bugs.cu:")) << race.reports[0];
}

}  // namespace
}  // namespace zerobox
