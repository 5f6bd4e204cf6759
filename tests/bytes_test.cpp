// SPDX-License-Identifier: Apache-2.0
//
// Bytes of real runs: what the devices held and sent is what the plan said, and what formulas of
// the model's shape say.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "ops/device/device.h"
#include "ops/device/recorder.h"
#include "tests/expected_bytes.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t Sum(const PerCategory<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t Of(const PerCategory<int64_t>& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

TrainSettings Settings(int stage, int devices) {
  TrainSettings settings = SmallSettings();
  settings.zero_stage = stage;
  settings.devices = devices;
  settings.steps = 3;
  return settings;
}

// Trains, and holds memory and traffic of every rank against the plan and the formulas.
SmallRun RunAndCompare(const TrainSettings& settings) {
  SmallRun run = RunSmall(settings);
  EXPECT_TRUE(run.result.status.ok()) << run.result.status;
  if (!run.result.status.ok()) return run;
  const ExpectedBytes expected(settings);
  EXPECT_EQ(run.result.ranks.size(), static_cast<size_t>(settings.devices));
  for (size_t rank = 0; rank < run.result.ranks.size(); ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    const RankResult& measured = run.result.ranks[rank];
    const RankPlan& plan = run.plan.ranks[rank];
    EXPECT_EQ(measured.memory.live, expected.Persistent());
    EXPECT_EQ(measured.memory.live, plan.memory.live);
    EXPECT_EQ(measured.memory.live_bytes, Sum(expected.Persistent()));
    EXPECT_EQ(measured.memory.at_peak, expected.AtPeak());
    EXPECT_EQ(measured.memory.at_peak, plan.memory.at_peak);
    EXPECT_EQ(measured.memory.peak_bytes, Sum(measured.memory.at_peak));
    EXPECT_EQ(measured.memory.peak_bytes, plan.memory.peak_bytes);
    EXPECT_EQ(measured.memory.peak, plan.memory.peak);
    EXPECT_EQ(Of(measured.memory.peak, Category::kActivations), expected.ActivationsPeak());
    EXPECT_EQ(Of(measured.memory.peak, Category::kCommunicationBuffers),
              expected.CommunicationBuffersPeak());
    EXPECT_EQ(measured.capacity_bytes, settings.device_memory_bytes);

    EXPECT_EQ(measured.step_traffic, expected.StepTraffic());
    EXPECT_EQ(measured.step_traffic, plan.step_traffic);
    EXPECT_EQ(measured.step_copies.from_host, expected.FromHost());
    EXPECT_EQ(measured.step_copies.from_host, plan.step_copies.from_host);
    EXPECT_EQ(measured.step_copies.to_host, expected.ToHost());
    EXPECT_EQ(measured.step_copies.to_host, plan.step_copies.to_host);
    EXPECT_EQ(measured.poisoned_bytes, 0);
    EXPECT_EQ(measured.host_poisoned_bytes, 0);
  }
  return run;
}

class Bytes : public testing::TestWithParam<int> {};  // devices

TEST_P(Bytes, HeldAndSentAreThePlannedOnesInEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t micro_batches : {1, 3}) {
      for (const int64_t bucket_bytes : {25 * kMiB, int64_t{1}, int64_t{20000}}) {
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", m = " << micro_batches
                                        << ", bucket_bytes " << bucket_bytes);
        TrainSettings settings = Settings(stage, GetParam());
        settings.grad_accum = micro_batches;
        settings.bucket_bytes = bucket_bytes;
        RunAndCompare(settings);
      }
    }
  }
}

TEST_P(Bytes, DoNotDependOnDropoutBatchOrDepthBeyondTheFormulas) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    TrainSettings settings = Settings(stage, GetParam());
    settings.dropout = 0;
    settings.micro_batch = 3;
    settings.model.n_layer = 5;
    RunAndCompare(settings);
    settings.model.n_layer = 1;
    RunAndCompare(settings);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Bytes, testing::Values(1, 2, 4, 8),
                         [](const auto& info) { return std::to_string(info.param); });

// Of each rank, by hand. Psi = 30,954: ends of 3,960 elements, two blocks of 13,497, each padded to
// a multiple of 64 N. Whole states are 4, 4 and 8 bytes an element; a rank keeps all of them, or a
// 1/N of what its stage shards. To reduce-scatter or to gather all of them is (N-1)/N of 4 bytes an
// element, to all-reduce them twice that. Stage 3 gathers twice, but the last block once. Scalars
// are N squares of 8 bytes, all-reduced.
struct Row {
  int64_t parameters, gradients, optimizer_states;
  int64_t all_gather, reduce_scatter, all_reduce, scalars;
};
struct Table {
  int devices;
  int64_t padded;
  Row stages[4];
};
constexpr Table kTables[] = {
    {1,
     3'968 + 2 * 13'504,
     {{123'904, 123'904, 247'808, 0, 0, 0, 0},
      {123'904, 123'904, 247'808, 0, 0, 0, 0},
      {123'904, 123'904, 247'808, 0, 0, 0, 0},
      {123'904, 123'904, 247'808, 0, 0, 0, 0}}},
    {2,
     3'968 + 2 * 13'568,
     {{124'416, 124'416, 248'832, 0, 0, 2 * 62'208, 0},
      {124'416, 124'416, 124'416, 62'208, 62'208, 0, 16},
      {124'416, 62'208, 124'416, 62'208, 62'208, 0, 16},
      {62'208, 62'208, 124'416, 2 * 62'208 - 27'136, 62'208, 0, 16}}},
    {4,
     4'096 + 2 * 13'568,
     {{124'928, 124'928, 249'856, 0, 0, 2 * 93'696, 0},
      {124'928, 124'928, 62'464, 93'696, 93'696, 0, 48},
      {124'928, 31'232, 62'464, 93'696, 93'696, 0, 48},
      {31'232, 31'232, 62'464, 2 * 93'696 - 40'704, 93'696, 0, 48}}},
    {8,
     4'096 + 2 * 13'824,
     {{126'976, 126'976, 253'952, 0, 0, 2 * 111'104, 0},
      {126'976, 126'976, 31'744, 111'104, 111'104, 0, 112},
      {126'976, 15'872, 31'744, 111'104, 111'104, 0, 112},
      {15'872, 15'872, 31'744, 2 * 111'104 - 48'384, 111'104, 0, 112}}},
};

TEST(Bytes, HeldAndSentAreTheseForTheSmallModel) {
  for (const Table& table : kTables) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(testing::Message() << table.devices << " devices, stage " << stage);
      const SmallRun run = RunSmall(Settings(stage, table.devices));
      ASSERT_TRUE(run.result.status.ok()) << run.result.status;
      EXPECT_EQ(run.plan.parameters, 30'954);
      EXPECT_EQ(run.plan.padding, table.padded - 30'954);
      const Row& expected = table.stages[stage];
      for (int rank = 0; rank < table.devices; ++rank) {
        EXPECT_EQ(LiveBytes(run, rank, Category::kParameters), expected.parameters);
        EXPECT_EQ(LiveBytes(run, rank, Category::kGradients), expected.gradients);
        EXPECT_EQ(LiveBytes(run, rank, Category::kOptimizerStates), expected.optimizer_states);
        EXPECT_EQ(LiveBytes(run, rank, Category::kActivations), 0);
        EXPECT_EQ(LiveBytes(run, rank, Category::kActivationCheckpoints), 0);
        EXPECT_EQ(LiveBytes(run, rank, Category::kCommunicationBuffers), 0);
        EXPECT_EQ(Counted(run, rank, Collective::kAllGather).bytes_sent, expected.all_gather);
        EXPECT_EQ(Counted(run, rank, Collective::kReduceScatter).bytes_sent,
                  expected.reduce_scatter);
        EXPECT_EQ(Counted(run, rank, Collective::kAllReduce).bytes_sent, expected.all_reduce);
        EXPECT_EQ(Counted(run, rank, Collective::kBroadcast), CollectiveCount{});
        EXPECT_EQ(run.result.ranks[rank].step_traffic.scalars.bytes_sent, expected.scalars);
      }
    }
  }
}

// Three quarters of the parameters are the token embedding, which the head shares: reduced or
// gathered once too often, it would show.
TEST(Bytes, ReduceAndGatherATiedEmbeddingOnce) {
  TrainSettings settings = Settings(0, 4);
  settings.model = {.n_layer = 3, .n_head = 3, .n_embd = 12, .seq_len = 17, .vocab_size = 1501};
  // Ends of 1501 x 12 + 17 x 12 + 24 = 18,240 elements, blocks of 1,884: padded 18,432 and 2,048.
  constexpr int64_t kPsi = 18'240 + 3 * 1'884;
  constexpr int64_t kPadded = 18'432 + 3 * 2'048;
  ASSERT_GT(2 * 1501 * 12, kPsi);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t m : {1, 3}) {
      SCOPED_TRACE(testing::Message() << "stage " << stage << ", m = " << m);
      settings.zero_stage = stage;
      settings.grad_accum = m;
      const SmallRun run = RunAndCompare(settings);
      ASSERT_TRUE(run.result.status.ok());
      EXPECT_EQ(run.plan.parameters, kPsi);
      constexpr int64_t kOnce = 4 * kPadded * 3 / 4;  // 73,728
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(Counted(run, rank, Collective::kAllReduce).bytes_sent,
                  stage == 0 ? 2 * kOnce : 0);
        EXPECT_EQ(Counted(run, rank, Collective::kReduceScatter).bytes_sent, stage == 0 ? 0
                                                                             : stage == 1
                                                                                 ? kOnce
                                                                                 : m * kOnce);
        EXPECT_EQ(Counted(run, rank, Collective::kAllGather).bytes_sent,
                  stage == 0  ? 0
                  : stage < 3 ? kOnce
                              : m * (2 * kOnce - 4 * 2'048 * 3 / 4));
      }
    }
  }
}

// The evaluation after a step gathers what the step has left stale.
TEST(Bytes, OfAStepAfterAnEvaluationAreThePlannedOnesToo) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    TrainSettings settings = Settings(stage, 4);
    settings.eval_interval = 1;
    const SmallRun run = RunSmall(settings);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(run.result.ranks[rank].step_traffic, run.plan.ranks[rank].step_traffic);
      EXPECT_EQ(Counted(run, rank, Collective::kAllGather).bytes_sent == 0, stage < 3);
      EXPECT_EQ(run.result.ranks[rank].memory.peak, run.plan.ranks[rank].memory.peak);
      EXPECT_EQ(run.result.ranks[rank].memory.at_peak, ExpectedBytes(settings).AtPeak());
    }
  }
}

TEST(Bytes, OfOneStepAreThePlannedOnesToo) {
  for (int stage = 0; stage <= 3; ++stage) {
    TrainSettings settings = Settings(stage, 4);
    settings.steps = 1;
    const SmallRun run = RunSmall(settings);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(run.result.ranks[rank].step_traffic, run.plan.ranks[rank].step_traffic);
      EXPECT_EQ(run.result.ranks[rank].memory.at_peak, ExpectedBytes(settings).AtPeak());
    }
  }
}

// Takes `bytes` on one rank, beside what the run itself takes.
TrainHooks TakeOnRank(int rank, int64_t bytes) {
  TrainHooks hooks;
  hooks.after_setup = [=](int r, Device& device) {
    if (r != rank) return;
    device.Allocate(Region::kPersistent, Category::kWorkspace, DType::kFloat32, bytes / 4, "extra");
  };
  return hooks;
}

TEST(Bytes, OfAnotherMegabyteOnRank2AreInItsRowOnly) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    const TrainSettings settings = Settings(stage, 4);
    const SmallRun reference = RunSmall(settings);
    TrainHooks hooks = TakeOnRank(2, kMiB);
    hooks.extra_bytes = kMiB;
    const SmallRun run = RunSmall(settings, hooks);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank);
      Ledger expected = reference.result.ranks[rank].memory;
      if (rank == 2) {
        const auto workspace = static_cast<size_t>(Category::kWorkspace);
        expected.live[workspace] += kMiB;
        expected.peak[workspace] += kMiB;
        expected.at_peak[workspace] += kMiB;
        expected.live_bytes += kMiB;
        expected.peak_bytes += kMiB;
      }
      const Ledger& measured = run.result.ranks[rank].memory;
      EXPECT_EQ(measured.live, expected.live);
      EXPECT_EQ(measured.peak, expected.peak);
      EXPECT_EQ(measured.at_peak, expected.at_peak);
      EXPECT_EQ(measured.live_bytes, expected.live_bytes);
      EXPECT_EQ(measured.peak_bytes, expected.peak_bytes);
      EXPECT_EQ(run.plan.ranks[rank].memory.peak_bytes,
                reference.plan.ranks[rank].memory.peak_bytes);
    }
    EXPECT_EQ(run.parameters, reference.parameters);
  }
}

TEST(Bytes, BeyondThePlanAreRefused) {
  // The pool is exactly as large as the plan says: what nobody planned has no room.
  const SmallRun run = RunSmall(Settings(3, 4), TakeOnRank(2, 4));
  EXPECT_EQ(run.result.status.code(), absl::StatusCode::kResourceExhausted) << run.result.status;
  EXPECT_NE(std::string(run.result.status.message()).find("\"extra\" (workspace)"),
            std::string::npos)
      << run.result.status;
}

// Adds up what each rank allocates over a whole run, transient memory included.
class AllocationCounter final : public Recorder {
 public:
  int64_t bytes(int rank) const { return bytes_[rank]; }
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int rank, Region, Category, std::string_view, const Buffer& buffer) override {
    bytes_[rank] += (buffer.bytes() + 127) / 128 * 128;
  }
  void OnFree(int, const Buffer&) override {}

 private:
  std::array<int64_t, 8> bytes_{};  // each written by its own rank's worker only
};

TEST(Poison, InAllFreshMemoryChangesNoBit) {
  for (const int devices : {1, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t bucket_bytes : {25 * kMiB, int64_t{1}}) {
        for (const int64_t micro_batches : {1, 2}) {
          SCOPED_TRACE(testing::Message()
                       << devices << " devices, stage " << stage << ", bucket_bytes "
                       << bucket_bytes << ", m = " << micro_batches);
          TrainSettings settings = Settings(stage, devices);
          settings.bucket_bytes = bucket_bytes;
          settings.grad_accum = micro_batches;
          settings.eval_interval = 2;
          const SmallRun reference = RunSmall(settings);
          TrainHooks hooks;
          hooks.poison = true;
          AllocationCounter allocated;
          hooks.recorder = &allocated;
          const SmallRun run = RunSmall(settings, hooks);
          ASSERT_TRUE(run.result.status.ok()) << run.result.status;
          EXPECT_EQ(run.parameters, reference.parameters);
          for (int64_t step = 0; step < settings.steps; ++step) {
            EXPECT_EQ(run.result.step_metrics[step].loss, reference.result.step_metrics[step].loss);
            EXPECT_EQ(run.result.step_metrics[step].grad_norm,
                      reference.result.step_metrics[step].grad_norm);
          }
          ASSERT_EQ(run.result.eval_metrics.size(), reference.result.eval_metrics.size());
          for (size_t i = 0; i < run.result.eval_metrics.size(); ++i) {
            EXPECT_EQ(run.result.eval_metrics[i].val_loss,
                      reference.result.eval_metrics[i].val_loss);
          }
          // All that persists, and every activation of every forward pass, was NaN at first.
          const ExpectedBytes expected(settings);
          for (int r = 0; r < devices; ++r) {
            const RankResult& rank = run.result.ranks[r];
            EXPECT_EQ(rank.poisoned_bytes, allocated.bytes(r));
            EXPECT_EQ(rank.host_poisoned_bytes, 0);  // nothing is offloaded
            EXPECT_GE(rank.poisoned_bytes,
                      Sum(expected.Persistent()) +
                          settings.steps * micro_batches * expected.ForwardActivations());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zerobox
