// SPDX-License-Identifier: Apache-2.0
//
// Whole training runs of several ranks, on as many GPUs by NCCL or all on one, against the same
// runs on as many host devices, under every order of the streams. Memory is the fake runtime's,
// which is NaN at first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cuda/cuda.h"
#include "tests/cuda_runs.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/emulation/train_runs.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using fake_cuda::Policy;
using testing::IsEmpty;

constexpr auto kNone = ActivationCheckpointing::kNone;
constexpr auto kSelective = ActivationCheckpointing::kSelective;
constexpr auto kFull = ActivationCheckpointing::kFull;
constexpr auto kFp32 = DType::kFloat32;
constexpr auto kBf16 = DType::kBFloat16;

// The ranks, and where they are.
struct World {
  int ranks = 1;
  bool on_one_gpu = false;
};
constexpr World kWorlds[] = {{2, false}, {2, true}, {4, false}, {4, true}, {1, false}};

struct Kind {
  DType dtype;
  int stage;
  int64_t micro_batches;  // a step
  ActivationCheckpointing checkpointing = kNone;
  bool offload_optimizer = false, offload_activations = false;
  World world = {};
};

// Of these every two settings are together in one, as PairsAreAllThere says.
constexpr Kind kKinds[] = {
    {kFp32, 0, 1},
    {kBf16, 0, 3, kSelective, true, true},
    {kFp32, 1, 3, kNone, true, false},
    {kBf16, 1, 1, kFull, false, true},
    {kFp32, 2, 1, kFull, true, true},
    {kBf16, 2, 3},
    {kFp32, 3, 3, kSelective, false, true},
    {kBf16, 3, 1, kNone, true, false},
    {kBf16, 3, 1, kFull},
};

// Two ranks train all kinds, as does one half of them on four GPUs and the other on one.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (const World& world : kWorlds) {
    if (world.ranks > 1 && !world.on_one_gpu && !CheckNccl().ok()) continue;
    for (Kind kind : kKinds) {
      const bool first_half = (kind.stage % 2 == 0) == (kind.dtype == kFp32);
      if (world.ranks == 4 && first_half == world.on_one_gpu) continue;
      if (world.ranks == 1 && kind.stage != 2) continue;
      kind.world = world;
      kinds.push_back(kind);
    }
  }
  return kinds;
}

std::string NameOf(const World& world) {
  return absl::StrCat(world.ranks, world.on_one_gpu ? "_on_one_gpu" : "_gpus");
}
std::string NameOf(const Kind& kind) {
  return absl::StrCat(NameOf(kind.world), "_", std::string(Name(kind.dtype)), "_stage", kind.stage,
                      "_", kind.micro_batches, "_micro_batches_",
                      kind.checkpointing == kNone ? "" : std::string(Name(kind.checkpointing)),
                      kind.offload_optimizer ? "_optimizer" : "",
                      kind.offload_activations ? "_activations" : "");
}

TrainSettings SettingsOf(const Kind& kind, const char* device) {
  TrainSettings settings = SettingsOf(CudaRunKind{.name = "",
                                                  .dtype = kind.dtype,
                                                  .stage = kind.stage,
                                                  .checkpointing = kind.checkpointing,
                                                  .offload_optimizer = kind.offload_optimizer,
                                                  .offload_activations = kind.offload_activations,
                                                  .devices = kind.world.ranks,
                                                  .on_one_gpu = kind.world.on_one_gpu},
                                      device);
  settings.model.n_head = 1;  // attention is the most expensive here
  settings.model.n_embd = 16;
  settings.model.seq_len = 5;
  settings.model.vocab_size = 37;
  settings.micro_batch = 1;
  settings.grad_accum = kind.micro_batches;
  settings.grad_accum_dtype = kind.micro_batches == 1 ? kind.dtype : kFp32;
  settings.eval_interval = 10;
  settings.bucket_bytes = 16 << 10;  // several a block
  return settings;
}

SmallRun OnGpus(const TrainSettings& settings, Policy policy) {
  fake_cuda::Reset({.devices = settings.virtual_devices ? 1 : settings.devices,
                    .policy = policy,
                    .workers = settings.devices});
  return RunSmall(settings);
}

// Once for all runs on GPUs that are compared with it.
const SmallRun& OnHost(Kind kind) {
  static auto& runs = *new std::map<std::string, SmallRun>;
  kind.world.on_one_gpu = false;
  const std::string name = NameOf(kind);
  if (runs.count(name) == 0) runs[name] = RunSmall(SettingsOf(kind, "host"));
  return runs[name];
}

// ---- the matrix ----

// Every setting of a kind, by name.
std::map<std::string, std::string> Values(const Kind& kind) {
  return {{"dtype", std::string(Name(kind.dtype))},
          {"stage", absl::StrCat(kind.stage)},
          {"micro-batches", absl::StrCat(kind.micro_batches)},
          {"checkpoints", kind.checkpointing == kNone ? "none" : "some"},
          {"optimizer", kind.offload_optimizer ? "offloaded" : "on the device"},
          {"activations", kind.offload_activations ? "offloaded" : "on the device"},
          {"ranks", absl::StrCat(kind.world.ranks)},
          {"GPUs", kind.world.on_one_gpu ? "one" : "several"}};
}

// Which of them go together.
bool IsPossible(const std::set<std::string>& pair) {
  return pair != std::set<std::string>{"activations: offloaded", "checkpoints: none"};
}

TEST(SeveralGpusKinds, HaveEveryPairOfSettings) {
  if (!CheckNccl().ok()) GTEST_SKIP() << CheckNccl();
  std::set<std::string> values;
  std::set<std::set<std::string>> found;
  for (const Kind& kind : Kinds()) {
    if (kind.world.ranks == 1) continue;
    for (const auto& [name, value] : Values(kind)) {
      values.insert(name + ": " + value);
      for (const auto& [other, other_value] : Values(kind)) {
        if (other != name) found.insert({name + ": " + value, other + ": " + other_value});
      }
    }
  }
  EXPECT_EQ(values.size(), 2u + 4 + 2 + 2 + 2 + 2 + 2 + 2);
  const auto name_of = [](const std::string& value) { return value.substr(0, value.find(':')); };
  for (const std::string& value : values) {
    for (const std::string& other : values) {
      if (name_of(value) == name_of(other) || !IsPossible({value, other})) continue;
      EXPECT_EQ(found.count({value, other}), 1u) << value << ", " << other;
    }
  }
}

// Two ranks train under every policy, where that is cheap; others under one.
bool IsTried(const Kind& kind, Policy policy) {
  if (policy == fake_cuda::kPolicies[(kind.stage + 2) % 3]) return true;
  return kind.world.ranks == 2 && !(kind.world.on_one_gpu && kind.micro_batches > 1);
}

class SeveralGpus : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(, SeveralGpus, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(SeveralGpus, GiveTheLossesMemoryAndTrafficOfHostDevicesUnderEveryOrderOfTheStreams) {
  const Kind kind = GetParam();
  const int ranks = kind.world.ranks;
  const SmallRun& host = OnHost(kind);
  ASSERT_TRUE(host.result.status.ok()) << host.result.status;
  const RankResult& expected = host.result.ranks[0];
  // That they do what their flags say: tests/*bytes_test.cpp have the numbers.
  EXPECT_EQ(expected.step_traffic.scalars.bytes_sent > 0, kind.stage > 0 && ranks > 1);
  EXPECT_EQ(expected.host_memory.peak_bytes > 0,
            kind.offload_optimizer || kind.offload_activations);
  EXPECT_EQ(expected.memory.peak[static_cast<int>(Category::kActivationCheckpoints)] > 0,
            kind.checkpointing != kNone);
  for (const Policy policy : fake_cuda::kPolicies) {
    if (!IsTried(kind, policy)) continue;
    SCOPED_TRACE(fake_cuda::Name(policy));
    const SmallRun gpus = OnGpus(SettingsOf(kind, "cuda"), policy);
    ASSERT_TRUE(gpus.result.status.ok()) << gpus.result.status;
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
    ASSERT_EQ(gpus.result.step_metrics.size(), 10u);
    ASSERT_EQ(gpus.result.eval_metrics.size(), 1u);
    ExpectSameLosses(gpus, host, kind.dtype);
    ExpectSameTables(gpus, host);
    ExpectSameTrace(gpus, host, SettingsOf(kind, "cuda"));
    for (const StepMetrics& step : gpus.result.step_metrics) {
      EXPECT_TRUE(step.exposed_seconds > 0 || ranks == 1) << step.exposed_seconds;
      EXPECT_GT(step.step_seconds, 0);
    }
    std::map<std::string, int> calls = fake_cuda::Calls();
    EXPECT_EQ(calls["cudaMalloc"], ranks);
    EXPECT_EQ(calls["cudaHostAlloc"], ranks);
    EXPECT_EQ(calls["cudaStreamSynchronize"], 0);
    EXPECT_EQ(calls["ncclCommDestroy"], kind.world.on_one_gpu || ranks == 1 ? 0 : ranks);
    EXPECT_EQ(calls["ncclCommAbort"], 0);
  }
}

// ---- equal bits ----

struct BitsKind {
  int ranks;
  DType dtype;
};
class VirtualRanks : public testing::TestWithParam<BitsKind> {};
INSTANTIATE_TEST_SUITE_P(, VirtualRanks,
                         testing::Values(BitsKind{2, kFp32}, BitsKind{2, kBf16}, BitsKind{3, kFp32},
                                         BitsKind{3, kBf16}),
                         [](const auto& info) {
                           return absl::StrCat(std::string(Name(info.param.dtype)), "_",
                                               info.param.ranks, "_ranks");
                         });

TEST_P(VirtualRanks, TrainToTheSameBitsAtEveryStage) {
  Kind kind = {GetParam().dtype, 0, /*micro_batches=*/1};
  kind.world = {GetParam().ranks, /*on_one_gpu=*/true};
  std::vector<SmallRun> runs;
  for (kind.stage = 0; kind.stage <= 3; ++kind.stage) {
    TrainSettings settings = SettingsOf(kind, "cuda");
    settings.steps = 4;
    settings.eval_interval = 4;
    settings.optimizer.clip_norm = 3.6;
    settings.bucket_bytes = 4 << 10;
    ASSERT_GT(settings.dropout, 0);
    runs.push_back(OnGpus(settings, fake_cuda::kPolicies[kind.stage % 3]));
    ASSERT_TRUE(runs.back().result.status.ok()) << runs.back().result.status;
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
    if (kind.stage == 0) continue;
    EXPECT_EQ(Bits(runs.back().result), Bits(runs[0].result)) << "stage " << kind.stage;
    EXPECT_EQ(runs.back().parameters, runs[0].parameters) << "stage " << kind.stage;
  }
  // Some steps are clipped and others are not; each stage sends what it alone sends, or keeps less.
  const std::vector<StepMetrics>& steps = runs[0].result.step_metrics;
  const auto clipped = std::count_if(steps.begin(), steps.end(),
                                     [](const StepMetrics& step) { return step.clip < 1; });
  EXPECT_GT(clipped, 0);
  EXPECT_LT(clipped, 4);
  ASSERT_EQ(steps.size(), 4u);
  ASSERT_FALSE(runs[0].parameters.empty());
  const auto calls = [&](int stage, Collective collective) {
    return Counted(runs[static_cast<size_t>(stage)], 0, collective).calls;
  };
  const auto gradient_bytes = [&](int stage) {
    return LiveBytes(runs[static_cast<size_t>(stage)], 0, Category::kGradients);
  };
  EXPECT_GT(calls(0, Collective::kAllReduce), 0);
  EXPECT_EQ(calls(0, Collective::kReduceScatter), 0);
  EXPECT_GT(calls(1, Collective::kReduceScatter), 0);
  EXPECT_LT(gradient_bytes(2), gradient_bytes(1));
  EXPECT_GT(calls(3, Collective::kAllGather), calls(2, Collective::kAllGather));
}

}  // namespace
}  // namespace zerobox
