// SPDX-License-Identifier: Apache-2.0
//
// report.json as `zerobox report` reads it. What is accepted: its text is read as the same object
// again; a page with it holds that object and nothing of it that ends the script; and of the report
// put together with itself every run has an id and a label of its own.
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/small_report.h"
#include "trainer/report.h"

namespace zerobox::fuzz {
namespace {

void CheckPage(const ReportObject& report) {
  const std::string page = ReportPage(report);
  const std::string open = R"(id="report-data">)";
  const size_t begin = page.find(open) + open.size();
  const size_t end = page.find("</script>", begin);
  Expect(ReportObject::parse(page.substr(begin, end - begin)) == report, "the page has the report");
  Expect(page.substr(begin, end - begin).find('<') == std::string::npos, "and no tag in it");
}

void CheckMerged(const ReportObject& report) {
  const absl::StatusOr<ReportObject> merged = MergeReports({{"a", report}, {"b", report}});
  Expect(merged.ok(), "a report can stand beside itself");
  const ReportObject& runs = merged->at("runs");
  Expect(runs.size() == 2 * report.at("runs").size(), "all runs are there");
  std::set<std::string> ids, labels;
  for (const ReportObject& run : runs) {
    Expect(ids.insert(run.at("id").get<std::string>()).second, "an id is of one run");
    Expect(labels.insert(run.at("label").get<std::string>()).second, "a label is of one run");
  }
  CheckPage(*merged);
}

}  // namespace

void Check(std::string_view input) {
  const absl::StatusOr<ReportObject> report = ParseReport("report.json", input);
  if (!report.ok()) {
    ExpectRefused(report.status());
    return Expect(report.status().message().size() < 1000, "a message can be read");
  }
  const absl::StatusOr<ReportObject> again = ParseReport("again", ReportText(*report));
  Expect(again.ok() && *again == *report, "what is written is read again");
  const absl::StatusOr<ReportObject> alone = MergeReports({{"a", *report}});
  Expect(alone.ok(), "a report can stand alone");
  CheckPage(*alone);
  CheckMerged(*report);
}

std::vector<std::string> Seeds() {
  // A real one, whole; and less of it, of which mutations are quicker.
  ReportObject report = MakeReport(SmallReport().run());
  std::vector<std::string> seeds = {ReportText(report)};
  ReportObject& run = report["runs"][0];
  for (const char* key : {"step", "metrics"}) run[key] = nullptr;
  run["memory"] = ReportObject::object();
  for (const char* key : {"program", "machine"}) report[key] = ReportObject::object();
  for (const char* key : {"flags", "communication"}) run.erase(key);
  seeds.push_back(ReportText(report));
  ReportObject other = run;
  other["equality"] = {{"reference", run["id"]}, {"equal", true}};
  other["label"] = "</script><script>";
  report["runs"].push_back(other);
  seeds.push_back(ReportText(report));
  return seeds;
}

std::vector<std::string> Words() {
  std::vector<std::string> words = {
      "</script>", "<!--",    "\\u0000", "1e999", "-0.0", "18446744073709551615",
      "[[[[[[[[",  "{\"a\":", "null",    "\"-2\""};
  for (const char* key : {"title",      "command",    "created",
                          "program",    "machine",    "model",
                          "name",       "parameters", "padded_parameters",
                          "layers",     "units",      "padded_elements",
                          "categories", "runs",       "id",
                          "label",      "status",     "memory",
                          "step",       "metrics",    "equality",
                          "reference",  "schema"}) {
    words.push_back("\"" + std::string(key) + "\":");
  }
  return words;
}

}  // namespace zerobox::fuzz
