// SPDX-License-Identifier: Apache-2.0
//
// Any call of CUDA's, NCCL's and cuBLASLt's fails, or the GPU breaks in any operation, while two
// ranks train, evaluate and save: the run ends, with an error that names the call, and nothing
// stays behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/cuda/cuda.h"
#include "tests/emulation/fake_runtime.h"
#include "tests/emulation/train_runs.h"
#include "tests/small_run.h"
#include "trainer/commands.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// Nothing is left to do where these fail: they give back what is no longer used.
const std::set<std::string>& CleanUp() {
  static const auto& calls = *new std::set<std::string>{"cublasLtDestroy",
                                                        "cublasLtMatmulDescDestroy",
                                                        "cublasLtMatmulPreferenceDestroy",
                                                        "cublasLtMatrixLayoutDestroy",
                                                        "cudaEventDestroy",
                                                        "cudaFree",
                                                        "cudaFreeHost",
                                                        "cudaGetDevice",
                                                        "cudaStreamDestroy",
                                                        "cudaStreamQuery",
                                                        "ncclCommDestroy"};
  return calls;
}

bool IsCleanUp(const std::string& function, int nth, bool on_one_gpu) {
  // The first is the worker's, the second that of the thread which gives its device back.
  if (function == "cudaSetDevice" && !on_one_gpu) return nth == 2;
  return CleanUp().count(function) > 0;
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kMostSampled = 6;  // each run takes several times as long
#else
constexpr int kMostSampled = 24;
#endif

// All of 1 to `count`, or about `most` of them, the first and the last among them; all in any case
// where EVERY_FAULT is set, which takes many minutes.
std::vector<int> Sampled(int count, int most) {
  if (std::getenv("EVERY_FAULT") != nullptr) most = count;
  std::set<int> numbers;
  for (int i = 0; i < std::min(count, most); ++i) {
    numbers.insert(count <= most ? i + 1 : 1 + i * (count - 1) / (most - 1));
  }
  return {numbers.begin(), numbers.end()};
}

// Parameter: all ranks are on one GPU.
class SeveralGpusFaults : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!on_one_gpu() && !CheckNccl().ok()) GTEST_SKIP() << CheckNccl();
    Reset();
    const SmallRun run = RunSmall(settings_);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    ASSERT_EQ(run.result.eval_metrics.size(), 1u);
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
  }
  static bool on_one_gpu() { return GetParam(); }
  static void Reset() { fake_cuda::Reset({.devices = on_one_gpu() ? 1 : 2, .workers = 2}); }
  // Whose calls fail.
  static int device() { return on_one_gpu() ? 0 : 1; }

  static void ExpectNothingStays() {
    const fake_cuda::Live live = fake_cuda::LiveNow();
    EXPECT_EQ(live.device_allocations, 0);
    EXPECT_EQ(live.pinned_allocations, 0);
    EXPECT_EQ(live.streams, 0);
    EXPECT_EQ(live.events, 0);
  }
  // That each rank says where it was.
  static void ExpectFailure(const RunResult& result) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_EQ(result.where.size(), 2u);
    EXPECT_THAT(result.where, Each(Not(IsEmpty())));
  }

  const TrainSettings settings_ = OneStepOfEverything(on_one_gpu());
};
INSTANTIATE_TEST_SUITE_P(, SeveralGpusFaults, testing::Bool(),
                         [](const auto& info) { return info.param ? "on_one_gpu" : "gpus"; });

TEST_P(SeveralGpusFaults, AnyCallThatFailsEndsTheRunWithItsName) {
  const std::map<std::string, int> calls = fake_cuda::Calls(device());
  for (const char* function :
       {"cudaMalloc", "cudaHostAlloc", "cudaMemcpyAsync", "cudaLaunchKernelExC",
        "cudaLaunchHostFunc", "cudaEventRecord", "cudaStreamWaitEvent", "cublasLtMatmul",
        "cudaEventElapsedTime", "cudaEventQuery"}) {
    EXPECT_EQ(calls.count(function), 1u) << function;
  }
  for (const char* function : {"ncclCommInitRankConfig", "ncclAllGather", "ncclReduceScatter",
                               "ncclAllReduce", "ncclCommFinalize", "ncclCommGetAsyncError"}) {
    EXPECT_EQ(calls.count(function), on_one_gpu() ? 0u : 1u) << function;
  }
  // On one GPU all but the collectives is the same code.
  const int most = on_one_gpu() ? std::min(kMostSampled, 12) : kMostSampled;
  for (const auto& [function, count] : calls) {
    for (const int nth : Sampled(count, most)) {
      SCOPED_TRACE(absl::StrCat(function, ", number ", nth, " of ", count));
      Reset();
      fake_cuda::FailCall(function, nth, cudaErrorUnknown, device());
      const RunResult result = RunSmall(settings_).result;
      const bool failed = fake_cuda::Calls(device())[function] >= nth;
      const std::string message(result.status.message());
      const std::vector<std::string> reports = fake_cuda::TakeReports();
      // A device that cannot be made is gone at once, and the other rank's may be at work: on the
      // same GPU that only takes a moment longer.
      if (on_one_gpu() && absl::StartsWith(message, "device ")) {
        EXPECT_THAT(reports, Each(HasSubstr("memory is freed while work is queued")));
      } else {
        EXPECT_THAT(reports, IsEmpty());
      }
      if (IsCleanUp(function, nth, on_one_gpu())) {
        EXPECT_TRUE(result.status.ok()) << result.status;
        continue;
      }
      ExpectNothingStays();
      if (!failed) {  // how often is asked depends on how long others take
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_THAT(function, AnyOf("cudaEventQuery", "ncclCommGetAsyncError"));
        continue;
      }
      ExpectFailure(result);
      EXPECT_THAT(message, HasSubstr(function + ": "));
      if (on_one_gpu()) continue;
      EXPECT_THAT(message, AnyOf(StartsWith("rank 1: "), StartsWith("device 1: ")));
    }
  }
}

TEST_P(SeveralGpusFaults, AGpuThatBreaksInAnyOperationEndsTheRun) {
  const auto operations = static_cast<int>(fake_cuda::OperationsRun());
  ASSERT_GT(operations, 400);
  // NCCL says less than CUDA.
  const auto says_so = AnyOf(HasSubstr("cudaErrorIllegalAddress"), HasSubstr("cuda error"));
  for (const int nth : Sampled(operations, kMostSampled)) {
    SCOPED_TRACE(absl::StrCat("operation ", nth, " of ", operations));
    Reset();
    fake_cuda::FailWork(nth);
    const RunResult result = RunSmall(settings_).result;
    EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
    ExpectFailure(result);
    EXPECT_THAT(std::string(result.status.message()), says_so);
  }
}

// ---- the program ----

TEST_P(SeveralGpusFaults, AreTheProgramsExitCode3AndItsReport) {
  std::string folder = testing::TempDir() + "/several_faults_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream data(folder + "/book.txt");
  for (int i = 0; i < 500; ++i) data << "line " << i * 7919 % 1000 << "\n";
  data.close();
  std::vector<std::string> flags = {"--data=" + folder + "/book.txt",
                                    "--out=" + folder + "/out",
                                    "--device=cuda",
                                    "--devices=2",
                                    "--zero_stage=3",
                                    "--n_layer=1",
                                    "--n_head=1",
                                    "--n_embd=16",
                                    "--seq_len=8",
                                    "--micro_batch=1",
                                    "--steps=2",
                                    "--device_memory=64MiB"};
  if (on_one_gpu()) flags.push_back("--virtual");
  Reset();
  // One that only a step has.
  fake_cuda::FailCall("cudaEventElapsedTime", 1, cudaErrorUnknown, device());
  const absl::FlagSaver saver;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = TrainProgram(flags);
  testing::internal::GetCapturedStdout();
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3);
  EXPECT_THAT(printed, AllOf(HasSubstr("zerobox: a worker failed after step "),
                             HasSubstr("cudaEventElapsedTime: unknown error (cudaErrorUnknown)"),
                             HasSubstr("\n  device 0: step "), HasSubstr("\n  device 1: step ")));
  EXPECT_FALSE(fs::exists(folder + "/out/model.safetensors"));
  ExpectNothingStays();
  fs::remove_all(folder);
}

}  // namespace
}  // namespace zerobox
