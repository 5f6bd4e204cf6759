// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the ranks' posts.
#include "trainer/board.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tests/small_run.h"

namespace zerobox {
namespace {

TEST(Board, KeepsStepsApartWhereADeviceIsAStepAheadOfASlowWorker) {
  TrainSettings settings = SmallSettings();
  settings.devices = 2;
  const SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  Board board(settings, dataset, nullptr);
  const auto start = std::chrono::steady_clock::now();
  const auto post = [&](int rank, int64_t step, double loss_sum, double exposed_seconds,
                        int done_seconds) {
    board.PostStep(rank, step,
                   {.loss_sum = loss_sum,
                    .exposed_seconds = exposed_seconds,
                    .done = start + std::chrono::seconds(done_seconds)},
                   /*targets=*/10);
  };
  post(0, 1, 20, 0.5, 10);
  post(0, 2, 4, 0.25, 14);  // rank 1 has begun step 2, and has not posted step 1
  post(1, 1, 30, 1.5, 11);
  post(0, 3, 1, 2, 19);
  post(1, 2, 5, 0.75, 13);
  post(1, 3, 2, 4, 18);
  RunResult result;
  board.MoveTo(result);
  ASSERT_EQ(result.steps, 3);
  const double losses[] = {5, 0.9, 0.3}, exposed[] = {1, 0.5, 3};
  // From the last device's end of a step to the last one's of the next, whenever they are posted.
  EXPECT_EQ(result.step_metrics[1].step_seconds, 14 - 11);
  EXPECT_EQ(result.step_metrics[2].step_seconds, 19 - 14);
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    EXPECT_EQ(result.step_metrics[step].step, step + 1);
    EXPECT_EQ(result.step_metrics[step].loss, losses[step]);
    EXPECT_EQ(result.step_metrics[step].exposed_seconds, exposed[step]);
  }
}

}  // namespace
}  // namespace zerobox
