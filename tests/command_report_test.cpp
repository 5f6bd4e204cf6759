// SPDX-License-Identifier: Apache-2.0
//
// zerobox report, run as a program.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process.h"
#include "tests/small_report.h"
#include "trainer/report.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CommandReportTest : public testing::Test {
 protected:
  std::string In(const std::string& name) const { return folder_.path() + "/" + name; }

  // The folder of a run that left this report.
  std::string Run(const std::string& name, int stage) const {
    const SmallReport small(stage);
    return Run(name, ReportText(MakeReport(small.run())));
  }
  std::string Run(const std::string& name, const std::string& report) const {
    fs::create_directory(In(name));
    WriteFile(In(name) + "/report.json", report);
    return In(name);
  }

  // The exit code; what was printed is in output_.
  int Report(const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {ProgramPath(), "report"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    Process process(arguments);
    const int code = process.Wait();
    output_ = process.output();
    return code;
  }

  // Nothing is written, whatever is wrong.
  void ExpectRefused(const std::vector<std::string>& flags, const std::string& why) {
    const auto files = [&] {
      std::vector<std::string> files;
      for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
        files.push_back(entry.path().string() + "\n" + ReadFile(entry.path().string()));
      }
      std::sort(files.begin(), files.end());
      return files;
    };
    const std::vector<std::string> before = files();
    EXPECT_EQ(Report(flags), 1) << output_;
    EXPECT_THAT(output_, AllOf(testing::StartsWith("zerobox: "), HasSubstr(why)));
    EXPECT_EQ(files(), before);
  }

  static Json DataOf(const std::string& page) {
    const std::string open = "id=\"report-data\">";
    const size_t begin = page.find(open) + open.size();
    return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }

  const TemporaryFolder folder_;
  std::string output_;
};

TEST_F(CommandReportTest, WritesThePageOfARunIntoItsFolder) {
  const std::string a = Run("a", 3);
  ASSERT_EQ(Report({"--runs=" + a}), 0) << output_;
  EXPECT_THAT(output_, HasSubstr(a + "/report.html: 1 run, "));
  EXPECT_EQ(DataOf(ReadFile(a + "/report.html")), Json::parse(ReadFile(a + "/report.json")));
  EXPECT_EQ(std::distance(fs::directory_iterator(a), fs::directory_iterator()), 2);
}

TEST_F(CommandReportTest, ShowsSeveralRunsOnOnePage) {
  const std::string a = Run("a", 0), b = Run("b", 3), c = Run("c", 3);
  ASSERT_EQ(Report({"--runs=" + a + "," + b + "," + c}), 0) << output_;
  EXPECT_THAT(output_, HasSubstr(a + "/compare.html: 3 runs, "));
  EXPECT_EQ(Report({"--runs=" + a + ", " + b, "--out=" + In("blank.html")}), 0) << output_;
  const Json report = DataOf(ReadFile(a + "/compare.html"));
  ASSERT_EQ(report["runs"].size(), 3u);
  EXPECT_EQ(report["runs"][2]["id"], "zero3-2");
  EXPECT_EQ(report["command"], "zerobox report --runs=" + a + "," + b + "," + c);
  EXPECT_EQ(report["title"], "3 runs of tiny");
  EXPECT_FALSE(fs::exists(a + "/report.html"));
  // Again, over the page that is there; and by another name.
  EXPECT_EQ(Report({"--runs=" + a + "," + b}), 0) << output_;
  EXPECT_EQ(DataOf(ReadFile(a + "/compare.html"))["runs"].size(), 2u);
  EXPECT_EQ(Report({"--runs=" + a + "," + b, "--out=" + In("page.html")}), 0) << output_;
  EXPECT_EQ(DataOf(ReadFile(In("page.html")))["runs"].size(), 2u);
}

TEST_F(CommandReportTest, ShowsWhatTrainHasWritten) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
  WriteFile(In("book.txt"), text);
  for (const char* stage : {"1", "2"}) {
    Process train({ProgramPath(), "train", "--data=" + In("book.txt"),
                   "--out=" + In(std::string("run") + stage), std::string("--zero_stage=") + stage,
                   "--devices=2", "--n_layer=1", "--n_head=1", "--n_embd=16", "--seq_len=16",
                   "--steps=3", "--eval_interval=0", "--sample_bytes=0", "--device_memory=64MiB"});
    ASSERT_EQ(train.Wait(), 0) << train.output();
  }
  ASSERT_EQ(Report({"--runs=" + In("run1") + "," + In("run2")}), 0) << output_;
  const Json report = DataOf(ReadFile(In("run1/compare.html")));
  EXPECT_EQ(report["runs"][0]["stage"], 1);
  EXPECT_EQ(report["runs"][1]["stage"], 2);
  EXPECT_EQ(report["runs"][1]["step"]["index"], 3);
}

TEST_F(CommandReportTest, RefusesFoldersThatHoldNoReport) {
  const std::string a = Run("a", 3);
  fs::create_directory(In("empty"));
  WriteFile(In("file"), "mine");
  ExpectRefused({"--runs=" + In("absent")}, "found nothing there: '" + In("absent") + "'");
  ExpectRefused({"--runs=" + In("empty")}, "found no report.json in it");
  ExpectRefused({"--runs=" + In("file")}, "found something that is no folder");
  ExpectRefused({"--runs=" + a + "," + In("absent")}, "found nothing there");
  ExpectRefused({"--runs=" + a + ","}, "found no name");
  ExpectRefused({"--runs="}, "found no name");
}

TEST_F(CommandReportTest, RefusesReportsThatItCannotRead) {
  const std::string a = Run("a", 3);
  ExpectRefused({"--runs=" + Run("broken", "{\"schema\":")}, "broken/report.json: wanted the JSON");
  ExpectRefused({"--runs=" + Run("blank", "")}, "blank/report.json: wanted the JSON");
  ExpectRefused({"--runs=" + Run("later", "{\"schema\":\"zerobox.report/9\"}")},
                "found zerobox.report/9");
  ExpectRefused({"--runs=" + Run("hollow", "{\"schema\":\"zerobox.report/1\",\"runs\":3}")},
                "wrong or missing part");
  Json other = Json::parse(ReadFile(a + "/report.json"));
  other["model"]["name"] = "gpt2";
  ExpectRefused({"--runs=" + a + "," + Run("other", other.dump())},
                "other/report.json: wanted the model of " + a + "/report.json, tiny");
}

TEST_F(CommandReportTest, ReplacesNothingButAReport) {
  const std::string a = Run("a", 3);
  WriteFile(In("notes.html"), "<!doctype html>\nmine");
  WriteFile(a + "/report.html", "mine");
  ExpectRefused({"--runs=" + a},
                "a/report.html: wanted a name for the page, found a file that is "
                "no report, which is kept");
  ExpectRefused({"--runs=" + a, "--out=" + In("notes.html")}, "which is kept");
  ExpectRefused({"--runs=" + a, "--out=" + a + "/report.json"}, "which is kept");
  ExpectRefused({"--runs=" + a, "--out=" + a}, "found a folder");
  ExpectRefused({"--runs=" + a, "--out=" + In("absent/page.html")}, "found no folder");
  ExpectRefused({"--runs=" + a, "--out=/dev/null"}, "something that is no file");
}

TEST_F(CommandReportTest, LeavesNothingBehindWhereItCannotWrite) {
  const std::string a = Run("a", 3);
  ASSERT_EQ(Report({"--runs=" + a}), 0) << output_;
  const std::string page = ReadFile(a + "/report.html");
  // No file of this process and of those that it starts grows beyond 10,000 bytes, as if the disk
  // were full.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 10000;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  ExpectRefused({"--runs=" + a}, "report.html: could not be written: File too large");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(ReadFile(a + "/report.html"), page);
}

TEST_F(CommandReportTest, HasHelpAndTakesNoFlagOfAnotherCommand) {
  EXPECT_EQ(Report({"--help"}), 0);
  EXPECT_THAT(output_, AllOf(HasSubstr("--runs=FOLDER"), HasSubstr("--out=FILE"),
                             Not(HasSubstr("--zero_stage"))));
  ExpectRefused({"--zero_stage=3"}, "--zero_stage is a flag of train, not of report");
  ExpectRefused({"--run=a"}, "--run is a flag of sample, not of report");
  ExpectRefused({"--rums=a"}, "did you mean --runs?");
}

}  // namespace
}  // namespace zerobox
