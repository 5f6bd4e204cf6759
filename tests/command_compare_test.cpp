// SPDX-License-Identifier: Apache-2.0
//
// The compare command in this process, with runs that are disturbed.
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/command_run.h"
#include "trainer/commands.h"
#include "trainer/tables.h"
#include "trainer/text.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CommandCompareTest : public CommandRun {
 protected:
  std::vector<std::string> Flags(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"--device=host", "--devices=2", "--steps=5"});
    return CommandRun::Flags(std::move(flags));
  }
  // The model of Flags in a plan.
  int64_t Reserved(int stage) const {
    TrainSettings settings;
    settings.devices = 2;
    settings.zero_stage = stage;
    settings.model = {.n_layer = 2, .n_head = 2, .n_embd = 16, .seq_len = 16, .vocab_size = 256};
    const absl::StatusOr<RunPlan> plan = PlanRun(settings);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? LargestReservation(*plan) : 0;
  }

  int Compare(const std::vector<std::string>& flags, const std::vector<TrainHooks>& hooks = {}) {
    return Call([&] { return CompareProgram(Flags(flags), hooks); });
  }

  bool Wrote(const std::string& name) const { return fs::exists(folder_ / "out" / name); }
  // The lines of the table, from its title on.
  std::string Table() const { return out_.substr(out_.find(" of the same ")); }
};

// The gradient of one step an ulp off.
TrainHooks OffAtStep(int64_t wrong) {
  TrainHooks hooks;
  hooks.loss_scale = [wrong](int, int64_t step) {
    return step == wrong ? 1 + std::numeric_limits<float>::epsilon() : 1.0;
  };
  return hooks;
}

TEST_F(CommandCompareTest, RunsEveryStageAndWritesAFolderForEach) {
  ASSERT_EQ(Compare({}), 0) << err_;
  for (const char* part :
       {"Run 1 of 4: zero0", "Run 4 of 4: zero3", "A GPT on 2 devices, ZeRO-3",
        "step 4   held-out loss", "4 runs of the same 5 steps, each of 2 devices",
        "  zero0 reference", "  zero1 bitwise equal", "  zero2 bitwise equal",
        "  zero3 bitwise equal",
        "All 4 runs came to the same losses and parameters, bit by bit; zero3", "Files in",
        "memory.png", "  zero2/"}) {
    EXPECT_THAT(out_, HasSubstr(part));
    EXPECT_THAT(Contents("log.txt"), HasSubstr(part));
  }
  EXPECT_THAT(err_, HasSubstr("step 5/5"));
  for (const char* file : {"report.html", "report.json", "compare.json", "memory.png", "log.txt"}) {
    EXPECT_TRUE(Wrote(file)) << file;
  }
  EXPECT_FALSE(Wrote("metrics.jsonl"));
  for (const char* run : {"zero0", "zero1", "zero2", "zero3"}) {
    for (const char* file : {"model.safetensors", "metrics.jsonl", "memory.json",
                             "communication.json", "config.json", "report.html", "log.txt"}) {
      EXPECT_TRUE(Wrote(absl::StrCat(run, "/", file))) << run << " " << file;
    }
  }
  // Each run's log is its own part, and its settings are those of the run.
  EXPECT_THAT(Contents("zero1/log.txt"), AllOf(HasSubstr("ZeRO-1"), HasSubstr("step 5/5"),
                                               Not(HasSubstr("ZeRO-0")), Not(HasSubstr("ZeRO-2"))));
  const Json config = Parsed("zero1/config.json");
  EXPECT_EQ(config["flags"]["zero_stage"]["value"], 1);
  EXPECT_EQ(config["flags"]["out"]["value"], (folder_ / "out" / "zero1").string());
  EXPECT_EQ(Contents("memory.png").substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(Contents("zero0/model.safetensors"), Contents("zero3/model.safetensors"));
}

TEST_F(CommandCompareTest, HasTheNumbersInCompareJsonAndInTheReport) {
  ASSERT_EQ(Compare({}), 0) << err_;
  const Json json = Parsed("compare.json");
  EXPECT_EQ(json["baseline"], "zero0");
  EXPECT_EQ(json["reference"], "zero0");
  EXPECT_EQ(json["steps"], 5);
  ASSERT_EQ(json["runs"].size(), 4u);
  // Psi with padding, in fp32: 4 + 4 + 8 bytes each, of which 1/2 at the stage and beyond.
  const Json memory = Parsed("zero0/memory.json");
  const int64_t elements = memory["parameters"].get<int64_t>() + memory["padding"].get<int64_t>();
  const std::vector<int64_t> states = {16 * elements, 12 * elements, 10 * elements, 8 * elements};
  for (size_t stage = 0; stage < 4; ++stage) {
    const Json& run = json["runs"][stage];
    EXPECT_EQ(run["name"], absl::StrCat("zero", stage));
    EXPECT_EQ(run["end"], "done");
    EXPECT_EQ(run["steps"], 5);
    EXPECT_EQ(run["state_bytes"]["measured"], states[stage]);
    EXPECT_EQ(run["state_bytes"]["predicted"], states[stage]);
    EXPECT_NEAR(run["saved"].get<double>(),
                static_cast<double>(states[0]) / static_cast<double>(states[stage]), 1e-12);
    const Json own = Parsed(absl::StrCat("zero", stage, "/memory.json"));
    EXPECT_EQ(run["peak_bytes"]["measured"], own["devices"][0]["peak_bytes"]);
    int64_t sent = 0;
    const Json traffic = Parsed(absl::StrCat("zero", stage, "/communication.json"));
    for (const Json& collective : traffic["ranks"][0]["collectives"]) {
      sent += collective["bytes_sent"].get<int64_t>();
    }
    EXPECT_EQ(run["sent_bytes"]["counted"], sent);
    // Numbers of 4 bytes, of which half stay on their device.
    EXPECT_NEAR(run["sent_psi"].get<double>(),
                static_cast<double>(sent) / 4 * 2 / memory["parameters"].get<double>(), 1e-9);
    EXPECT_GT(run["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(run["largest_model"]["n_layer"].get<int64_t>(), 2);
    EXPECT_EQ(run["equality"].is_null(), stage == 0);
    EXPECT_TRUE(stage == 0 || run["equality"]["equal"] == true);
  }
  EXPECT_GT(json["runs"][3]["largest_model"]["parameters"].get<int64_t>(),
            json["runs"][0]["largest_model"]["parameters"].get<int64_t>());

  const Json report = Parsed("report.json");
  ASSERT_EQ(report["runs"].size(), 4u);
  EXPECT_EQ(report["runs"][3]["id"], "zero3");
  EXPECT_EQ(report["runs"][3]["label"], "ZeRO-3");
  EXPECT_EQ(report["runs"][3]["equality"]["reference"], "zero0");
  EXPECT_EQ(report["runs"][3]["equality"]["equal"], true);
  EXPECT_TRUE(report["runs"][0]["equality"].is_null());
  EXPECT_EQ(report["runs"][3]["largest_model"], json["runs"][3]["largest_model"]);
  EXPECT_EQ(report["command"].get<std::string>().rfind("zerobox compare --data=", 0), 0u);
  // The page of a run has that run alone.
  EXPECT_EQ(Parsed("zero3/report.json")["runs"].size(), 1u);
}

TEST_F(CommandCompareTest, KeepsTheTableIn80ColumnsWithNamesOfAnyLength) {
  ASSERT_EQ(Compare({"--zero_stages=0,3", "--offloads=none,optimizer+activations",
                     "--activation_checkpointings=selective,full", "--steps=3"}),
            0)
      << err_;
  EXPECT_THAT(out_, HasSubstr("All 8 runs came to the same losses and parameters"));
  EXPECT_THAT(Table(), HasSubstr("\n  zero3-full-offload-optimizer-activations\n"));
  for (const absl::string_view line : absl::StrSplit(Table(), '\n')) {
    if (absl::StrContains(line, folder_.string())) continue;
    EXPECT_LE(Columns(std::string_view(line.data(), line.size())), 80) << line;
  }
  EXPECT_TRUE(Wrote("zero3-full-offload-optimizer-activations/model.safetensors"));
}

TEST_F(CommandCompareTest, ShowsWhereARunFirstDiffers) {
  ASSERT_EQ(Compare({"--zero_stages=0,1,2"}, {{}, {}, OffAtStep(3)}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("zero2 differs from zero0; looking for where it does"));
  EXPECT_THAT(Table(),
              AllOf(HasSubstr("  zero1 bitwise equal"), HasSubstr("  zero2 ≠ step 4"),
                    HasSubstr("zero2 differs from zero0 after step 3, not yet after step 2: "),
                    HasSubstr("zero2 differs from zero0, which is an error of zerobox")));
  const Json runs = Parsed("compare.json")["runs"];
  EXPECT_EQ(runs[1]["equality"]["equal"], true);
  const Json& equality = runs[2]["equality"];
  EXPECT_EQ(equality["equal"], false);
  EXPECT_EQ(equality["promised"], true);
  EXPECT_EQ(equality["first_different_loss"]["step"], 4);
  EXPECT_EQ(equality["first_difference"]["step"], 3);
  EXPECT_NE(equality["first_difference"]["reference"], equality["first_difference"]["value"]);
  EXPECT_EQ(Parsed("report.json")["runs"][2]["equality"]["first_difference"],
            equality["first_difference"]);
  // The search left nothing behind.
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_ / "out")) ++entries;
  EXPECT_EQ(entries, 5 + 3);
}

TEST_F(CommandCompareTest, TakesDifferencesThatMayBeCalmly) {
  ASSERT_EQ(Compare({"--zero_stages=0,1,3", "--grad_accum=2"}), 0) << err_;
  EXPECT_THAT(Table(), AllOf(HasSubstr("  zero1 bitwise equal"), HasSubstr("  zero3 ≠ step "),
                             HasSubstr("in the last digits, as may be"),
                             Not(HasSubstr("an error of zerobox"))));
  EXPECT_EQ(Parsed("compare.json")["runs"][2]["equality"]["promised"], false);
}

TEST_F(CommandCompareTest, ShowsRunsThatDoNotFitAndRunsTheRest) {
  const int64_t room = Reserved(3);
  ASSERT_LT(room, Reserved(0));
  ASSERT_EQ(Compare({"--zero_stages=0,3", absl::StrCat("--device_memory=", room)}), 0) << err_;
  EXPECT_THAT(Table(), AllOf(HasSubstr("  zero0 does not fit"), HasSubstr("  zero3 reference"),
                             HasSubstr(absl::StrCat("(", WithCommas(Reserved(0)), " bytes)")),
                             HasSubstr(WithCommas(room)),
                             HasSubstr("zero3 has no other run to be compared to"),
                             HasSubstr("zero0 does not fit.")));
  EXPECT_FALSE(Wrote("zero0"));
  EXPECT_TRUE(Wrote("zero3/model.safetensors"));
  const Json json = Parsed("compare.json");
  EXPECT_EQ(json["reference"], "zero3");
  EXPECT_EQ(json["runs"][0]["end"], "does_not_fit");
  EXPECT_EQ(json["runs"][0]["reserved_bytes"], Reserved(0));
  EXPECT_TRUE(json["runs"][0]["peak_bytes"]["measured"].is_null());
  EXPECT_EQ(json["runs"][1]["largest_model"]["n_layer"], 2);  // what just fits
  const Json report = Parsed("report.json");
  EXPECT_EQ(report["runs"][0]["status"], "out_of_memory");
  EXPECT_EQ(report["runs"][1]["status"], "ok");
}

TEST_F(CommandCompareTest, RefusesWhereNoRunFits) {
  EXPECT_EQ(Compare({"--zero_stages=0,3", "--device_memory=1KiB"}), 1);
  EXPECT_THAT(err_, AllOf(HasSubstr("none of the runs fits; zero0: the run does not fit: it needs"),
                          HasSubstr("What is left: ")));
  EXPECT_THAT(Table(), HasSubstr("  zero3 does not fit"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(CommandCompareTest, RefusesBadInputBeforeAnythingIsMade) {
  const auto refused = [this](const std::vector<std::string>& flags, const char* why) {
    EXPECT_EQ(Compare(flags), 1);
    EXPECT_THAT(err_, HasSubstr(why));
    EXPECT_EQ(out_, "");
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  };
  refused({"--zero_stages=0,0"}, "found '0' again");
  refused({"--offloads=none,activations"}, "wanted checkpoints to offload");
  refused({"--sample_bytes=10"}, "--sample_bytes is a flag of train, not of compare");
  refused({"--data=" + (folder_ / "none").string()}, "none");
  refused({"--micro_batch=4000"}, "wanted at least one global batch");
  refused({"--stages=0"}, "did you mean --zero_stages");
}

TEST_F(CommandCompareTest, RefusesAFolderWithFiles) {
  fs::create_directories(folder_ / "out");
  std::ofstream(folder_ / "out" / "mine") << "text";
  EXPECT_EQ(Compare({}), 1);
  EXPECT_THAT(err_, HasSubstr("found one with files, which are kept"));
  EXPECT_FALSE(Wrote("log.txt"));
}

TEST_F(CommandCompareTest, PlansAndWritesNothingInADryRun) {
  EXPECT_EQ(Compare({"--dry_run"}), 0) << err_;
  EXPECT_THAT(Table(), AllOf(HasSubstr("  zero0 not run"), HasSubstr("2.04Ψ"),
                             HasSubstr("A dry run: nothing was trained")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(CommandCompareTest, EndsWith3WhenAWorkerFailsAndWritesWhatWasDone) {
  TrainHooks hooks;
  hooks.call = [](const CallInfo& call) {
    return call.rank == 1 && call.number == 7 ? absl::InternalError("a cable was pulled")
                                              : absl::OkStatus();
  };
  EXPECT_EQ(Compare({"--zero_stages=0,2,3"}, {{}, hooks}), 3);
  EXPECT_THAT(err_, AllOf(HasSubstr("zero2: a worker failed after step "),
                          HasSubstr("a cable was pulled"), HasSubstr("\n  device 1: ")));
  EXPECT_THAT(Table(), AllOf(HasSubstr("  zero0 reference"), HasSubstr("  zero2 failed"),
                             HasSubstr("  zero3 not run"), HasSubstr("a cable was pulled")));
  EXPECT_TRUE(Wrote("zero0/model.safetensors"));
  EXPECT_TRUE(Wrote("memory.png"));
  EXPECT_FALSE(Wrote("zero3"));
  const Json runs = Parsed("compare.json")["runs"];
  EXPECT_EQ(runs[0]["end"], "done");
  EXPECT_EQ(runs[1]["end"], "failed");
  EXPECT_THAT(runs[1]["failure"].get<std::string>(), HasSubstr("a cable was pulled"));
  EXPECT_EQ(runs[2]["end"], "not_run");
  const Json report = Parsed("report.json");
  EXPECT_EQ(report["runs"][0]["id"], "zero0");
  EXPECT_EQ(report["runs"][0]["status"], "ok");
  // What it had done by then is shown as that of a run that failed, in both reports.
  ASSERT_GT(runs[1]["steps"].get<int64_t>(), 0);
  for (const Json& failed : {report["runs"][1], Parsed("zero2/report.json")["runs"][0]}) {
    EXPECT_EQ(failed["status"], "failed");
    EXPECT_THAT(failed["failure"].get<std::string>(), HasSubstr("a cable was pulled"));
  }
}

TEST_F(CommandCompareTest, ListsTheFilesThatItHasWritten) {
  TrainHooks hooks;
  hooks.call = [](const CallInfo&) { return absl::InternalError("a cable was pulled"); };
  EXPECT_EQ(Compare({"--zero_stages=0,3"}, {hooks}), 3);
  EXPECT_FALSE(Wrote("report.html"));
  const std::string list = out_.substr(out_.find("Files in"));
  EXPECT_THAT(list, AllOf(Not(HasSubstr("report.")), HasSubstr("  compare.json"),
                          HasSubstr("  memory.png"), HasSubstr("  log.txt")));
}

TEST_F(CommandCompareTest, SaysThatModelsThatCannotBeReadWereNotCompared) {
  TrainHooks hooks;
  hooks.after_setup = [this](int rank, Device&) {
    if (rank == 0) fs::remove(folder_ / "out" / "zero0" / "model.safetensors");
  };
  ASSERT_EQ(Compare({"--zero_stages=0,1"}, {{}, hooks}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("the models of zero0 and zero1 cannot be compared"));
  EXPECT_THAT(Table(), AllOf(HasSubstr("  zero1 not compared"), Not(HasSubstr("bit by bit")),
                             HasSubstr("the parameters of zero1 were not\n  compared")));
  for (const char* file : {"compare.json", "report.json"}) {
    const Json equality = Parsed(file)["runs"][1]["equality"];
    EXPECT_EQ(equality["losses_equal"], true) << file;
    EXPECT_TRUE(equality["equal"].is_null()) << file;
    EXPECT_TRUE(equality["parameters_equal"].is_null()) << file;
  }
}

TEST_F(CommandCompareTest, KnowsThatLossesDifferWhereModelsCannotBeRead) {
  TrainHooks hooks = OffAtStep(3);
  hooks.after_setup = [this](int rank, Device&) {
    if (rank == 0) fs::remove(folder_ / "out" / "zero0" / "model.safetensors");
  };
  ASSERT_EQ(Compare({"--zero_stages=0,1"}, {{}, hooks}), 0) << err_;
  EXPECT_THAT(Table(), AllOf(HasSubstr("  zero1 ≠ step 4"), Not(HasSubstr("bit by bit")),
                             HasSubstr("zero1 differs from zero0, which is an error")));
  const Json equality = Parsed("compare.json")["runs"][1]["equality"];
  EXPECT_EQ(equality["equal"], false);
  EXPECT_TRUE(equality["parameters_equal"].is_null());
  EXPECT_EQ(equality["first_difference"]["step"], 3);
}

TEST_F(CommandCompareTest, NamesNoStepWhereTheDifferenceDoesNotHappenAgain) {
  std::atomic<int> runs{0};
  TrainHooks once;
  once.after_setup = [&runs](int rank, Device&) { runs += rank == 0 ? 1 : 0; };
  once.loss_scale = [&runs](int, int64_t step) {
    return step == 3 && runs == 1 ? 1 + std::numeric_limits<float>::epsilon() : 1.0;
  };
  ASSERT_EQ(Compare({"--zero_stages=0,1"}, {{}, once}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("not found: it did not happen again"));
  EXPECT_THAT(Table(), AllOf(HasSubstr("zero1 differs from zero0 in the trained parameters: "),
                             HasSubstr("is that of step 4"), Not(HasSubstr("after step"))));
  for (const char* file : {"compare.json", "report.json"}) {
    const Json difference = Parsed(file)["runs"][1]["equality"]["first_difference"];
    EXPECT_TRUE(difference["step"].is_null()) << file;
    EXPECT_NE(difference["parameter"], "") << file;
  }
}

TEST_F(CommandCompareTest, EndsInOrderAfterASignal) {
  // Of a process of its own, which the signal's number stays in.
  TrainHooks hooks;
  hooks.loss_scale = [](int rank, int64_t step) {
    if (rank == 0 && step == 2) std::raise(SIGTERM);
    return 1.0;
  };
  EXPECT_EXIT(std::exit(CompareProgram(Flags({"--zero_stages=0,1,2"}), {{}, hooks})),
              testing::ExitedWithCode(128 + SIGTERM),
              HasSubstr("zerobox: stopped by SIGTERM; what was done is written"));
  const Json runs = Parsed("compare.json")["runs"];
  EXPECT_EQ(runs[0]["end"], "done");
  EXPECT_EQ(runs[1]["end"], "stopped");
  EXPECT_GE(runs[1]["steps"].get<int64_t>(), 2);
  EXPECT_LT(runs[1]["steps"].get<int64_t>(), 5);
  EXPECT_TRUE(runs[1]["equality"].is_null());
  EXPECT_EQ(runs[2]["end"], "not_run");
  EXPECT_TRUE(Wrote("zero1/model.safetensors"));
  EXPECT_TRUE(Wrote("report.html"));
  EXPECT_FALSE(Wrote("zero2"));
}

// A call in which rank 0 never comes back, and the others then fail.
struct Hang {
  absl::Status Call(const CallInfo& call) {
    if (call.rank == 0) {
      hangs = true;
      hangs.notify_all();
      never.wait(false);
    }
    hangs.wait(false);
    return absl::InternalError("a cable was pulled");
  }
  std::atomic<bool> hangs{false}, never{false};
};

TEST_F(CommandCompareTest, WritesWhatWasDoneWhenAWorkerDoesNotComeBack) {
  Hang hang;
  TrainHooks hooks;
  hooks.watch.look_seconds = 0.001;
  hooks.watch.grace_seconds = 0.001;
  hooks.call = [&](const CallInfo& call) {
    return call.number == 7 ? hang.Call(call) : absl::OkStatus();
  };
  EXPECT_EXIT(CompareProgram(Flags({"--zero_stages=0,3"}), {{}, hooks}), testing::ExitedWithCode(3),
              AllOf(HasSubstr("zero3: a worker failed after step "),
                    HasSubstr("\n  device 0: did not come back: ")));
  EXPECT_EQ(Parsed("compare.json")["runs"][0]["end"], "done");
  EXPECT_EQ(Parsed("compare.json")["runs"][1]["end"], "failed");
  EXPECT_EQ(Parsed("report.json")["runs"].size(), 1u);
  EXPECT_TRUE(Wrote("memory.png"));
}

TEST_F(CommandCompareTest, WritesWhatWasDoneWhenAWorkerOfTheSearchDoesNotComeBack) {
  Hang hang;
  std::atomic<int> runs{0};
  TrainHooks hooks = OffAtStep(3);
  hooks.watch.look_seconds = 0.001;
  hooks.watch.grace_seconds = 0.001;
  hooks.after_setup = [&runs](int rank, Device&) { runs += rank == 0 ? 1 : 0; };
  hooks.call = [&](const CallInfo& call) {
    return call.number == 7 && runs != 1 ? hang.Call(call) : absl::OkStatus();
  };
  EXPECT_EXIT(CompareProgram(Flags({"--zero_stages=0,3"}), {{}, hooks}), testing::ExitedWithCode(3),
              AllOf(HasSubstr("looking for where it does"), HasSubstr("not found: a worker failed"),
                    HasSubstr("\n  device 0: did not come back: ")));
  const Json runs_json = Parsed("compare.json")["runs"];
  EXPECT_EQ(runs_json[1]["end"], "done");
  EXPECT_EQ(runs_json[1]["equality"]["equal"], false);
  EXPECT_TRUE(runs_json[1]["equality"]["first_difference"]["step"].is_null());
  EXPECT_EQ(Parsed("report.json")["runs"].size(), 2u);
}

TEST_F(CommandCompareTest, ComparesOneDevice) {
  ASSERT_EQ(Compare({"--devices=1", "--zero_stages=0,3"}), 0) << err_;
  EXPECT_THAT(Table(), AllOf(HasSubstr("0.00Ψ"), HasSubstr("Both runs came to the same losses")));
}

}  // namespace
}  // namespace zerobox
