// SPDX-License-Identifier: Apache-2.0
//
// Whole training runs on one CUDA device, against the same runs on one host device: each stage,
// what is computed again and what moves to the host, under every order of the device's streams.
// Memory is the fake runtime's, which is NaN at first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda_runs.h"
#include "tests/emulation/edges.h"
#include "tests/emulation/fake_cublaslt.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/emulation/train_runs.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using fake_cuda::Policy;
using testing::IsEmpty;

// One policy will do at the stages that with one rank are the same code as stage 0.
bool AllPolicies(const CudaRunKind& kind) {
  return kind.stage == 0 || kind.checkpointing != ActivationCheckpointing::kNone;
}

std::vector<CudaRunKind> DifferentKinds() {
  std::vector<CudaRunKind> kinds = CudaRunKinds();
  std::erase_if(kinds, [](const CudaRunKind& kind) { return !AllPolicies(kind); });
  return kinds;
}

SmallRun OnHost(const CudaRunKind& kind, const TrainHooks& hooks = {}) {
  return RunSmall(SettingsOf(kind, "host"), hooks);
}
SmallRun OnGpu(const CudaRunKind& kind, Policy policy, const TrainHooks& hooks = {}) {
  fake_cuda::Reset({.policy = policy});
  return RunSmall(SettingsOf(kind, "cuda"), hooks);
}

class CudaTrain : public testing::TestWithParam<CudaRunKind> {
 protected:
  void TearDown() override { fake_cublaslt::SetUnsupported(nullptr); }
};
INSTANTIATE_TEST_SUITE_P(, CudaTrain, testing::ValuesIn(CudaRunKinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(CudaTrain, GivesTheHostsLossesUnderEveryOrderOfItsStreams) {
  const CudaRunKind kind = GetParam();
  const SmallRun host = OnHost(kind);
  ASSERT_TRUE(host.result.status.ok()) << host.result.status;
  const RankResult& expected = host.result.ranks[0];
  // That they do what their flags say: tests/*bytes_test.cpp have the numbers.
  EXPECT_EQ(expected.host_memory.peak_bytes > 0,
            kind.offload_optimizer || kind.offload_activations);
  EXPECT_EQ(expected.memory.peak[static_cast<int>(Category::kActivationCheckpoints)] > 0,
            kind.checkpointing != ActivationCheckpointing::kNone);
  for (const Policy policy : fake_cuda::kPolicies) {
    if (!AllPolicies(kind) && policy != fake_cuda::kPolicies[kind.stage - 1]) continue;
    SCOPED_TRACE(fake_cuda::Name(policy));
    std::set<cublasLtEpilogue_t> epilogues;
    fake_cublaslt::SetUnsupported([&](cublasLtEpilogue_t epilogue) {
      epilogues.insert(epilogue);
      return false;
    });
    const SmallRun gpu = OnGpu(kind, policy);
    ASSERT_TRUE(gpu.result.status.ok()) << gpu.result.status;
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
    ASSERT_EQ(gpu.result.step_metrics.size(), 10u);
    ASSERT_EQ(gpu.result.eval_metrics.size(), 2u);
    ExpectSameLosses(gpu, host, kind.dtype);
    ExpectSameTables(gpu, host);
    ExpectSameTrace(gpu, host, SettingsOf(kind, "cuda"));
    std::map<std::string, int> calls = fake_cuda::Calls();
    EXPECT_GT(calls["cudaLaunchKernelExC"], 500);
    EXPECT_EQ(calls["cudaMalloc"], 1);
    EXPECT_EQ(calls["cudaHostAlloc"], 1);
    EXPECT_EQ(calls["cudaStreamSynchronize"], 0);
    EXPECT_EQ(epilogues.count(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), !kind.odd_width);
    EXPECT_EQ(epilogues.count(CUBLASLT_EPILOGUE_DGELU), !kind.odd_width);
  }
}

// Fills memory with NaN wherever it is allocated, once all streams are done with what was there.
class Poison final : public Recorder {
 public:
  void Begin(Device& device) { device_ = &device; }
  void OnAllocate(int, Region, Category, std::string_view, const Buffer& buffer) override {
    const int64_t bytes =
        (buffer.bytes() + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
    poisoned_bytes += bytes;
    if (device_ == nullptr) return;  // new memory, which the fake runtime has filled
    device_->StopStreams();
    std::memset(buffer.data, 0xff, static_cast<size_t>(bytes));
  }
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnFree(int, const Buffer&) override {}
  int64_t poisoned_bytes = 0;

 private:
  Device* device_ = nullptr;
};

class CudaMemory : public testing::TestWithParam<CudaRunKind> {};
INSTANTIATE_TEST_SUITE_P(, CudaMemory, testing::ValuesIn(DifferentKinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(CudaMemory, IsNeverReadBeforeItIsWritten) {
  const CudaRunKind kind = GetParam();
  const SmallRun host = OnHost(kind, {.poison = true});
  ASSERT_TRUE(host.result.status.ok()) << host.result.status;
  Poison poison;
  const SmallRun gpu = OnGpu(
      kind, Policy::kRandom,
      {.after_setup = [&](int, Device& device) { poison.Begin(device); }, .recorder = &poison});
  ASSERT_TRUE(gpu.result.status.ok()) << gpu.result.status;
  ExpectSameLosses(gpu, host, kind.dtype);
  EXPECT_EQ(poison.poisoned_bytes, host.result.ranks[0].poisoned_bytes);
  EXPECT_GT(poison.poisoned_bytes, 3 * host.result.ranks[0].memory.peak_bytes);
}

// ---- missing waits ----

// Every edge of a run, as drop_wait names it.
struct EdgeKind {
  CudaRunKind kind;
  std::set<std::string> needed;
  std::set<std::string> covered;  // where others happen to order as much
};

const std::vector<EdgeKind>& EdgeKinds() {
  static const std::set<std::string> always = {
      "batch uploaded -> compute", "batch uploaded -> host",  "batch consumed -> from_host",
      "results ready -> to_host",  "results read -> compute", "results read -> host"};
  static const auto with = [](std::set<std::string> edges, const char* without = "") {
    edges.insert(always.begin(), always.end());
    edges.erase(without);
    return edges;
  };
  // With one rank nothing is sent.
  static const std::set<std::string> of_collectives = {"bucket full -> communication",
                                                       "gradients reduced -> compute"};
  static const std::vector<EdgeKind> kinds = {
      {{.name = "plain"}, with({}), of_collectives},
      {{.name = "optimizer", .dtype = DType::kBFloat16, .offload_optimizer = true},
       // The gradient goes down behind the collective that is none.
       with({"bucket full -> communication", "gradients reduced -> to_host",
             "squares summed -> from_host", "squares up -> compute", "step prepared -> to_host",
             "bucket updated -> from_host", "staging free -> to_host", "parameters up -> compute"}),
       {"gradients reduced -> compute"}},
      {{.name = "activations",
        .dtype = DType::kBFloat16,
        .checkpointing = ActivationCheckpointing::kSelective,
        .offload_activations = true},
       with({"checkpoint written -> to_host", "checkpoint left -> compute",
             "checkpoint slot free -> from_host", "checkpoint back -> compute"},
            "batch consumed -> from_host"),
       // Checkpoints that come back while the next batch is computed tell that this one is read.
       {"bucket full -> communication", "gradients reduced -> compute",
        "batch consumed -> from_host"}}};
  return kinds;
}

TrainSettings SettingsOf(const EdgeKind& edges) {
  TrainSettings settings = SettingsOf(edges.kind, "cuda");
  settings.model.seq_len = 5;
  settings.micro_batch = 1;
  settings.grad_accum = 3;
  settings.grad_accum_dtype = DType::kFloat32;
  return settings;
}

class CudaEdges : public testing::TestWithParam<EdgeKind> {};
INSTANTIATE_TEST_SUITE_P(, CudaEdges, testing::ValuesIn(EdgeKinds()),
                         [](const auto& info) { return std::string(info.param.kind.name); });

TEST_P(CudaEdges, AMissingWaitIsFoundInSomeOrderOfTheStreams) {
  const EdgeKind& edges = GetParam();
  ExpectEveryMissingWaitIsFound(SettingsOf(edges), edges.needed, edges.covered);
}

}  // namespace
}  // namespace zerobox
