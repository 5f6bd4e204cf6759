// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Tests run in a folder of their own, since runs/ is relative.
class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/run_folder_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    home_ = fs::current_path();
    folder_ = pattern;
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path(home_);
    fs::remove_all(folder_);
  }

  fs::path home_, folder_;
};

std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

// 2023-11-14 22:13:20 UTC.
constexpr std::time_t kNow = 1700000000;

TEST_F(RunFolderTest, IsNamedByTimeAndRunAndIsTheLatest) {
  auto first = RunFolder::Create("", "book-zero3-4dev", kNow).value();
  EXPECT_EQ(first->path(), "runs/20231114T221320Z-book-zero3-4dev");
  EXPECT_EQ(fs::read_symlink("runs/latest"), "20231114T221320Z-book-zero3-4dev");
  // A second run in the same second.
  auto second = RunFolder::Create("", "book-zero3-4dev", kNow).value();
  EXPECT_EQ(second->path(), "runs/20231114T221320Z-book-zero3-4dev-2");
  EXPECT_EQ(fs::read_symlink("runs/latest"), "20231114T221320Z-book-zero3-4dev-2");
}

TEST_F(RunFolderTest, LeavesSomethingElseByTheNameOfLatestAlone) {
  fs::create_directories("runs/latest");
  std::ofstream("runs/latest/mine") << "mine";
  ASSERT_TRUE(RunFolder::Create("", "x", kNow).ok());
  EXPECT_EQ(Contents("runs/latest/mine"), "mine");
  EXPECT_FALSE(fs::is_symlink("runs/latest"));
}

TEST_F(RunFolderTest, TakesTheNameThatItIsGiven) {
  EXPECT_EQ(RunFolder::Create("a/b/c", "x", kNow).value()->path(), "a/b/c");
  fs::create_directory("empty");
  EXPECT_EQ(RunFolder::Create("empty", "x", kNow).value()->path(), "empty");
  EXPECT_FALSE(fs::exists("runs"));
  EXPECT_EQ(RunFolder::Create("runs/mine/", "x", kNow).value()->path(), "runs/mine");
  EXPECT_EQ(fs::read_symlink("runs/latest"), "mine");
}

TEST_F(RunFolderTest, RefusesWhatItWouldOverwrite) {
  fs::create_directory("full");
  std::ofstream("full/notes.txt") << "keep me";
  std::ofstream("file") << "keep me too";
  const auto refused = [](const std::string& out) {
    std::string checked(RunFolder::Check(out).message());
    EXPECT_EQ(checked, RunFolder::Create(out, "x", kNow).status().message());
    return checked;
  };
  EXPECT_THAT(refused("full"), HasSubstr("found one with files, which are kept"));
  EXPECT_THAT(refused("file"), HasSubstr("found a file"));
  EXPECT_THAT(refused("file/below"), HasSubstr("on the way"));
  EXPECT_THAT(std::string(RunFolder::Create("/proc/zerobox", "x", kNow).status().message()),
              HasSubstr("--out=/proc/zerobox: wanted"));
  EXPECT_EQ(Contents("full/notes.txt"), "keep me");
  EXPECT_EQ(Contents("file"), "keep me too");
}

TEST_F(RunFolderTest, RefusesAPlaceThatCannotBeWritten) {
  fs::create_directory("closed");
  chmod("closed", 0555);
  chmod(".", 0755);
  // Root may write everywhere, so it becomes somebody else here.
  const uid_t user = geteuid();
  if (user == 0 && seteuid(65534) != 0) GTEST_SKIP() << "there is no other user here";
  const std::string message(RunFolder::Check("closed/out").message());
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_THAT(message, HasSubstr("is not writable; choose another place"));
  // To somebody else even a folder on the way may be closed.
  if (user != 0) {
    EXPECT_THAT(message, HasSubstr("closed is not writable"));
  }
}

TEST_F(RunFolderTest, ChecksWithoutCreatingAnything) {
  EXPECT_TRUE(RunFolder::Check("new/folder").ok());
  EXPECT_FALSE(fs::exists("new"));
}

TEST_F(RunFolderTest, HoldsOneRunOnly) {
  auto first = RunFolder::Create("out", "x", kNow).value();
  EXPECT_FALSE(RunFolder::Create("out", "x", kNow).ok());
}

TEST_F(RunFolderTest, GrowsLineByLine) {
  auto folder = RunFolder::Create("out", "x", kNow).value();
  folder->Log("hello\n");
  EXPECT_EQ(Contents("out/log.txt"), "hello\n");
  folder->Append(StepMetrics{.step = 1, .loss = 2, .exposed_seconds = 0.25});
  folder->Append(EvalMetrics{.step = 1, .val_loss = 3});
  EXPECT_EQ(Contents("out/metrics.jsonl"),
            "{\"step\":1,\"loss\":2.0,\"grad_norm\":0.0,\"clip\":1.0,\"lr\":0.0,\"tokens\":0,"
            "\"position\":0,\"epoch\":0,\"tokens_per_second\":0.0,\"step_seconds\":0.0,"
            "\"exposed_seconds\":0.25,\"skipped\":false}\n{\"step\":1,\"val_loss\":3.0}\n");
  folder->WriteConfig({}, {{"global_batch", 16}});
  EXPECT_TRUE(folder->status().ok());
  EXPECT_THAT(NamesIn("out"), UnorderedElementsAre("log.txt", "metrics.jsonl", "config.json"));
}

TEST_F(RunFolderTest, KeepsTheFirstErrorAndGoesOn) {
  auto folder = RunFolder::Create("out", "x", kNow).value();
  fs::create_directories("out/memory.json/in_the_way");
  folder->WriteMemory({}, {});
  folder->Log("still here\n");
  EXPECT_THAT(std::string(folder->status().message()), HasSubstr("memory.json: could not be"));
  EXPECT_EQ(Contents("out/log.txt"), "still here\n");
  EXPECT_THAT(NamesIn("out"), UnorderedElementsAre("log.txt", "metrics.jsonl", "memory.json"));
}

TEST_F(RunFolderTest, ReplacesAFileAndTouchesNoOther) {
  std::ofstream("page.html") << "old";
  std::ofstream("page.html.tmp") << "mine";
  std::ofstream("elsewhere") << "mine too";
  fs::create_symlink("elsewhere", "link.html.tmp");
  ASSERT_TRUE(ReplaceFile("page.html", "new").ok());
  ASSERT_TRUE(ReplaceFile("link.html", "new").ok());
  EXPECT_EQ(Contents("page.html"), "new");
  EXPECT_EQ(Contents("link.html"), "new");
  EXPECT_EQ(Contents("page.html.tmp"), "mine");
  EXPECT_EQ(Contents("elsewhere"), "mine too");
  EXPECT_TRUE(fs::is_symlink("link.html.tmp"));
  EXPECT_THAT(NamesIn("."), UnorderedElementsAre("page.html", "page.html.tmp", "elsewhere",
                                                 "link.html", "link.html.tmp"));
}

TEST_F(RunFolderTest, WritesFilesWithTheModeThatTheUmaskSays) {
  const mode_t before = umask(0027);
  ASSERT_TRUE(ReplaceFile("file", "text").ok());
  umask(before);
  EXPECT_EQ(fs::status("file").permissions(), static_cast<fs::perms>(0640));
}

TEST(ShortName, IsSafeInAFileName) {
  TrainSettings settings;
  settings.data = "/data/My book (2).txt";
  settings.zero_stage = 2;
  settings.devices = 8;
  EXPECT_EQ(ShortName(settings), "Mybook2-zero2-8dev");
  settings.data = "/data/*";
  EXPECT_EQ(ShortName(settings), "data-zero2-8dev");
}

TEST(StepLine, ReadsBackExactly) {
  for (const double number : {0.1, 1.0 / 3, 2.3025850929940455, 5e-324, 1.7976931348623157e308,
                              -1e-9, 123456789.125, 1e22}) {
    const Json json = Json::parse(StepLine({.step = 7, .loss = number, .grad_norm = number}));
    EXPECT_EQ(json["loss"].get<double>(), number);
    EXPECT_EQ(json["grad_norm"].get<double>(), number);
  }
  const Json json = Json::parse(StepLine({.tokens = 9223372036854775807}));
  EXPECT_EQ(json["tokens"].get<int64_t>(), 9223372036854775807);
}

TEST(StepLine, HasNullForWhatIsNotFinite) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(StepLine({.loss = nan, .grad_norm = inf, .skipped = true}));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["reason"], "the gradient norm is not finite");
  EXPECT_TRUE(Json::parse(EvalLine({.val_loss = nan}))["val_loss"].is_null());
}

TEST(ConfigText, HoldsValuesSourcesAndDerivedNumbers) {
  const Json json = Json::parse(
      ConfigText({{"lr", Topic::kBatchAndSchedule, 1e-3, "default"},
                  {"devices", Topic::kDevicesAndMemory, int64_t{4}, "flag"},
                  {"seed", Topic::kBatchAndSchedule, uint64_t{18446744073709551615u}, "flagfile"},
                  {"dry_run", Topic::kDataAndOutput, false, "default"},
                  {"data", Topic::kDataAndOutput, std::string("b\xff.txt"), "flag"}},
                 {{"global_batch", 16}}));
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["flags"]["lr"]["value"].get<double>(), 1e-3);
  EXPECT_EQ(json["flags"]["lr"]["source"], "default");
  EXPECT_EQ(json["flags"]["devices"]["value"], 4);
  EXPECT_EQ(json["flags"]["seed"]["value"].get<uint64_t>(), 18446744073709551615u);
  EXPECT_EQ(json["flags"]["dry_run"]["value"], false);
  EXPECT_THAT(json["flags"]["data"]["value"].get<std::string>(), HasSubstr(".txt"));
  EXPECT_EQ(json["derived"]["global_batch"], 16);
}

TEST(MemoryText, HasTheFixedShape) {
  RunPlan plan{.parameters = 100,
               .padding = 28,
               .types = {DType::kBFloat16, DType::kFloat32},
               .ranks = std::vector<RankPlan>(2)};
  std::vector<RankResult> ranks(2);
  plan.ranks[1].memory.at_peak[2] = 640;
  ranks[1].capacity_bytes = 5000;
  ranks[1].memory.live[2] = 512;
  ranks[1].memory.at_peak[2] = 600;
  ranks[1].memory.peak[2] = 700;
  ranks[1].memory.peak_bytes = 600;
  plan.ranks[1].host_memory.at_peak[2] = 64;
  ranks[1].host_memory.live[2] = 51;
  ranks[1].host_memory.at_peak[2] = 60;
  ranks[1].host_memory.peak[2] = 70;
  const Json json = Json::parse(MemoryText(plan, ranks));
  EXPECT_THAT(Keys(json),
              ElementsAre("parameters", "padding", "dtype", "grad_accum_dtype", "devices"));
  EXPECT_EQ(json["dtype"], "bf16");
  EXPECT_EQ(json["grad_accum_dtype"], "fp32");
  EXPECT_EQ(json["parameters"], 100);
  EXPECT_EQ(json["padding"], 28);
  const Json& device = json["devices"][1];
  EXPECT_THAT(Keys(device),
              ElementsAre("rank", "capacity_bytes", "peak_bytes", "categories", "host_categories"));
  EXPECT_EQ(device["rank"], 1);
  EXPECT_EQ(device["capacity_bytes"], 5000);
  EXPECT_EQ(device["peak_bytes"], 600);
  const auto categories =
      ElementsAre("parameters", "gradients", "optimizer_states", "activations",
                  "activation_checkpoints", "communication_buffers", "workspace");
  EXPECT_THAT(Keys(device["categories"]), categories);
  EXPECT_THAT(Keys(device["host_categories"]), categories);
  EXPECT_EQ(device["categories"]["optimizer_states"],
            Json::parse(R"({"live_bytes":512,"at_peak_bytes":600,"peak_bytes":700,
                            "predicted_bytes":640})"));
  EXPECT_EQ(device["host_categories"]["optimizer_states"],
            Json::parse(R"({"live_bytes":51,"at_peak_bytes":60,"peak_bytes":70,
                            "predicted_bytes":64})"));
}

TEST(CommunicationText, HasTheFixedShape) {
  RunPlan plan{.ranks = std::vector<RankPlan>(2)};
  std::vector<RankResult> ranks(2);
  plan.paper_bytes = {10, 20, 30, 0};
  plan.ranks[1].step_traffic.collectives[0] = {3, 11};
  plan.ranks[1].step_traffic.scalars = {1, 7};
  plan.ranks[1].step_copies = {.to_host = 5, .from_host = 6};
  ranks[1].step_traffic.collectives[0] = {3, 12};
  ranks[1].step_traffic.scalars = {1, 8};
  ranks[1].step_copies = {.to_host = 50, .from_host = 60};
  const Json json = Json::parse(CommunicationText(plan, ranks));
  const Json& row = json["ranks"][1];
  EXPECT_THAT(Keys(row), ElementsAre("rank", "collectives", "scalars", "copies"));
  EXPECT_THAT(Keys(row["collectives"]), ElementsAre("all_gather", "reduce_scatter", "all_reduce"));
  EXPECT_EQ(row["collectives"]["all_gather"],
            Json::parse(R"({"calls":3,"bytes_sent":12,"predicted_bytes":11,"paper_bytes":10})"));
  EXPECT_EQ(row["collectives"]["all_reduce"]["paper_bytes"], 30);
  EXPECT_EQ(row["scalars"], Json::parse(R"({"calls":1,"bytes_sent":8,"predicted_bytes":7})"));
  EXPECT_EQ(row["copies"], Json::parse(R"({"to_host":{"bytes":50,"predicted_bytes":5},
                                           "from_host":{"bytes":60,"predicted_bytes":6}})"));
}

TEST(RunFolder, NeedsRoomForTheModelInItsType) {
  RunPlan plan{.parameters = 1000};
  EXPECT_EQ(RunFolder::RoomFor(plan), 4 * 1000 + (32 << 20));
  plan.types = {DType::kBFloat16, DType::kFloat32};
  EXPECT_EQ(RunFolder::RoomFor(plan), 2 * 1000 + (32 << 20));
}

TEST(RunFolder, RefusesAPlaceWithoutRoomForTheModel) {
  EXPECT_TRUE(RunFolder::CheckRoom(testing::TempDir() + "/absent/run", 1).ok());
  const absl::Status status =
      RunFolder::CheckRoom(testing::TempDir() + "/absent/run", int64_t{1} << 60);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("wanted room for"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace zerobox
