// SPDX-License-Identifier: Apache-2.0
//
// Reports that are read back: put together, or refused.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/small_report.h"
#include "trainer/report.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

using Json = ReportObject;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json ReportOf(int stage) {
  const SmallReport small(stage);
  return MakeReport(small.run());
}

std::string ErrorOf(const absl::StatusOr<Json>& report) {
  return report.ok() ? "" : std::string(report.status().message());
}

TEST(MergeReports, KeepsOneReportAsItIs) {
  const Json report = ReportOf(3);
  EXPECT_EQ(MergeReports({{"a", report}}).value(), report);
}

TEST(MergeReports, PutsAllRunsBehindTheHeadOfTheFirst) {
  Json second = ReportOf(3);
  second["title"] = "another";
  const Json merged = MergeReports({{"a", ReportOf(0)}, {"b", second}}).value();
  ASSERT_EQ(merged["runs"].size(), 2u);
  EXPECT_EQ(merged["runs"][0]["id"], "zero0");
  EXPECT_EQ(merged["runs"][1]["id"], "zero3");
  EXPECT_EQ(merged["title"], ReportOf(0)["title"]);
  EXPECT_EQ(merged["runs"][1]["step"], second["runs"][0]["step"]);
}

TEST(MergeReports, GivesEachRunAnIdAndALabelOfItsOwnAndReferencesFollow) {
  // Stage 0, and stage 3 compared to it, twice.
  Json pair = MergeReports({{"a", ReportOf(0)}, {"a", ReportOf(3)}}).value();
  pair["runs"][1]["equality"] = {{"reference", "zero0"}, {"equal", true}};
  const Json merged = MergeReports({{"a", pair}, {"b", pair}}).value();
  std::vector<std::string> found;
  for (const Json& run : merged["runs"]) {
    found.push_back(run["id"].get<std::string>() + ", " + run["label"].get<std::string>() +
                    (run["equality"].is_null()
                         ? ""
                         : ", as " + run["equality"]["reference"].get<std::string>()));
  }
  EXPECT_THAT(
      found, testing::ElementsAre("zero0, ZeRO-0", "zero3, ZeRO-3, as zero0", "zero0-2, ZeRO-0 (2)",
                                  "zero3-2, ZeRO-3 (2), as zero0-2"));
}

TEST(MergeReports, GivesNamesThatNoOtherRunHas) {
  const auto ids = [](const std::vector<const char*>& names) {
    std::vector<NamedReport> reports;
    for (const char* name : names) {
      reports.push_back({"a", ReportOf(3)});
      reports.back().report["runs"][0]["id"] = name;
    }
    std::vector<std::string> found;
    const Json merged = MergeReports(std::move(reports)).value();
    for (const Json& run : merged["runs"]) {
      found.push_back(run["id"].get<std::string>());
    }
    return found;
  };
  EXPECT_THAT(ids({"a", "a-2", "a", "a", "a-2", "a"}),
              testing::ElementsAre("a", "a-2", "a-3", "a-4", "a-2-2", "a-5"));
}

TEST(MergeReports, TakesManyRunsOfOneId) {
  Json many = ReportOf(3);
  const Json run = {
      {"id", "a"},       {"label", "A"},       {"status", "ok"},     {"memory", {{"a", 1}}},
      {"step", nullptr}, {"metrics", nullptr}, {"equality", nullptr}};
  constexpr size_t kRuns = 100000;  // 5e9 attempts, where each is tried with all numbers from 2
  many["runs"] = Json::array();
  for (size_t i = 0; i < kRuns; ++i) many["runs"].push_back(run);
  const Json merged = MergeReports({{"a", std::move(many)}}).value();
  EXPECT_EQ(merged["runs"][kRuns - 1]["id"], "a-100000");
  EXPECT_EQ(merged["runs"][kRuns - 1]["label"], "A (100000)");
}

TEST(MergeReports, RefusesRunsOfAnotherModelOrOtherUnits) {
  SmallReport other;
  other.resolved.model = "gpt2";
  EXPECT_THAT(ErrorOf(MergeReports({{"a", ReportOf(3)}, {"b", MakeReport(other.run())}})),
              AllOf(StartsWith("b: wanted the model of a, tiny of 1,920 parameters in 2 layers"),
                    HasSubstr("found gpt2 of 1,920 parameters"), HasSubstr("one page")));
  other = SmallReport();
  other.resolved.settings.model.n_head = 4;  // which costs nothing
  EXPECT_THAT(ErrorOf(MergeReports({{"a", ReportOf(3)}, {"b", MakeReport(other.run())}})),
              HasSubstr("found another of that size"));
  // 4 shards: 256 elements of the ends, 1024 of a block.
  other = SmallReport();
  other.resolved.settings.devices = 4;
  other.plan = PlanRun(other.resolved.settings).value();
  EXPECT_THAT(ErrorOf(MergeReports({{"a", ReportOf(3)}, {"b", MakeReport(other.run())}})),
              AllOf(HasSubstr("b: wanted the units of a, 2,048 elements with their padding, "
                              "found others, 2,304"),
                    HasSubstr("--devices")));
  EXPECT_THAT(ErrorOf(MergeReports({})), HasSubstr("found none"));
}

TEST(ParseReport, ReadsWhatWasWritten) {
  const Json report = ReportOf(3);
  EXPECT_EQ(ParseReport("a", ReportText(report)).value(), report);
}

TEST(ParseReport, RefusesWhatIsNoReport) {
  const std::string whole = ReportText(ReportOf(3));
  const std::pair<std::string, std::string> cases[] = {
      {"", "wanted the JSON of a report"},
      {"hello", "wanted the JSON of a report"},
      {whole.substr(0, whole.size() / 2), "wanted the JSON of a report"},
      {whole + "x", "wanted the JSON of a report"},
      {"{\"schema\":1e999}", "wanted the JSON of a report"},
      {"\"\xff\"", "wanted the JSON of a report"},
      {"null", "JSON without one"},
      {"[]", "JSON without one"},
      {"3", "JSON without one"},
      {"{}", "JSON without one"},
      {"{\"schema\":3}", "JSON without one"},
      {"{\"schema\":\"zerobox.report/2\"}",
       "wanted a report of the schema zerobox.report/1, found zerobox.report/2"},
      {"{\"schema\":\"zerobox.report/1\"}", "a wrong or missing part"},
      {std::string(64, '['), "wanted the JSON of a report"},
      {std::string(100000, '['), "more than 64 deep"},
      {std::string(100000, '[') + std::string(100000, ']'), "more than 64 deep"},
  };
  for (const auto& [text, why] : cases) {
    EXPECT_THAT(ErrorOf(ParseReport("run/report.json", text)),
                AllOf(StartsWith("run/report.json: "), HasSubstr(why)))
        << text.substr(0, 60);
  }
}

TEST(ParseReport, TakesLongListsButNoObjectOfThousandsOfNames) {
  Json report = ReportOf(3);
  // 5e9 looks, where each object that is read makes the parser look through the list again.
  report["runs"][0]["more"] = std::vector<Json>(100000, Json::object());
  EXPECT_EQ(ParseReport("a", ReportText(report)).value(), report);
  // And as many where each name is compared to those before.
  std::string names = "{\"0\":0";
  for (int i = 1; i < 100000; ++i) names += ",\"" + std::to_string(i) + "\":0";
  EXPECT_THAT(ErrorOf(ParseReport("a", "[" + names + "}]")),
              HasSubstr("more than 1000 names in one object"));
}

TEST(ParseReport, ShowsNothingOfAHostileReportToTheTerminal) {
  const std::string escape = "\x1b]0;mine\x07" + std::string(1000, 'x') + "\n";
  Json schema = ReportOf(3), model = ReportOf(3);
  schema["schema"] = escape;
  model["model"]["name"] = escape;
  for (const std::string& error :
       {ErrorOf(ParseReport("a", ReportText(schema))),
        ErrorOf(ParseReport("a", "{\"\xc2\x9bmine" + std::string(1000, 'x'))),
        ErrorOf(MergeReports({{"a", ReportOf(3)}, {"b", model}}))}) {
    EXPECT_THAT(error, HasSubstr("mine"));
    for (const char c : error) EXPECT_TRUE(c >= ' ' && c < 127) << error;
    EXPECT_LT(error.size(), 600u);
  }
}

// Everything below `part`, one after the other, replaced by `wrong`; `check` sees the whole.
template <typename Check>
void ReplaceEach(Json& whole, Json& part, const Json& wrong, const Check& check) {
  for (auto& item : part.items()) {
    const Json kept = std::exchange(item.value(), wrong);
    check(whole);
    item.value() = kept;
    if (item.value().is_structured()) ReplaceEach(whole, item.value(), wrong, check);
  }
}

TEST(ParseReport, TakesOrRefusesWrongTypesAnywhereButNeverThrows) {
  const Json good = ReportOf(3);
  int tried = 0, refused = 0;
  for (const Json& wrong : {Json(), Json(-1), Json("x"), Json(0.5), Json(true), Json::array(),
                            Json::object(), Json::array({1}), Json{{"a", 1}}}) {
    Json whole = good;
    ReplaceEach(whole, whole, wrong, [&](const Json& broken) {
      ++tried;
      const absl::StatusOr<Json> parsed = ParseReport("b", ReportText(broken));
      if (!parsed.ok()) {
        ++refused;
        return;
      }
      const absl::StatusOr<Json> merged = MergeReports({{"a", good}, {"b", *parsed}});
      if (merged.ok()) {
        EXPECT_THAT(ReportText(*merged), StartsWith("{\"schema\":\"zerobox.report/1\""));
      }
      refused += !merged.ok();
    });
  }
  EXPECT_GT(tried, 1000);
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, tried);
}

}  // namespace
}  // namespace zerobox
