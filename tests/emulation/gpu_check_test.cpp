// SPDX-License-Identifier: Apache-2.0
//
// All parts of the GPU's check, in small sizes and without a GPU: on the day that there is one
// nothing of it runs for the first time. The times that it finds here mean nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "bench/gpu_check/check.h"
#include "bench/gpu_check/command.h"
#include "ops/cuda/cuda.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox::gpu_check {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class GpuCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/gpu_check_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fake_cuda::Reset({.timing = true});
  }
  void TearDown() override { fs::remove_all(folder_); }

  // What is printed is in text_ then.
  std::vector<Row> RunParts(std::vector<int> parts, PyTorch pytorch = {}) {
    const std::string path = folder_ / "report.txt";
    std::FILE* file = std::fopen(path.c_str(), "w");
    Report report(file);
    RunCheck({.sizes = TinySizes(), .parts = std::move(parts), .pytorch = std::move(pytorch)},
             report);
    std::fclose(file);
    std::ifstream written(path);
    std::stringstream text;
    text << written.rdbuf();
    text_ = text.str();
    return report.rows();
  }

  static int Count(const std::vector<Row>& rows, const std::string& part) {
    return static_cast<int>(std::count_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.name.find(part) != std::string::npos;
    }));
  }
  static std::vector<std::string> Failed(const std::vector<Row>& rows) {
    std::vector<std::string> names;
    for (const Row& row : rows) {
      if (row.verdict == Verdict::kFail) names.push_back(row.name);
    }
    return names;
  }

  fs::path folder_;
  std::string text_;
};

TEST_F(GpuCheckTest, SaysWhatTheMachineIs) {
  EXPECT_THAT(RunParts({1}), IsEmpty());
  EXPECT_THAT(text_, HasSubstr("1. The machine"));
  EXPECT_THAT(text_, HasSubstr("no GPU (the emulator)"));
  EXPECT_THAT(text_, HasSubstr("measured below"));
  EXPECT_THAT(text_, HasSubstr("part 1 took "));
}

TEST_F(GpuCheckTest, FailsWhereThereIsNoGpu) {
  fake_cuda::Reset({.devices = 0, .timing = true});
  EXPECT_THAT(Failed(RunParts({1, 2, 3, 4, 5, 6})), ElementsAre("no GPU to check"));
  EXPECT_THAT(text_, Not(HasSubstr("2. ")));
  EXPECT_THAT(text_, Not(HasSubstr("--")));  // no advice to give a flag that it does not have
}

TEST_F(GpuCheckTest, KnowsThePeakOfTheGpusThatItIsMeantFor) {
  EXPECT_EQ(NominalFlops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(NominalFlops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(NominalFlops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(NominalFlops("NVIDIA H200"), 989e12);
  EXPECT_EQ(NominalFlops("NVIDIA H20"), 0);
  EXPECT_EQ(NominalFlops("NVIDIA GeForce RTX 4090"), 0);
}

TEST_F(GpuCheckTest, ComparesEveryOpWithTheHosts) {
  const std::vector<Row> rows = RunParts({2});
  EXPECT_THAT(Failed(rows), IsEmpty()) << text_;
  EXPECT_EQ(rows.size(), 2u * 3u * 2u);
  EXPECT_EQ(Count(rows, "bf16_fp32: 2 x 7 x 24"), 1);
  EXPECT_EQ(Count(rows, "the same bits"), 6);
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST_F(GpuCheckTest, TrainsAsTheHostDoes) {
  const std::vector<Row> rows = RunParts({3});
  EXPECT_THAT(Failed(rows), IsEmpty()) << text_;
  EXPECT_EQ(rows.size(), 1u);
  EXPECT_EQ(Count(rows, "bf16_optimizer_offloaded"), 1);
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST_F(GpuCheckTest, MeasuresEveryKernel) {
  const std::vector<Row> rows = RunParts({4});
  EXPECT_THAT(Failed(rows), IsEmpty()) << text_;
  for (const char* kernel : {"copy on the device",
                             "product 64x64x64",
                             "embedding forward",
                             "embedding backward",
                             "layernorm forward",
                             "layernorm backward",
                             "residual, tiny",
                             "residual with dropout",
                             "residual + layernorm",
                             "dropout backward",
                             "gelu forward",
                             "gelu backward",
                             "cross-entropy forward",
                             "cross-entropy backward",
                             "attention forward",
                             "attention backward",
                             "qkv y 64x192x64",
                             "qkv dx 64x64x192",
                             "qkv dw 64x192x64",
                             "projection dw 64x64x64",
                             "mlp in, GELU y 64x256x64",
                             "mlp out, GELU' dx 64x256x64",
                             "head logits 8x128x64",
                             "head logits 8x81x64",
                             "head dwte 128x64x8",
                             "bias gradient 64x256",
                             "AdamW",
                             "sum of squares",
                             "add"}) {
    EXPECT_EQ(Count(rows, kernel), 1) << kernel;
  }
  for (const Row& row : rows) {
    EXPECT_TRUE(row.share > 0) << row.name;
    EXPECT_EQ(row.verdict == Verdict::kNone, row.target == 0) << row.name;
  }
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST_F(GpuCheckTest, TrainsTheLargestMicroBatchThatFitsAndProfilesAStep) {
  const std::vector<Row> rows = RunParts({5});
  EXPECT_THAT(Failed(rows), IsEmpty()) << text_;
  EXPECT_THAT(text_, HasSubstr("micro-batch 65536: too large"));
  EXPECT_THAT(text_, HasSubstr("zerobox train --device=cuda"));
  EXPECT_THAT(text_, HasSubstr(" tokens/s; device memory at its peak "));
  EXPECT_EQ(Count(rows, "tiny, micro-batch 2: model operations"), 1);
  // Of two blocks and three linear layers each beside that before the GELU, and one chunk of
  // logits.
  EXPECT_EQ(Count(rows, "6 x linear_forward"), 1) << text_;
  EXPECT_EQ(Count(rows, "2 x linear_gelu_forward"), 1) << text_;
  EXPECT_EQ(Count(rows, "2 x attention_backward"), 1) << text_;
  EXPECT_EQ(Count(rows, "1 x cross_entropy_backward"), 1) << text_;
  EXPECT_EQ(Count(rows, " x adamw"), 1) << text_;
  double shares = 0;
  for (const Row& row : rows) {
    if (row.name.find(" x ") != std::string::npos) shares += row.share;
  }
  EXPECT_TRUE(std::abs(shares - 1) <= 1e-6) << shares;
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST_F(GpuCheckTest, PutsSeveralRanksOnOneGpu) {
  fake_cuda::Reset({.workers = 2, .timing = true});
  const std::vector<Row> rows = RunParts({7});
  EXPECT_THAT(Failed(rows), IsEmpty()) << text_;
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_EQ(Count(rows, "fp32_stage3_2_on_one_gpu"), 1);
  EXPECT_EQ(Count(rows, "bf16_full_all_offloaded_2_on_one_gpu"), 1);
  EXPECT_THAT(text_, HasSubstr("skipped: several GPUs"));
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST_F(GpuCheckTest, PutsSeveralRanksOnAsManyGpusAndMeasuresHowTrainingScales) {
  if (!CheckNccl().ok()) GTEST_SKIP() << CheckNccl();
  // Runs on one GPU too, for which no second worker comes; a run with two then may begin earlier.
  // Runs have one worker, or two, of which one may be slow to begin.
  fake_cuda::Reset({.devices = 2, .deadlock_after = std::chrono::seconds(60), .timing = true});
  const std::vector<Row> rows = RunParts({7});
  EXPECT_THAT(Failed(rows), IsEmpty()) << text_;
  EXPECT_THAT(text_, HasSubstr("1 pairs of GPUs: 1 reach each other's memory, 1 over NVLink"));
  EXPECT_EQ(Count(rows, "fp32_stage3_2_on_one_gpu"), 1);
  EXPECT_EQ(Count(rows, "fp32_stage3_2_devices"), 1);
  EXPECT_EQ(Count(rows, "bf16_full_all_offloaded_2_devices"), 1);
  // The scaling: one GPU, and two at each stage.
  EXPECT_EQ(rows.size(), 2u + 2u + 1u + 4u) << text_;
  EXPECT_EQ(Count(rows, "1 x GPU, ZeRO-0: "), 1);
  for (const char* stage :
       {"2 x GPU, ZeRO-0: ", "2 x GPU, ZeRO-1: ", "2 x GPU, ZeRO-2: ", "2 x GPU, ZeRO-3: "}) {
    EXPECT_EQ(Count(rows, stage), 1) << text_;
  }
  EXPECT_THAT(text_, HasSubstr("% of 2 times as fast as one GPU"));
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST_F(GpuCheckTest, AFailureOfTheGpuIsFoundInEachPart) {
  for (const int part : {2, 3, 4, 5, 7}) {
    fake_cuda::Reset({.timing = true});
    fake_cuda::FailWork(20);
    EXPECT_THAT(Failed(RunParts({part})), Not(IsEmpty())) << part;
    fake_cuda::TakeReports();
  }
}

// A script in the place of PyTorch's.
class GpuCheckPyTorch : public GpuCheckTest {
 protected:
  std::string Compare(const std::string& script, int64_t limit_seconds = 60) {
    std::ofstream(folder_ / "script.sh") << script;
    const TrainingSizes sizes = {"a model", {}, {1}, 1, 2, 0.5};
    const std::string path = folder_ / "report.txt";
    std::FILE* file = std::fopen(path.c_str(), "w");
    Report report(file);
    ComparePyTorch({.python = "sh",
                    .script = (folder_ / "script.sh").string(),
                    .limit_seconds = limit_seconds},
                   {{&sizes, 4, 3000}}, report);
    std::fclose(file);
    EXPECT_TRUE(report.ok());
    std::ifstream written(path);
    std::stringstream text;
    text << written.rdbuf();
    return text.str();
  }
};

TEST_F(GpuCheckPyTorch, IsComparedByTokensASecond) {
  EXPECT_THAT(Compare("echo torch 2.9; echo micro_batch 2; echo peak_bytes 5; "
                      "echo tokens_per_second 1500.0; echo \"$@\" >" +
                      (folder_ / "flags").string()),
              HasSubstr("a model: torch 2.9, micro-batch 2: 1500 tokens/s, peak memory 5 bytes; "
                        "zerobox is 2.00 times as fast"));
  std::ifstream flags(folder_ / "flags");
  std::string line;
  std::getline(flags, line);
  EXPECT_EQ(line,
            "--n_layer=4 --n_head=4 --n_embd=128 --seq_len=128 --vocab_size=256 --micro_batch=4 "
            "--warm_up=1 --steps=2");
}

TEST_F(GpuCheckPyTorch, MayBeMissingOrFailOrTakeTooLong) {
  EXPECT_THAT(Compare("echo skipped no PyTorch here"), HasSubstr("skipped: no PyTorch here"));
  EXPECT_THAT(Compare("echo out of luck; exit 3"), HasSubstr("ended with 3: out of luck"));
  EXPECT_THAT(Compare("exit 0"), HasSubstr("skipped, a model: sh ended with 0"));
  EXPECT_THAT(Compare("sleep 60", /*limit_seconds=*/1), HasSubstr("it took too long"));
}

TEST_F(GpuCheckPyTorch, ScriptSaysWhyItSkips) {
  if (RunCommand("python3 -c 'import torch' 2>/dev/null").exit_code == 0) {
    GTEST_SKIP() << "PyTorch is here";
  }
  if (RunCommand("python3 -c 1").exit_code != 0) GTEST_SKIP() << "no python3 here";
  const CommandResult run = RunCommand("python3 bench/gpu_check/pytorch.py --steps=2");
  EXPECT_EQ(run.exit_code, 0);
  ASSERT_EQ(run.lines.size(), 1u);
  EXPECT_THAT(run.lines[0], HasSubstr("skipped no PyTorch here"));
}

}  // namespace
}  // namespace zerobox::gpu_check
