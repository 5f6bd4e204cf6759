// SPDX-License-Identifier: Apache-2.0
//
// Whole training runs on one CUDA device, against the same runs on one host device: each stage and
// all that moves to the host, under every order of the device's streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/cuda_runs.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using fake_cuda::Policy;
using testing::IsEmpty;

SmallRun OnGpu(const CudaRunKind& kind, Policy policy, const TrainHooks& hooks = {}) {
  fake_cuda::Reset({.policy = policy});
  return RunSmall(SettingsOf(kind, "cuda"), hooks);
}

class CudaTrain : public testing::TestWithParam<CudaRunKind> {};
INSTANTIATE_TEST_SUITE_P(, CudaTrain, testing::ValuesIn(CudaRunKinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(CudaTrain, GivesTheHostsLossesUnderEveryOrderOfItsStreams) {
  const CudaRunKind kind = GetParam();
  const SmallRun host = RunSmall(SettingsOf(kind, "host"));
  ASSERT_TRUE(host.result.status.ok()) << host.result.status;
  for (const Policy policy : fake_cuda::kPolicies) {
    const SmallRun gpu = OnGpu(kind, policy);
    if (absl::IsUnimplemented(gpu.result.status)) GTEST_SKIP() << gpu.result.status;
    ASSERT_TRUE(gpu.result.status.ok()) << gpu.result.status;
    const LossDifference difference = Difference(gpu.result, host.result);
    EXPECT_TRUE(difference.value <= LossTolerance(kind.dtype))
        << fake_cuda::Name(policy) << ": " << difference.where;
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
  const CudaRunKind kind = GetParam();
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
              Difference(run.result, correct.result).value > 0;
    }
    EXPECT_TRUE(found) << edge;
  }
}

}  // namespace
}  // namespace zerobox
