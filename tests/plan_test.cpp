// SPDX-License-Identifier: Apache-2.0
//
// The plan of a run: it costs nothing, and says to the byte what the formulas say.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>

#include "tests/expected_bytes.h"
#include "tests/small_run.h"
#include "trainer/train.h"
#include "zero/formulas.h"

namespace zerobox {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kAFewMegabytes = 512 * kMiB;  // with what sanitizers keep of freed memory
#else
constexpr int64_t kAFewMegabytes = 16 * kMiB;
#endif
const ModelConfig kGpt2 = {12, 12, 768, 1024, 50257};
const ModelConfig kGpt2Xl = {48, 25, 1600, 1024, 50257};

TrainSettings Settings(const ModelConfig& model, int stage, int devices, int64_t micro_batches) {
  TrainSettings settings;
  settings.model = model;
  settings.zero_stage = stage;
  settings.devices = devices;
  settings.grad_accum = micro_batches;
  return settings;
}

RunPlan Plan(const TrainSettings& settings) {
  absl::StatusOr<RunPlan> plan = PlanRun(settings);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : RunPlan{};
}

// A line of /proc/self/status, such as VmHWM (the most resident memory so far), in bytes.
int64_t ProcessMemory(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string name;
  while (file >> name) {
    int64_t kilobytes = 0;
    if (name == field + ":" && file >> kilobytes) return kilobytes * 1024;
    std::getline(file, name);
  }
  return -1;
}

int64_t Sum(const PerCategory<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t Of(const PerCategory<int64_t>& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

// Calls check(settings) for every stage, N and m.
template <typename Check>
void ForEachRun(const ModelConfig& model, const Check& check) {
  for (const int devices : {1, 2, 4, 8}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t micro_batches : {1, 3}) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << ", N = " << devices << ", m = " << micro_batches);
        check(Settings(model, stage, devices, micro_batches));
      }
    }
  }
}

TEST(Plan, AllocatesNothingHoweverLargeTheModel) {
  Plan(Settings({}, 3, 2, 1));  // what the first plan of a process sets up
  const int64_t resident = ProcessMemory("VmHWM");
  const int64_t reserved = ProcessMemory("VmPeak");
  ASSERT_GT(resident, 0);
  ASSERT_GT(reserved, 0);
  for (const ModelConfig& model : {kGpt2, kGpt2Xl}) {
    for (int stage = 0; stage <= 3; ++stage) {
      TrainSettings settings = Settings(model, stage, 8, 3);
      settings.steps = 1'000'000;  // walks two of them
      const RunPlan plan = Plan(settings);
      ASSERT_EQ(plan.ranks.size(), 8u);
      // Gigabytes are planned for each device,
      EXPECT_GT(plan.ranks[0].memory.peak_bytes, 2048 * kMiB);
    }
  }
  // and a few megabytes at most are taken.
  EXPECT_LT(ProcessMemory("VmHWM") - resident, kAFewMegabytes);
  EXPECT_LT(ProcessMemory("VmPeak") - reserved, 4 * kAFewMegabytes);
}

TEST(Plan, CountsTheParametersOfGpt2) {
  const RunPlan plan = Plan(Settings(kGpt2, 3, 8, 1));
  EXPECT_EQ(plan.parameters, 124'439'808);
  // Padded to multiples of 8 x 64: the token embedding, 50257 x 768 elements, by 256; the bucket of
  // the position embedding and the final norm, 1026 x 768, by nothing; a block's two buckets, of
  // 4,727,808 and 2,360,064 elements, by 0 and 256.
  EXPECT_EQ(plan.padding, 256 + 12 * 256);
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(Of(rank.memory.live, Category::kParameters), (124'439'808 + 13 * 256) / 2);
    EXPECT_EQ(Of(rank.memory.live, Category::kGradients), (124'439'808 + 13 * 256) / 2);
    EXPECT_EQ(Of(rank.memory.live, Category::kOptimizerStates), 124'439'808 + 13 * 256);
  }
}

void ExpectPlannedMemory(const TrainSettings& settings) {
  const ExpectedBytes expected(settings);
  const RunPlan plan = Plan(settings);
  EXPECT_EQ(plan.parameters, expected.psi());
  EXPECT_EQ(plan.padding, expected.padded() - expected.psi());
  ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(settings.devices));
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.memory.live, expected.Persistent());
    EXPECT_EQ(rank.memory.at_peak, expected.AtPeak());
    EXPECT_EQ(rank.memory.peak_bytes, Sum(expected.AtPeak()));
    EXPECT_EQ(Of(rank.memory.peak, Category::kActivations), expected.ActivationsPeak());
    EXPECT_EQ(Of(rank.memory.peak, Category::kCommunicationBuffers),
              expected.CommunicationBuffersPeak());
    EXPECT_EQ(Of(rank.memory.peak, Category::kActivationCheckpoints), expected.CheckpointsPeak());
    EXPECT_EQ(rank.host_memory.live, expected.PersistentOnHost());
  }
}

TEST(Plan, HoldsWhatTheFormulasSayInEveryCategory) {
  ForEachRun(kGpt2, ExpectPlannedMemory);
  ForEachRun({4, 4, 128, 128, 256}, ExpectPlannedMemory);
  ForEachRun(SmallSettings().model, ExpectPlannedMemory);
  ForEachRun({1, 3, 33, 17, 101}, ExpectPlannedMemory);
  ForEachRun({3, 3, 12, 17, 1501}, ExpectPlannedMemory);
}

TEST(Plan, HoldsWhatTheFormulasSayForEveryBucketSize) {
  for (const int64_t bucket_bytes : {1, 4000, 20000, 60000}) {
    for (const double dropout : {0.0, 0.1}) {
      SCOPED_TRACE(testing::Message()
                   << "bucket_bytes " << bucket_bytes << ", dropout " << dropout);
      ForEachRun(SmallSettings().model, [&](TrainSettings settings) {
        settings.bucket_bytes = bucket_bytes;
        settings.dropout = dropout;
        ExpectPlannedMemory(settings);
      });
    }
  }
}

// Every type, way of checkpointing and offload.
void ExpectPlanned(TrainSettings settings, const std::function<void(const TrainSettings&)>& check) {
  using enum ActivationCheckpointing;
  const StateTypes types[] = {{DType::kFloat32, DType::kFloat32},
                              {DType::kBFloat16, DType::kBFloat16},
                              {DType::kBFloat16, DType::kFloat32}};
  for (const StateTypes& type : types) {
    for (const ActivationCheckpointing mode : {kNone, kSelective, kFull}) {
      for (const bool activations : {false, true}) {
        if (activations && mode == kNone) continue;
        for (const bool optimizer : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << Name(type.parameters) << "/" << Name(type.gradients) << ", checkpointing "
                       << static_cast<int>(mode) << ", offload " << optimizer << activations);
          settings.dtype = type.parameters;
          settings.grad_accum_dtype = type.gradients;
          settings.activation_checkpointing = mode;
          settings.offload_activations = activations;
          settings.offload_optimizer = optimizer;
          check(settings);
        }
      }
    }
  }
}

TEST(Plan, HoldsWhatTheFormulasSayInEveryTypeAndOffload) {
  for (const ModelConfig& model : {kGpt2, SmallSettings().model, ModelConfig{5, 3, 33, 17, 11}}) {
    ForEachRun(model,
               [](const TrainSettings& settings) { ExpectPlanned(settings, ExpectPlannedMemory); });
  }
}

// C_B: the buffers of stage 2 do not grow with the depth, nor with micro-batches; those of stage 3
// neither.
TEST(Plan, NeedsTheSameBuffersWhateverTheDepth) {
  for (const int64_t micro_batches : {1, 3}) {
    for (const int stage : {2, 3}) {
      const auto buffers = [&](int64_t layers) {
        ModelConfig model = kGpt2;
        model.n_layer = layers;
        const TrainSettings settings = Settings(model, stage, 8, micro_batches);
        return Of(Plan(settings).ranks[0].memory.peak, Category::kCommunicationBuffers);
      };
      const ExpectedBytes expected(Settings(kGpt2, stage, 8, 1));
      // The ends' gradient and two buckets; in stage 3 also two gathered blocks, or, at the head,
      // the ends' parameters, their gradient and the last block, which is more for this vocabulary.
      const int64_t bytes =
          stage == 2
              ? expected.ends() + 2 * expected.constant_size()
              : std::max(expected.ends() + 2 * expected.block() + 2 * expected.constant_size(),
                         2 * expected.ends() + expected.block());
      for (const int64_t layers : {2, 12, 96}) EXPECT_EQ(buffers(layers), bytes);
      // 4 bytes x the two buckets of the ends, and of a block 4,727,808 + 2,360,320 elements.
      EXPECT_EQ(expected.ends(), 4 * (50257 * 768 + 256 + 1026 * 768));
      EXPECT_EQ(expected.block(), 4 * (4'727'808 + 2'360'320));
      EXPECT_EQ(expected.constant_size(), 4 * 4'727'808);
    }
  }
}

TEST(Plan, OfOneRankPeaksLikeStage0InEveryStage) {
  for (const ModelConfig& model : {kGpt2, SmallSettings().model}) {
    for (const int64_t micro_batches : {1, 3}) {
      const RunPlan reference = Plan(Settings(model, 0, 1, micro_batches));
      for (int stage = 1; stage <= 3; ++stage) {
        const RunPlan plan = Plan(Settings(model, stage, 1, micro_batches));
        EXPECT_EQ(plan.ranks[0].memory.peak_bytes, reference.ranks[0].memory.peak_bytes);
        EXPECT_EQ(plan.ranks[0].memory.at_peak, reference.ranks[0].memory.at_peak);
        EXPECT_EQ(plan.ranks[0].memory.peak, reference.ranks[0].memory.peak);
        EXPECT_EQ(plan.ranks[0].regions, reference.ranks[0].regions);
        EXPECT_EQ(plan.ranks[0].step_traffic, Traffic{});
        EXPECT_TRUE(plan.differences.empty());
        EXPECT_EQ(plan.paper_bytes, (std::array<int64_t, kCollectives>{}));
      }
    }
  }
}

// A region is reserved for its own high-water mark, and the regions do not peak together, so the
// sum of the regions exceeds the ledger's peak by what one region leaves unused while another is
// full, and by the holes of first fit in the transient region.
TEST(Plan, ReservesTheHighWaterOfEveryRegion) {
  for (const ModelConfig& model : {kGpt2, SmallSettings().model}) {
    ForEachRun(model, [](const TrainSettings& settings) {
      const ExpectedBytes expected(settings);
      const RankPlan rank = Plan(settings).ranks[0];
      const auto region = [&](Region r) { return rank.regions[static_cast<size_t>(r)]; };
      EXPECT_EQ(region(Region::kPersistent), Sum(expected.Persistent()));
      EXPECT_EQ(region(Region::kCheckpoints), 0);
      EXPECT_EQ(region(Region::kActivations), expected.ActivationsPeak());
      const int64_t slack = ReservedBytes(rank.regions) - rank.memory.peak_bytes;
      const bool transient = settings.devices > 1 && settings.zero_stage >= 2;
      if (!transient) {
        // Nothing but the activations comes and goes: no slack at all.
        EXPECT_EQ(region(Region::kTransient), 0);
        EXPECT_EQ(slack, 0);
        return;
      }
      const int64_t buffers = expected.CommunicationBuffersPeak();
      if (settings.zero_stage == 2) {
        // Buckets are given back in the order in which they were taken and are of one size: no
        // holes.
        EXPECT_EQ(region(Region::kTransient), buffers);
      } else {
        // Gathered units and buckets of other sizes come and go between each other: a hole of up to
        // one block, where the next unit was put behind a bucket that left before it.
        EXPECT_GE(region(Region::kTransient), buffers);
        EXPECT_LE(region(Region::kTransient), buffers + expected.block());
      }
      EXPECT_LE(slack, rank.memory.peak_bytes / 10);
      EXPECT_EQ(slack, region(Region::kActivations) + region(Region::kTransient) -
                           Of(rank.memory.at_peak, Category::kActivations) -
                           Of(rank.memory.at_peak, Category::kCommunicationBuffers));
    });
  }
}

TEST(Plan, ReservesNothingMoreThanThePeakForGpt2InStage3) {
  // Its vocabulary is so large that the head's backward is the peak of both regions.
  const RankPlan rank = Plan(Settings(kGpt2, 3, 8, 1)).ranks[0];
  EXPECT_EQ(ReservedBytes(rank.regions), rank.memory.peak_bytes);
}

void ExpectPlannedTraffic(const TrainSettings& settings) {
  const ExpectedBytes expected(settings);
  const RunPlan plan = Plan(settings);
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.step_traffic, expected.StepTraffic());
    EXPECT_EQ(rank.step_copies.from_host, expected.FromHost());
    EXPECT_EQ(rank.step_copies.to_host, expected.ToHost());
  }
  // The paper's figure, and every difference to it by name: together exactly what is predicted.
  std::array<int64_t, kCollectives> explained = plan.paper_bytes;
  for (const TrafficDifference& difference : plan.differences) {
    EXPECT_NE(difference.bytes, 0) << difference.reason;
    explained[static_cast<size_t>(difference.collective)] += difference.bytes;
  }
  for (size_t i = 0; i < kCollectives; ++i) {
    EXPECT_EQ(plan.ranks[0].step_traffic.collectives[i].bytes_sent, explained[i])
        << Name(static_cast<Collective>(i));
  }
}

TEST(Plan, PredictsThePapersTrafficAndItemisesTheDifferences) {
  ForEachRun(kGpt2, ExpectPlannedTraffic);
  ForEachRun(SmallSettings().model, ExpectPlannedTraffic);
  ForEachRun({1, 3, 12, 17, 1501}, ExpectPlannedTraffic);
  ForEachRun(SmallSettings().model, [](TrainSettings settings) {
    settings.bucket_bytes = 1;
    ExpectPlannedTraffic(settings);
  });
}

TEST(Plan, PredictsTheTrafficInEveryTypeAndOffload) {
  for (const ModelConfig& model : {kGpt2, SmallSettings().model}) {
    ForEachRun(model, [](const TrainSettings& settings) {
      ExpectPlanned(settings, ExpectPlannedTraffic);
    });
  }
}

TEST(Plan, ItemisesTheTrafficOfGpt2) {
  // fp32, N = 8, one micro-batch: 4 x Psi x 7/8 a pass over all parameters, and the padding of
  // 13 x 256 elements adds 4 x 13 x 256 x 7/8 to each.
  constexpr int64_t kOnce = 435'539'328;
  constexpr int64_t kPadding = 11'648;
  const auto gather = static_cast<size_t>(Collective::kAllGather);
  const RunPlan plan = Plan(Settings(kGpt2, 3, 8, 1));
  EXPECT_EQ(plan.paper_bytes[gather], 2 * kOnce);
  ASSERT_EQ(plan.differences.size(), 3u);
  EXPECT_EQ(plan.differences[0].collective, Collective::kAllGather);
  EXPECT_EQ(plan.differences[0].reason, "padding");
  EXPECT_EQ(plan.differences[0].bytes, 2 * kPadding);
  EXPECT_EQ(plan.differences[1].collective, Collective::kReduceScatter);
  EXPECT_EQ(plan.differences[1].reason, "padding");
  EXPECT_EQ(plan.differences[1].bytes, kPadding);
  EXPECT_EQ(plan.differences[2].collective, Collective::kAllGather);
  EXPECT_NE(plan.differences[2].reason.find("last block"), std::string::npos);
  EXPECT_EQ(plan.differences[2].bytes, -(4'727'808 + 2'360'320) * 4 / 8 * 7);
  EXPECT_EQ(plan.ranks[7].step_traffic.collectives[gather].bytes_sent,
            2 * kOnce + 2 * kPadding - (4'727'808 + 2'360'320) * 4 / 8 * 7);
}

// What is stale is gathered by whoever reads it first. Where an evaluation follows every step, or
// there is but one, no training step of stages 1 and 2 gathers, and the differences say so.
TEST(Plan, ExplainsAStepThatGathersNothing) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool one_step : {true, false}) {
      SCOPED_TRACE(testing::Message() << "stage " << stage << (one_step ? ", one step" : ""));
      TrainSettings settings = Settings(SmallSettings().model, stage, 4, 1);
      settings.steps = one_step ? 1 : 10;
      settings.eval_interval = one_step ? 0 : 1;
      const RunPlan plan = Plan(settings);
      const auto gather = static_cast<size_t>(Collective::kAllGather);
      int64_t explained = plan.paper_bytes[gather];
      for (const TrafficDifference& difference : plan.differences) {
        if (difference.collective == Collective::kAllGather) explained += difference.bytes;
      }
      const int64_t bytes = plan.ranks[0].step_traffic.collectives[gather].bytes_sent;
      EXPECT_EQ(bytes, explained);
      EXPECT_EQ(bytes == 0, stage < 3);
    }
  }
}

TEST(Plan, RefusesWhatMakesNoLayout) {
  TrainSettings settings = Settings(kGpt2, 3, 8, 1);
  settings.model.n_embd = 0;
  EXPECT_EQ(PlanRun(settings).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace zerobox
