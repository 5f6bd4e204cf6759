// SPDX-License-Identifier: Apache-2.0
//
// The train command in this process, with runs that are disturbed.
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/command_run.h"
#include "trainer/commands.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CommandTrainTest : public CommandRun {
 protected:
  int Train(std::vector<std::string> flags, const TrainHooks& hooks) {
    flags.insert(flags.begin(), {"--steps=4", "--sample_bytes=20"});
    return Call([&] { return TrainProgram(Flags(flags), hooks); });
  }
};

TEST_F(CommandTrainTest, WritesEveryFileAndShowsWhatIsInThem) {
  ASSERT_EQ(Train({"--zero_stage=3", "--devices=2"}, {}), 0) << err_;
  for (const char* part :
       {"ZeRO-3", "step 2   held-out loss", "step 4   held-out loss", "What the model writes",
        "Memory of each of 2 devices", "Bytes that each of 2 devices sends",
        "  exposed communication   ", "counting, 2 tokens of context", "this model after 4 steps",
        "Files in"}) {
    EXPECT_THAT(out_, HasSubstr(part));
    EXPECT_THAT(Contents("log.txt"), HasSubstr(part));
  }
  // The plan is what happened, and the paper's figures are explained.
  EXPECT_THAT(out_, Not(HasSubstr("≠")));
  EXPECT_THAT(out_, Not(HasSubstr("unexplained")));
  EXPECT_THAT(err_, HasSubstr("step 4/4"));
  EXPECT_TRUE(fs::exists(folder_ / "out" / "model.safetensors"));

  const Json config = Parsed("config.json");
  EXPECT_EQ(config["flags"]["zero_stage"]["value"], 3);
  EXPECT_EQ(config["flags"]["zero_stage"]["source"], "flag");
  EXPECT_EQ(config["flags"]["seed"]["source"], "default");
  EXPECT_EQ(config["derived"]["global_batch"], 4 * 1 * 2);
  EXPECT_EQ(config["derived"]["tokens_per_step"], 4 * 1 * 2 * 16);

  const Json memory = Parsed("memory.json");
  for (const Json& device : memory["devices"]) {
    int64_t sum = 0, predicted = 0;
    for (const auto& [name, category] : device["categories"].items()) {
      sum += category["at_peak_bytes"].get<int64_t>();
      predicted += category["predicted_bytes"].get<int64_t>();
    }
    EXPECT_EQ(sum, device["peak_bytes"].get<int64_t>());
    EXPECT_EQ(predicted, sum);
    EXPECT_EQ(device["capacity_bytes"], 64 << 20);
  }
  const Json communication = Parsed("communication.json");
  for (const Json& rank : communication["ranks"]) {
    EXPECT_GT(rank["collectives"]["all_gather"]["bytes_sent"].get<int64_t>(), 0);
    EXPECT_EQ(rank["collectives"]["all_gather"]["bytes_sent"],
              rank["collectives"]["all_gather"]["predicted_bytes"]);
  }
  // The report is of this run, and its step is the last.
  const Json report = Parsed("report.json");
  const Json& run = report["runs"][0];
  EXPECT_EQ(report["command"].get<std::string>().rfind("zerobox train --data=", 0), 0u);
  EXPECT_EQ(run["step"]["index"], 4);
  EXPECT_EQ(run["metrics"]["step"], Json::parse("[1,2,3,4]"));
  EXPECT_EQ(run["metrics"]["validation"]["step"], Json::parse("[2,4]"));
  EXPECT_EQ(run["metrics"]["references"].size(), 3u);
  EXPECT_EQ(run["metrics"]["references"][2]["name"], "counting, 2 tokens of context");
  EXPECT_THAT(Contents("report.html"), HasSubstr("\"index\":4"));
  EXPECT_GT(Parsed("trace.json")["traceEvents"].size(), 20u);
  // Four steps and two evaluations, in order.
  std::istringstream lines(Contents("metrics.jsonl"));
  std::string line, order;
  while (std::getline(lines, line)) {
    const Json json = Json::parse(line);
    EXPECT_TRUE(!json.contains("loss") || json["exposed_seconds"].get<double>() >= 0) << line;
    order +=
        (json.contains("loss") ? " step " : " eval ") + std::to_string(json["step"].get<int>());
  }
  EXPECT_EQ(order, " step 1 step 2 eval 2 step 3 step 4 eval 4");
}

TEST_F(CommandTrainTest, ShowsMixedPrecisionCheckpointsAndOffloadAsPlanned) {
  ASSERT_EQ(Train({"--zero_stage=2", "--devices=2", "--dtype=bf16", "--n_layer=4", "--grad_accum=2",
                   "--activation_checkpointing=full", "--offload=activations,optimizer",
                   "--logits_bytes=2KiB"},
                  {}),
            0)
      << err_;
  for (const char* part :
       {"parameters in bf16, gradients in fp32",
        "activation checkpointing full; offload optimizer,activations", "parameters (bf16)",
        "gradients (fp32)", "On the host side", "2 slots on the device",
        "checkpoints of the first 2 blocks", "copied to host", "copied from host"}) {
    EXPECT_THAT(out_, HasSubstr(part));
  }
  EXPECT_THAT(out_, Not(HasSubstr("≠")));
  EXPECT_THAT(out_, Not(HasSubstr("unexplained")));

  const Json config = Parsed("config.json");
  EXPECT_EQ(config["flags"]["dtype"], Json::parse(R"({"value":"bf16","source":"flag"})"));
  EXPECT_EQ(config["flags"]["grad_accum_dtype"],
            Json::parse(R"({"value":"fp32","source":"derived"})"));
  EXPECT_EQ(config["flags"]["offload"],
            Json::parse(R"({"value":"optimizer,activations","source":"flag"})"));
  EXPECT_EQ(config["flags"]["logits_bytes"], Json::parse(R"({"value":2048,"source":"flag"})"));

  const Json memory = Parsed("memory.json");
  EXPECT_EQ(memory["dtype"], "bf16");
  EXPECT_EQ(memory["grad_accum_dtype"], "fp32");
  const int64_t elements = memory["parameters"].get<int64_t>() + memory["padding"].get<int64_t>();
  for (const Json& device : memory["devices"]) {
    const Json& host = device["host_categories"];
    EXPECT_EQ(host["optimizer_states"]["live_bytes"], 12 * elements / 2);
    EXPECT_EQ(host["gradients"]["live_bytes"], 4 * elements / 2);
    EXPECT_EQ(host["activation_checkpoints"]["live_bytes"], 2 * 4 * 16 * 16 * 2);
    EXPECT_EQ(device["categories"]["optimizer_states"]["peak_bytes"], 0);
    EXPECT_EQ(device["categories"]["gradients"]["peak_bytes"], 0);
    EXPECT_EQ(device["categories"]["parameters"]["live_bytes"], 2 * elements);
    for (const auto& [name, category] : host.items()) {
      EXPECT_EQ(category["at_peak_bytes"], category["predicted_bytes"]) << name;
    }
  }
  const Json communication = Parsed("communication.json");
  for (const Json& rank : communication["ranks"]) {
    // Two micro-batches of gradients, and two checkpoints each; the loss, and the step's state
    // twice.
    EXPECT_EQ(rank["copies"]["to_host"]["bytes"],
              2 * 4 * elements / 2 + 2 * 2 * 4 * 16 * 16 * 2 + 8 + 56 + 56);
    for (const char* way : {"to_host", "from_host"}) {
      EXPECT_EQ(rank["copies"][way]["bytes"], rank["copies"][way]["predicted_bytes"]);
    }
  }
}

TEST_F(CommandTrainTest, TracesNoStepWhereThatIsAskedFor) {
  ASSERT_EQ(Train({"--zero_stage=1", "--devices=2", "--trace=off"}, {}), 0) << err_;
  EXPECT_TRUE(Parsed("report.json")["runs"][0]["step"].is_null());
  EXPECT_TRUE(fs::exists(folder_ / "out" / "report.html"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "trace.json"));
  EXPECT_THAT(out_, AllOf(HasSubstr("report.html"), Not(HasSubstr("trace.json"))));
}

TEST_F(CommandTrainTest, TracesTheStepThatIsAskedFor) {
  ASSERT_EQ(Train({"--zero_stage=1", "--devices=2", "--trace=2"}, {}), 0) << err_;
  EXPECT_EQ(Parsed("report.json")["runs"][0]["step"]["index"], 2);
  EXPECT_EQ(Parsed("trace.json")["otherData"]["step"], 2);
}

TEST_F(CommandTrainTest, WritesNothingForARunThatDoesNotFit) {
  EXPECT_EQ(Train({"--zero_stage=1", "--devices=2", "--device_memory=64KiB"}, {}), 1);
  EXPECT_THAT(err_, HasSubstr("the run does not fit"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(CommandTrainTest, EndsWith3AndSaysWhereEveryDeviceWasWhenAWorkerFails) {
  TrainHooks hooks;
  hooks.call = [](const CallInfo& call) {
    return call.rank == 1 && call.number == 7 ? absl::InternalError("a cable was pulled")
                                              : absl::OkStatus();
  };
  EXPECT_EQ(Train({"--zero_stage=2", "--devices=3"}, hooks), 3);
  EXPECT_THAT(err_, HasSubstr("zerobox: a worker failed"));
  EXPECT_THAT(err_, HasSubstr("a cable was pulled"));
  for (const char* device : {"\n  device 0: ", "\n  device 1: ", "\n  device 2: "}) {
    EXPECT_THAT(err_, HasSubstr(device));
  }
  EXPECT_THAT(Contents("log.txt"), HasSubstr("a cable was pulled"));
}

TEST_F(CommandTrainTest, EndsWith3WhenAWorkerDoesNotComeBackFromAFailure) {
  std::atomic<bool> hangs{false}, never{false};
  TrainHooks hooks;
  hooks.watch.look_seconds = 0.001;
  hooks.watch.grace_seconds = 0.001;
  hooks.call = [&](const CallInfo& call) {
    if (call.number != 7) return absl::OkStatus();
    if (call.rank == 2) {
      hangs = true;
      hangs.notify_all();
      never.wait(false);
    }
    if (call.rank == 1) hangs.wait(false);
    return call.rank == 1 ? absl::InternalError("a cable was pulled") : absl::OkStatus();
  };
  EXPECT_EXIT(
      TrainProgram(Flags({"--zero_stage=3", "--devices=3"}), hooks), testing::ExitedWithCode(3),
      AllOf(HasSubstr("zerobox: a worker failed after step 0: rank 1: "),
            HasSubstr("a cable was pulled"), HasSubstr("\n  device 0: "),
            HasSubstr("\n  device 1: "), HasSubstr("\n  device 2: did not come back: step 1")));
  // What the process said is in the log that it leaves.
  EXPECT_THAT(Contents("log.txt"), HasSubstr("\n  device 2: did not come back: step 1"));
  EXPECT_TRUE(fs::exists(folder_ / "out" / "config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "model.safetensors"));
}

TEST_F(CommandTrainTest, EndsWith3WhenARankIsSilent) {
  std::atomic<bool> silent{false};
  std::atomic<int64_t> ahead{0};  // seconds, by which the watch's clock is
  std::array<std::atomic<const Device*>, 2> devices{};
  TrainHooks hooks;
  hooks.after_setup = [&](int rank, Device& device) { devices[rank] = &device; };
  hooks.watch.look_seconds = 0.001;
  hooks.watch.clock = [&] {
    return std::chrono::steady_clock::now() + std::chrono::seconds(ahead.load());
  };
  hooks.watch.after_look = [&] { ahead += silent ? 1 : 0; };
  hooks.call = [&](const CallInfo& call) {
    if (call.rank != 1 || call.number != 7) return absl::OkStatus();
    silent = true;
    while (devices[1].load()->status().ok()) std::this_thread::yield();
    return absl::OkStatus();
  };
  EXPECT_EQ(Train({"--zero_stage=2", "--devices=2", "--collective_timeout=5"}, hooks), 3);
  EXPECT_THAT(err_, HasSubstr("rank 0 has waited 5 s for "));
  EXPECT_THAT(err_, HasSubstr("\n  device 1: step "));
  EXPECT_THAT(Contents("log.txt"), HasSubstr("rank 0 has waited 5 s for "));
}

TEST_F(CommandTrainTest, CountsNoSetUpAsTimeOfTheFirstStep) {
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::time_point> last_set_up{};
  std::mutex mutex;
  Clock::time_point third_begins;  // on the last device: by then all have told how the first went
  TrainHooks hooks;
  hooks.after_setup = [&](int rank, Device&) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a slow one
      last_set_up = Clock::now();
    }
  };
  hooks.loss_scale = [&](int, int64_t step) {
    const std::lock_guard lock(mutex);
    if (step == 3) third_begins = Clock::now();
    return 1.0;
  };
  ASSERT_EQ(Train({"--devices=2", "--eval_interval=0", "--trace=off"}, hooks), 0) << err_;
  const std::string metrics = Contents("metrics.jsonl");
  const double seconds = Json::parse(metrics.substr(0, metrics.find('\n')))["step_seconds"];
  EXPECT_GT(seconds, 0);
  EXPECT_LE(seconds, std::chrono::duration<double>(third_begins - last_set_up.load()).count());
}

TEST_F(CommandTrainTest, ShowsSkippedSteps) {
  TrainHooks hooks;
  hooks.loss_scale = [](int rank, int64_t step) {
    return rank == 1 && step == 3 ? std::nan("") : 1.0;
  };
  EXPECT_EQ(Train({"--zero_stage=1", "--devices=2"}, hooks), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Skipped 1 of 4 steps"));
  EXPECT_THAT(err_, HasSubstr("skipped"));
  EXPECT_THAT(Contents("metrics.jsonl"), HasSubstr("\"skipped\":true,\"reason\":\""));
}

TEST_F(CommandTrainTest, RefusesTheSameFolderTwice) {
  ASSERT_EQ(Train({"--steps=1", "--warmup=0"}, {}), 0) << err_;
  const std::string before = Contents("metrics.jsonl");
  EXPECT_EQ(Train({"--steps=1", "--warmup=0"}, {}), 1);
  EXPECT_THAT(err_, HasSubstr("found one with files, which are kept"));
  EXPECT_EQ(Contents("metrics.jsonl"), before);
}

}  // namespace
}  // namespace zerobox
