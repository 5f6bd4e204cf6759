// SPDX-License-Identifier: Apache-2.0
//
// Whole training runs on one CUDA device, against the same runs on one host device: each stage,
// what is computed again and what moves to the host, under every order of the device's streams.
// Memory is the fake runtime's, which is NaN at first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/collectives/plan_communicator.h"
#include "ops/cuda/cuda.h"
#include "tests/cuda_runs.h"
#include "tests/emulation/fake_cublaslt.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/emulation/train_runs.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/replica.h"

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

// What a run comes to, to the bit: its losses, its gradient norm, its parameters.
struct Outcome {
  absl::Status status;
  std::vector<uint64_t> bits;
  std::vector<std::string> reports;
};

// Two steps of three micro-batches, reading the parameters, an evaluation. The worker waits for the
// GPU only after both steps, so that nothing but events orders the end of the first and the
// beginning of the second. `correct` is what the steps should come to: if they do not, that is all,
// because without the worker's wait its memory must not be touched any more.
void RunReplica(Replica& replica, const TrainSettings& settings, const Outcome* correct,
                Outcome& outcome) {
  const SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  const auto add = [&](double value) { outcome.bits.push_back(std::bit_cast<uint64_t>(value)); };
  replica.InitializeWeights();
  for (int64_t step = 0; step < 2; ++step) {
    const auto fill = [&](int64_t micro_batch, HostBatch& batch) {
      const int64_t position = step * settings.grad_accum + micro_batch;
      dataset.Train(position, batch.Inputs(0), batch.Targets(0));
      batch.samples[0] = position;
    };
    replica.TrainStep(fill, 0.01F);
  }
  for (int64_t step = 0; step < 2; ++step) {
    const absl::StatusOr<StepOutcome> result = replica.Outcome();
    outcome.status = result.status();
    if (!result.ok()) return;
    add(result->loss_sum);
    add(result->state.gradient_norm);
  }
  if (correct != nullptr &&
      !std::equal(outcome.bits.begin(), outcome.bits.end(), correct->bits.begin())) {
    return;
  }
  // Before the evaluation, whose batch comes behind offloaded parameters on from_host, and would
  // tell that they are there.
  outcome.status = replica.ReadParameters([&](ParameterId, std::span<const std::byte> bytes) {
    for (const float value : Widened(bytes, settings.dtype)) add(value);
    return absl::OkStatus();
  });
  if (!outcome.status.ok()) return;
  const absl::StatusOr<double> loss = replica.EvaluateBatch([&](HostBatch& batch) {
    dataset.Validation(0, batch.Inputs(0), batch.Targets(0));
    batch.samples[0] = 0;
  });
  outcome.status = loss.status();
  if (loss.ok()) add(*loss);
}

Outcome RunEdges(const CudaRunKind& kind, Policy policy, const std::string& drop_wait,
                 const Outcome* correct, Recorder* recorder = nullptr) {
  TrainSettings settings = SettingsOf(kind, "cuda");
  settings.model.seq_len = 5;
  settings.micro_batch = 1;
  settings.grad_accum = 3;
  settings.grad_accum_dtype = DType::kFloat32;
  Outcome outcome;
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  const absl::StatusOr<Layout> layout =
      Layout::Make(GptParameters(settings.model), settings.devices, settings.bucket_bytes,
                   settings.grad_accum_dtype);
  outcome.status = plan.ok() ? layout.status() : plan.status();
  if (!outcome.status.ok()) return outcome;
  fake_cuda::Reset({.policy = policy});
  Abort abort;
  auto device = MakeCudaDevice({.regions = plan->ranks[0].regions,
                                .host_regions = plan->ranks[0].host_regions,
                                .recorder = recorder,
                                .drop_wait = drop_wait},
                               abort);
  outcome.status = device.status();
  if (!device.ok()) return outcome;
  PlanCommunicator communicator(0, 1);
  Replica replica(**device, communicator, *layout, settings);
  RunReplica(replica, settings, correct, outcome);
  (*device)->StopStreams();
  outcome.reports = fake_cuda::TakeReports();
  return outcome;
}

class CudaEdges : public testing::TestWithParam<EdgeKind> {};
INSTANTIATE_TEST_SUITE_P(, CudaEdges, testing::ValuesIn(EdgeKinds()),
                         [](const auto& info) { return std::string(info.param.kind.name); });

TEST_P(CudaEdges, AMissingWaitIsFoundInSomeOrderOfTheStreams) {
  const EdgeKind& edges = GetParam();
  EdgeLog log;
  const Outcome correct = RunEdges(edges.kind, Policy::kRandom, "", nullptr, &log);
  ASSERT_TRUE(correct.status.ok()) << correct.status;
  ASSERT_THAT(correct.reports, IsEmpty());
  std::set<std::string> all = edges.needed;
  all.insert(edges.covered.begin(), edges.covered.end());
  EXPECT_EQ(log.edges, all);
  for (const std::string& edge : log.edges) {
    std::string found;
    for (const Policy policy : fake_cuda::kPolicies) {
      const Outcome outcome = RunEdges(edges.kind, policy, edge, &correct);
      if (!outcome.status.ok() || !outcome.reports.empty() || outcome.bits != correct.bits) {
        found = fake_cuda::Name(policy);
        break;
      }
    }
    EXPECT_EQ(found.empty(), edges.covered.count(edge) > 0) << edge << ": " << found;
  }
}

}  // namespace
}  // namespace zerobox
