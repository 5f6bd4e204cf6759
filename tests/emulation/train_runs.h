// SPDX-License-Identifier: Apache-2.0
//
// What a training run on GPUs must have in common with the same run on host devices.
#ifndef ZEROBOX_TESTS_EMULATION_TRAIN_RUNS_H_
#define ZEROBOX_TESTS_EMULATION_TRAIN_RUNS_H_

#include <gtest/gtest.h>

#include <cstddef>

#include "tests/cuda_runs.h"
#include "tests/small_run.h"
#include "tests/trace_checks.h"

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

// The recorded step is the host's, at times of its own.
inline void ExpectSameTrace(const SmallRun& gpu, const SmallRun& host,
                            const TrainSettings& settings) {
  ExpectTraceAgrees(settings, gpu);
  ASSERT_TRUE(gpu.result.trace.has_value() && host.result.trace.has_value());
  EXPECT_EQ(gpu.result.trace->step, host.result.trace->step);
  EXPECT_EQ(gpu.result.trace->ops, host.result.trace->ops);
}

// Two ranks that use everything there is in one step, an evaluation and the reading of the model:
// stage 3, with all offloaded that can be.
inline TrainSettings OneStepOfEverything(bool on_one_gpu) {
  TrainSettings settings = SettingsOf(CudaRunKind{.name = "",
                                                  .dtype = DType::kBFloat16,
                                                  .stage = 3,
                                                  .checkpointing = ActivationCheckpointing::kFull,
                                                  .offload_optimizer = true,
                                                  .offload_activations = true,
                                                  .devices = 2,
                                                  .on_one_gpu = on_one_gpu},
                                      "cuda");
  settings.threads = 1;
  settings.model = {.n_layer = 3, .n_head = 1, .n_embd = 8, .seq_len = 3, .vocab_size = 19};
  settings.micro_batch = 1;
  settings.steps = 1;
  settings.eval_interval = 1;
  return settings;
}

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_EMULATION_TRAIN_RUNS_H_
