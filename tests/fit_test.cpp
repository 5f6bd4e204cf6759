// SPDX-License-Identifier: Apache-2.0
//
// The program itself, with a device memory that one stage exceeds and another fits, and the files
// in which a run writes down its bytes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/expected_bytes.h"
#include "tests/process.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder of its own with a text to train on, gone after the test.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(ProgramPath())) << ProgramPath() << " is not built";
    folder_ = fs::path(testing::TempDir()) /
              ("zerobox-fit-" + std::to_string(getpid()) + "-" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    std::ofstream data(Data(), std::ios::binary);
    for (int i = 0; i < 20000; ++i) data << static_cast<char>((i * i / 7 + i) % 101);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Data() const { return (folder_ / "data").string(); }
  fs::path Out() const { return folder_ / "out"; }

  // The exit code of `zerobox train` on the model of `settings`.
  int Train(const TrainSettings& settings) const {
    const ModelConfig& model = settings.model;
    std::ostringstream command;
    command << "'" << ProgramPath() << "' train --data='" << Data() << "' --out='" << Out().string()
            << "' --n_layer=" << model.n_layer << " --n_head=" << model.n_head
            << " --n_embd=" << model.n_embd << " --seq_len=" << model.seq_len
            << " --vocab_size=" << model.vocab_size << " --devices=" << settings.devices
            << " --zero_stage=" << settings.zero_stage << " --micro_batch=" << settings.micro_batch
            << " --grad_accum=" << settings.grad_accum << " --steps=" << settings.steps
            << " --eval_interval=0 --sample_bytes=0 --threads=1"
            << " --device_memory=" << settings.device_memory_bytes << " >'"
            << (folder_ / "stdout").string() << "' 2>'" << (folder_ / "stderr").string() << "'";
    const int status = std::system(command.str().c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Stderr() const { return ReadFile(folder_ / "stderr"); }

  fs::path folder_;
};

int64_t Reserved(const TrainSettings& settings) {
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? ReservedBytes(plan->ranks[0].regions) : 0;
}

TEST_F(Program, FitsInStage3WhatDoesNotFitInStage2) {
  TrainSettings settings;
  settings.model = {.n_layer = 12, .n_head = 4, .n_embd = 64, .seq_len = 32, .vocab_size = 256};
  settings.devices = 4;
  settings.micro_batch = 1;
  settings.steps = 2;
  settings.eval_interval = 0;
  settings.zero_stage = 2;
  const int64_t stage2 = Reserved(settings);
  settings.zero_stage = 3;
  const int64_t stage3 = Reserved(settings);
  // Psi/N instead of Psi parameters, for two gathered blocks: (12 - 3 - 2) x 50 thousand or so.
  ASSERT_LT(stage3 + 500'000, stage2);

  settings.device_memory_bytes = stage3;
  settings.zero_stage = 2;
  EXPECT_EQ(Train(settings), 1);
  EXPECT_FALSE(fs::exists(Out())) << "refused before anything was written";
  EXPECT_NE(Stderr().find("does not fit"), std::string::npos) << Stderr();
  EXPECT_NE(Stderr().find("--zero_stage=3"), std::string::npos) << Stderr();

  settings.zero_stage = 3;
  settings.device_memory_bytes = stage3 - 1;
  EXPECT_EQ(Train(settings), 1) << "not one byte less";
  EXPECT_FALSE(fs::exists(Out()));

  settings.device_memory_bytes = stage3;
  EXPECT_EQ(Train(settings), 0) << Stderr();
  EXPECT_TRUE(fs::exists(Out() / "model.safetensors"));
}

std::set<std::string> Keys(const Json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

const std::set<std::string> kCategoryNames = {"parameters",
                                              "gradients",
                                              "optimizer_states",
                                              "activations",
                                              "activation_checkpoints",
                                              "communication_buffers",
                                              "workspace"};

// The small model, Psi = 30,954, on 2 ranks, in multiples of 128 elements: ends of 3,968, two
// blocks of 13,568, 31,104 in all.
TrainSettings SmallProgramRun() {
  TrainSettings settings = SmallSettings();
  settings.dropout = 0;
  settings.devices = 2;
  settings.grad_accum = 2;
  settings.zero_stage = 3;
  settings.steps = 3;
  return settings;
}

TEST_F(Program, WritesTheBytesItHeldToMemoryJson) {
  const TrainSettings settings = SmallProgramRun();
  ASSERT_EQ(Train(settings), 0) << Stderr();
  const Json memory = Json::parse(ReadFile(Out() / "memory.json"));
  EXPECT_EQ(Keys(memory), (std::set<std::string>{"parameters", "padding", "dtype",
                                                 "grad_accum_dtype", "devices"}));
  EXPECT_EQ(memory["dtype"], "fp32");
  EXPECT_EQ(memory["grad_accum_dtype"], "fp32");
  EXPECT_EQ(memory["parameters"], 30'954);
  EXPECT_EQ(memory["padding"], 150);
  ASSERT_EQ(memory["devices"].size(), 2u);
  const ExpectedBytes expected(settings);
  for (int rank = 0; rank < 2; ++rank) {
    const Json& device = memory["devices"][rank];
    EXPECT_EQ(Keys(device), (std::set<std::string>{"rank", "capacity_bytes", "peak_bytes",
                                                   "categories", "host_categories"}));
    EXPECT_EQ(device["rank"], rank);
    EXPECT_EQ(device["capacity_bytes"], 67'108'864);
    const Json& categories = device["categories"];
    EXPECT_EQ(Keys(categories), kCategoryNames);
    EXPECT_EQ(Keys(device["host_categories"]), kCategoryNames);
    EXPECT_EQ(categories["parameters"]["live_bytes"], 4 * 31'104 / 2);
    EXPECT_EQ(categories["gradients"]["live_bytes"], 4 * 31'104 / 2);
    EXPECT_EQ(categories["optimizer_states"]["live_bytes"], 8 * 31'104 / 2);
    EXPECT_EQ(categories["activations"]["live_bytes"], 0);
    EXPECT_EQ(categories["communication_buffers"]["live_bytes"], 0);
    // The ends' gradient, one bucket, and both blocks gathered.
    EXPECT_EQ(categories["communication_buffers"]["peak_bytes"], 4 * (3'968 + 3 * 13'568));
    EXPECT_EQ(categories["workspace"]["live_bytes"], 9 * 128);
    int64_t at_peak = 0, predicted = 0;
    for (int i = 0; i < kCategories; ++i) {
      const Json& category = categories[std::string(Name(static_cast<Category>(i)))];
      EXPECT_EQ(Keys(category), (std::set<std::string>{"live_bytes", "at_peak_bytes", "peak_bytes",
                                                       "predicted_bytes"}));
      EXPECT_EQ(category["live_bytes"], expected.Persistent()[i]);
      EXPECT_EQ(category["at_peak_bytes"], expected.AtPeak()[i]);
      EXPECT_EQ(category["predicted_bytes"], category["at_peak_bytes"]);
      EXPECT_GE(category["peak_bytes"], category["at_peak_bytes"]);
      at_peak += category["at_peak_bytes"].get<int64_t>();
      predicted += category["predicted_bytes"].get<int64_t>();
    }
    EXPECT_EQ(device["peak_bytes"], at_peak);
    EXPECT_EQ(device["peak_bytes"], predicted);
    EXPECT_LE(device["peak_bytes"], device["capacity_bytes"]);
  }
}

TEST_F(Program, WritesTheBytesItSentToCommunicationJson) {
  ASSERT_EQ(Train(SmallProgramRun()), 0) << Stderr();
  const Json communication = Json::parse(ReadFile(Out() / "communication.json"));
  EXPECT_EQ(Keys(communication), (std::set<std::string>{"ranks"}));
  ASSERT_EQ(communication["ranks"].size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const Json& row = communication["ranks"][rank];
    EXPECT_EQ(Keys(row), (std::set<std::string>{"rank", "collectives", "copies", "scalars"}));
    EXPECT_EQ(row["rank"], rank);
    EXPECT_EQ(Keys(row["collectives"]),
              (std::set<std::string>{"all_gather", "reduce_scatter", "all_reduce"}));
    // Two micro-batches: the ends twice, the first block twice, the last once; half of it is sent.
    EXPECT_EQ(row["collectives"]["all_gather"],
              (Json{{"calls", 2 * 5},
                    {"bytes_sent", 2 * 4 * (2 * 31'104 - 13'568) / 2},
                    {"predicted_bytes", 194'560},
                    {"paper_bytes", 2 * 2 * 4 * 30'954 / 2}}));
    EXPECT_EQ(row["collectives"]["reduce_scatter"], (Json{{"calls", 2 * 3},
                                                          {"bytes_sent", 2 * 4 * 31'104 / 2},
                                                          {"predicted_bytes", 124'416},
                                                          {"paper_bytes", 2 * 4 * 30'954 / 2}}));
    EXPECT_EQ(row["collectives"]["all_reduce"],
              (Json{{"calls", 0}, {"bytes_sent", 0}, {"predicted_bytes", 0}, {"paper_bytes", 0}}));
    // Two fp64 numbers, all-reduced on two ranks.
    EXPECT_EQ(row["scalars"], (Json{{"calls", 1}, {"bytes_sent", 16}, {"predicted_bytes", 16}}));
    // Two batches of 17 inputs and targets and a sample number; a loss and the step's state.
    EXPECT_EQ(row["copies"],
              (Json{{"from_host", {{"bytes", 2 * (2 * 4 * 17 + 8)}, {"predicted_bytes", 288}}},
                    {"to_host", {{"bytes", 8 + 56}, {"predicted_bytes", 64}}}}));
  }
}

}  // namespace
}  // namespace zerobox
