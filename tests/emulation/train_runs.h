// SPDX-License-Identifier: Apache-2.0
//
// What a training run on GPUs must have in common with the same run on host devices.
#ifndef ZEROBOX_TESTS_EMULATION_TRAIN_RUNS_H_
#define ZEROBOX_TESTS_EMULATION_TRAIN_RUNS_H_

#include <gtest/gtest.h>

#include <cstddef>

#include "tests/cuda_runs.h"
#include "tests/small_run.h"

namespace zerobox {

inline void ExpectSameLosses(const SmallRun& gpu, const SmallRun& host, DType dtype) {
  const LossDifference difference = Difference(gpu.result, host.result);
  EXPECT_TRUE(difference.value <= LossTolerance(dtype)) << difference.where;
}

inline void ExpectEqual(const Ledger& found, const Ledger& expected) {
  EXPECT_EQ(found.live, expected.live);
  EXPECT_EQ(found.peak, expected.peak);
  EXPECT_EQ(found.at_peak, expected.at_peak);
  EXPECT_EQ(found.peak_bytes, expected.peak_bytes);
}

// Every rank's memory, traffic and copies: those of the host's run, and those that were planned.
inline void ExpectSameTables(const SmallRun& gpu, const SmallRun& host) {
  ASSERT_EQ(gpu.result.ranks.size(), host.result.ranks.size());
  for (size_t rank = 0; rank < host.result.ranks.size(); ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    const RankResult& found = gpu.result.ranks[rank];
    const RankResult& expected = host.result.ranks[rank];
    ExpectEqual(found.memory, expected.memory);
    ExpectEqual(found.host_memory, expected.host_memory);
    EXPECT_EQ(found.step_traffic, expected.step_traffic);
    EXPECT_EQ(found.step_traffic, gpu.plan.ranks[rank].step_traffic);
    EXPECT_EQ(found.step_copies, expected.step_copies);
    EXPECT_EQ(found.step_copies, gpu.plan.ranks[rank].step_copies);
  }
}

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_EMULATION_TRAIN_RUNS_H_
