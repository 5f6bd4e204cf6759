// SPDX-License-Identifier: Apache-2.0
//
// report.json: the object that report.html draws, docs/report_data.md. A run of `train` has one
// with itself; several runs of one model are merged into one.
#ifndef ZEROBOX_TRAINER_REPORT_H_
#define ZEROBOX_TRAINER_REPORT_H_

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "trainer/resolve.h"
#include "trainer/results.h"

namespace zerobox {

inline constexpr std::string_view kReportSchema = "zerobox.report/1";
using ReportObject = nlohmann::ordered_json;

// A horizontal line beside the losses: a model that only counts.
struct ReferenceLoss {
  std::string name;
  double loss = 0;
};

// Of a run with the one it is compared to.
struct Equality {
  std::string reference;  // that run's id
  bool losses_equal = false;
  std::optional<bool> parameters_equal;  // none: the models could not be read
  struct Difference {
    // After which the parameter differs, or whose loss does; none where that was not found.
    std::optional<int64_t> step;
    std::string parameter;  // "": it is the loss that differs
    int unit = -1;
    int64_t element = 0;
    double reference = 0, value = 0;
  };
  std::optional<Difference> first_difference;
  // None: nothing that was compared differs, and not all was.
  std::optional<bool> equal() const { return losses_equal ? parameters_equal : false; }
};

struct LargestModel {
  int64_t parameters = 0;
  int64_t n_layer = 0;
};

// What a report says of one run. `resolved` and `plan` are needed.
struct ReportRun {
  std::string id;       // "": the name of NameOfRun
  std::string label;    // "": its long label
  std::string command;  // the command line that made it
  std::time_t created = 0;
  const ResolvedTrain* resolved = nullptr;
  const RunPlan* plan = nullptr;
  const RunResult* result = nullptr;  // null: the run did not fit
  std::string failure;                // one sentence, where it did not fit or failed: why
  std::vector<ReferenceLoss> references;
  std::optional<Equality> equality;           // none for the run that others are compared to
  std::optional<LargestModel> largest_model;  // that fits with everything else unchanged
};

// As reports and compare.json have it.
ReportObject EqualityJson(const Equality& equality);

// The whole object, with this run alone.
ReportObject MakeReport(const ReportRun& run);

// A report and where it was read, "runs/a/report.json", for messages.
struct NamedReport {
  std::string name;
  ReportObject report;
};
// All their runs in one object, whose head is that of the first. Ids that are taken get "-2", "-3"
// behind them, references to them too. InvalidArgument when a report is none, or when models or
// units differ: wanted and found.
absl::StatusOr<ReportObject> MergeReports(std::vector<NamedReport> reports);

// InvalidArgument, beginning with `name`, unless the text is a JSON object of our schema with all
// that merging and the page's head rely on.
absl::StatusOr<ReportObject> ParseReport(const std::string& name, std::string_view text);

// Says who wrote the object, and when; the program is this one.
void SetMaker(ReportObject& report, const std::string& command, std::time_t created);

// The text of report.json: one line, UTF-8; what is not finite is null.
std::string ReportText(const ReportObject& report);
// The text of report.html: the page with everything that it needs, the object included.
std::string ReportPage(const ReportObject& report);

// `arguments` as one line that a shell would read back.
std::string CommandText(std::span<const std::string> arguments);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_REPORT_H_
