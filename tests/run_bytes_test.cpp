// SPDX-License-Identifier: Apache-2.0
//
// The files in which a run of the program writes down its bytes.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/expected_bytes.h"
#include "tests/program_run.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {
using Json = nlohmann::json;

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

// Mixed precision, checkpoints of blocks' inputs and both offloads, of four blocks: 58,240
// elements, 29,120 owned by each of the two ranks. 17 tokens of 33 numbers are a checkpoint, 1,122
// bytes.
TEST_F(Program, WritesWhatIsOffloadedToItsFiles) {
  TrainSettings settings = SmallProgramRun();
  settings.model.n_layer = 4;
  settings.dtype = DType::kBFloat16;
  settings.activation_checkpointing = ActivationCheckpointing::kFull;
  settings.offload_optimizer = settings.offload_activations = true;
  ASSERT_EQ(Train(settings), 0) << Stderr();
  const Json memory = Json::parse(ReadFile(Out() / "memory.json"));
  EXPECT_EQ(memory["dtype"], "bf16");
  EXPECT_EQ(memory["grad_accum_dtype"], "fp32");  // two micro-batches
  EXPECT_EQ(memory["parameters"].get<int64_t>() + memory["padding"].get<int64_t>(), 58'240);
  ASSERT_EQ(memory["devices"].size(), 2u);
  for (const Json& device : memory["devices"]) {
    const Json& host = device["host_categories"];
    const std::map<std::string, int64_t> held = {
        {"parameters", 0},
        {"gradients", 4 * 29'120},
        {"optimizer_states", 12 * 29'120},
        {"activations", 0},
        {"activation_checkpoints", 2 * 1'152},  // aligned
        // The largest owned part, half a block: a gradient that is added, two bf16 parameters.
        {"communication_buffers", (4 + 2 * 2) * 13'568 / 2},
        {"workspace", 2 * 128}};
    for (const auto& [name, bytes] : held) {
      EXPECT_EQ(host[name], (Json{{"live_bytes", bytes},
                                  {"at_peak_bytes", bytes},
                                  {"peak_bytes", bytes},
                                  {"predicted_bytes", bytes}}))
          << name;
    }
    const Json& categories = device["categories"];
    EXPECT_EQ(categories["parameters"]["live_bytes"], 2 * 29'120);
    EXPECT_EQ(categories["gradients"]["peak_bytes"], 0);
    EXPECT_EQ(categories["optimizer_states"]["peak_bytes"], 0);
    EXPECT_EQ(categories["activation_checkpoints"]["peak_bytes"], 2 * 1'152);
  }
  const Json communication = Json::parse(ReadFile(Out() / "communication.json"));
  ASSERT_EQ(communication["ranks"].size(), 2u);
  for (const Json& row : communication["ranks"]) {
    // Of two micro-batches two checkpoints and a gradient each; the loss and twice the step's
    // state.
    const int64_t to_host = 2 * (2 * 1'122 + 4 * 29'120) + 8 + 56 + 56;
    // Checkpoints, batches as below, parameters, and a square for each owner.
    const int64_t from_host = 2 * (2 * 1'122 + 2 * 4 * 17 + 8) + 2 * 29'120 + 2 * 8;
    EXPECT_EQ(row["copies"],
              (Json{{"from_host", {{"bytes", from_host}, {"predicted_bytes", from_host}}},
                    {"to_host", {{"bytes", to_host}, {"predicted_bytes", to_host}}}}));
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
