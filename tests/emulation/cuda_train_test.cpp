// SPDX-License-Identifier: Apache-2.0
//
// Whole training runs on one CUDA device, against the same runs on one host device: each stage and
// all that moves to the host, under every order of the device's streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/emulation/fake_runtime.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using fake_cuda::Policy;
using testing::IsEmpty;

enum class Variant { kPlain, kCheckpoints, kOffloadedStates, kOffloadedCheckpoints };

struct Kind {
  DType dtype;
  int stage;
  Variant variant;
};

std::string NameOf(const Kind& kind) {
  const char* const variants[] = {"", "_checkpoints", "_optimizer_offloaded",
                                  "_checkpoints_offloaded"};
  return std::string(Name(kind.dtype)) + "_stage" + std::to_string(kind.stage) +
         variants[static_cast<int>(kind.variant)];
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int stage = 0; stage < 4; ++stage) kinds.push_back({dtype, stage, Variant::kPlain});
    for (const Variant variant :
         {Variant::kCheckpoints, Variant::kOffloadedStates, Variant::kOffloadedCheckpoints}) {
      kinds.push_back({dtype, 3, variant});
    }
  }
  return kinds;
}

TrainSettings Settings(const Kind& kind, const char* device) {
  TrainSettings settings = SmallSettings();
  settings.device = device;
  settings.devices = 1;
  settings.steps = 10;
  settings.micro_batch = 2;
  settings.grad_accum = 2;
  settings.eval_interval = 5;
  settings.dtype = kind.dtype;
  settings.zero_stage = kind.stage;
  if (kind.variant == Variant::kCheckpoints || kind.variant == Variant::kOffloadedCheckpoints) {
    settings.model.n_layer = 4;
    settings.activation_checkpointing = ActivationCheckpointing::kSelective;
  }
  settings.offload_activations = kind.variant == Variant::kOffloadedCheckpoints;
  settings.offload_optimizer = kind.variant == Variant::kOffloadedStates;
  return settings;
}

SmallRun OnGpu(const Kind& kind, Policy policy, const TrainHooks& hooks = {}) {
  fake_cuda::Reset({.policy = policy});
  return RunSmall(Settings(kind, "cuda"), hooks);
}

// Empty where the losses are equal, as far as they should be.
std::string Difference(const RunResult& gpu, const RunResult& host, double tolerance) {
  if (gpu.step_metrics.size() != host.step_metrics.size()) return "the number of steps";
  for (size_t i = 0; i < host.step_metrics.size(); ++i) {
    const double a = gpu.step_metrics[i].loss;
    const double b = host.step_metrics[i].loss;
    if (!(std::abs(a - b) <= tolerance * std::abs(b))) {
      return "step " + std::to_string(i + 1) + ": loss " + std::to_string(a) + " is not " +
             std::to_string(b);
    }
  }
  if (gpu.eval_metrics.size() != host.eval_metrics.size()) return "the number of evaluations";
  for (size_t i = 0; i < host.eval_metrics.size(); ++i) {
    const double a = gpu.eval_metrics[i].val_loss;
    const double b = host.eval_metrics[i].val_loss;
    if (!(std::abs(a - b) <= tolerance * std::abs(b))) {
      return "evaluation " + std::to_string(i) + ": " + std::to_string(a) + " is not " +
             std::to_string(b);
    }
  }
  return "";
}

class CudaTrain : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(, CudaTrain, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return NameOf(info.param); });

double Tolerance(DType dtype) { return dtype == DType::kFloat32 ? 1e-5 : 2e-3; }

TEST_P(CudaTrain, GivesTheHostsLossesUnderEveryOrderOfItsStreams) {
  const Kind kind = GetParam();
  const SmallRun host = RunSmall(Settings(kind, "host"));
  ASSERT_TRUE(host.result.status.ok()) << host.result.status;
  for (const Policy policy : fake_cuda::kPolicies) {
    const SmallRun gpu = OnGpu(kind, policy);
    if (absl::IsUnimplemented(gpu.result.status)) GTEST_SKIP() << gpu.result.status;
    ASSERT_TRUE(gpu.result.status.ok()) << gpu.result.status;
    EXPECT_EQ(Difference(gpu.result, host.result, Tolerance(kind.dtype)), "")
        << fake_cuda::Name(policy);
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()) << fake_cuda::Name(policy);
    EXPECT_EQ(gpu.result.ranks[0].memory.peak_bytes, host.result.ranks[0].memory.peak_bytes);
  }
}

// The edges of a run, as drop_wait names them.
class EdgeLog final : public Recorder {
 public:
  void OnWait(int, StreamId stream, const Event& event) override {
    edges.insert(event.name() + " -> " + std::string(Name(stream)));
  }
  void OnHostWait(int, const Event& event) override { edges.insert(event.name() + " -> host"); }
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}
  std::set<std::string> edges;
};

TEST_P(CudaTrain, AMissingWaitIsFoundInSomeOrderOfItsStreams) {
  const Kind kind = GetParam();
  EdgeLog log;
  const SmallRun correct = OnGpu(kind, Policy::kRandom, {.recorder = &log});
  if (absl::IsUnimplemented(correct.result.status)) GTEST_SKIP() << correct.result.status;
  ASSERT_TRUE(correct.result.status.ok()) << correct.result.status;
  for (const std::string& edge : log.edges) {
    bool found = false;
    for (const Policy policy : fake_cuda::kPolicies) {
      if (found) break;
      const SmallRun run = OnGpu(kind, policy, {.drop_wait = edge});
      found = !run.result.status.ok() || !fake_cuda::TakeReports().empty() ||
              !Difference(run.result, correct.result, 0).empty();
    }
    EXPECT_TRUE(found) << edge;
  }
}

}  // namespace
}  // namespace zerobox
