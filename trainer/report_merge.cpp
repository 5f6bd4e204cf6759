// SPDX-License-Identifier: Apache-2.0
//
// Reports that were read from files, of which anything must be expected.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "trainer/report.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

using Json = ReportObject;

// Ours are 8 deep. Deeper ones would take the stack of whoever walks them.
constexpr size_t kDeepest = 64;
// Ours have as many as there are flags. An object of this type is searched from its beginning.
constexpr int kMostKeys = 1000;

// Text of a report as it may go to a terminal.
constexpr size_t kLongestName = 60, kLongestReason = 200;  // bytes
std::string Quoted(const std::string& text, size_t longest = kLongestName) {
  const std::string quoted = absl::CHexEscape(text.substr(0, longest));
  return text.size() > longest ? quoted + "..." : quoted;
}

absl::Status Refuse(const std::string& name, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", why));
}

// Looks through a JSON text, without keeping any of it, for what would take too long to keep.
class Limits final : public nlohmann::json_sax<Json> {
 public:
  // "" while the text is within them.
  const std::string& beyond() const { return beyond_; }

  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string&) override {
    if (++keys_.back() > kMostKeys) {
      beyond_ = absl::StrCat("that has more than ", kMostKeys, " names in one object");
    }
    return beyond_.empty();
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  bool Open() {
    keys_.push_back(0);
    if (keys_.size() > kDeepest) beyond_ = absl::StrCat("that is more than ", kDeepest, " deep");
    return beyond_.empty();
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  std::vector<int> keys_;  // so far, of each object or list that is open
  std::string beyond_;
};

absl::StatusOr<Json> ParseJson(const std::string& name, std::string_view text) {
  // Before parsing, not in a callback of it, which looks through a list again after each object.
  Limits limits;
  Json::sax_parse(text.begin(), text.end(), &limits);
  if (!limits.beyond().empty()) {
    return Refuse(name, absl::StrCat("wanted a report, found JSON ", limits.beyond(),
                                     "; give the folder of a run"));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    return Refuse(name,
                  absl::StrCat("wanted the JSON of a report, found something else (",
                               Quoted(error.what(), kLongestReason), "); make the report again"));
  }
}

// Everything that merging and the page's head rely on; `at` throws where it is not so.
void CheckShape(const Json& report) {
  for (const char* key : {"title", "command", "created"}) {
    report.at(key).get_ref<const std::string&>();
  }
  for (const char* key : {"program", "machine", "model"}) {
    report.at(key).get_ref<const Json::object_t&>();
  }
  report.at("model").at("name").get_ref<const std::string&>();
  for (const char* key : {"parameters", "padded_parameters", "layers"}) {
    report.at("model").at(key).get_ref<const Json::number_integer_t&>();
  }
  for (const Json& unit : report.at("units").get_ref<const Json::array_t&>()) {
    unit.at("name").get_ref<const std::string&>();
    unit.at("padded_elements").get_ref<const Json::number_integer_t&>();
  }
  for (const Json& category : report.at("categories").get_ref<const Json::array_t&>()) {
    category.get_ref<const std::string&>();
  }
  for (const Json& run : report.at("runs").get_ref<const Json::array_t&>()) {
    for (const char* key : {"id", "label", "status"}) run.at(key).get_ref<const std::string&>();
    run.at("memory").get_ref<const Json::object_t&>();
    for (const char* key : {"step", "metrics", "equality"}) {
      if (!run.at(key).is_null()) run.at(key).get_ref<const Json::object_t&>();
    }
    if (!run.at("equality").is_null()) {
      run.at("equality").at("reference").get_ref<const std::string&>();
    }
  }
  if (report.at("runs").empty()) report.at("runs").at(0);
}

std::string Describe(const Json& model) {
  return absl::StrCat(Quoted(model.at("name").get_ref<const std::string&>()), " of ",
                      WithCommas(model.at("parameters").get<int64_t>()), " parameters in ",
                      model.at("layers").get<int64_t>(), " layers");
}

// Why `other` cannot be on one page with `first`; "" if it can.
std::string Difference(const NamedReport& first, const NamedReport& other) {
  const Json &a = first.report, &b = other.report;
  Json model_a = a.at("model"), model_b = b.at("model");
  for (Json* model : {&model_a, &model_b}) model->erase("padded_parameters");
  if (model_a != model_b) {
    const std::string wanted = Describe(model_a), found = Describe(model_b);
    return absl::StrCat("wanted the model of ", first.name, ", ", wanted, ", found ",
                        found == wanted ? "another of that size" : found,
                        "; one page shows runs of one model");
  }
  if (a.at("units") != b.at("units") || a.at("model") != b.at("model")) {
    return absl::StrCat(
        "wanted the units of ", first.name, ", ",
        WithCommas(a.at("model").at("padded_parameters").get<int64_t>()),
        " elements with their padding, found others, ",
        WithCommas(b.at("model").at("padded_parameters").get<int64_t>()),
        "; one page shows runs with the same --devices, --bucket_bytes and --grad_accum_dtype, "
        "which decide the padding");
  }
  if (a.at("categories") != b.at("categories")) {
    return absl::StrCat("wanted the categories of ", first.name,
                        ", found others; make both reports with one version of zerobox");
  }
  return "";
}

class UniqueNames {
 public:
  explicit UniqueNames(std::function<std::string(int64_t)> suffix) : suffix_(std::move(suffix)) {}

  // "zero3", "zero3-2", ...: the first that was not returned before.
  std::string Of(const std::string& text) {
    std::string unique = text;
    int64_t& next = next_[text];  // all before it are taken
    for (next = std::max<int64_t>(next, 2); !taken_.insert(unique).second;) {
      unique = text + suffix_(next++);
    }
    return unique;
  }

 private:
  const std::function<std::string(int64_t)> suffix_;
  std::set<std::string> taken_;
  std::map<std::string, int64_t> next_;
};

Json Merged(std::vector<NamedReport> reports) {
  UniqueNames ids([](int64_t i) { return absl::StrCat("-", i); });
  UniqueNames labels([](int64_t i) { return absl::StrCat(" (", i, ")"); });
  Json runs = Json::array();
  for (NamedReport& named : reports) {
    std::map<std::string, std::string> new_ids;
    Json& own = named.report.at("runs");
    for (Json& run : own) {
      const std::string id = run.at("id").get<std::string>();
      run["id"] = ids.Of(id);
      run["label"] = labels.Of(run.at("label").get<std::string>());
      new_ids.emplace(id, run["id"].get<std::string>());
    }
    for (Json& run : own) {
      if (!run.at("equality").is_null()) {
        Json& reference = run.at("equality").at("reference");
        const auto found = new_ids.find(reference.get_ref<const std::string&>());
        if (found != new_ids.end()) reference = found->second;
      }
      runs.push_back(std::move(run));
    }
  }
  Json merged = std::move(reports.front().report);
  merged["runs"] = std::move(runs);
  return merged;
}

}  // namespace

absl::StatusOr<ReportObject> ParseReport(const std::string& name, std::string_view text) {
  absl::StatusOr<Json> report = ParseJson(name, text);
  if (!report.ok()) return report;
  const auto schema = report->is_object() ? report->find("schema") : report->end();
  if (schema == report->end() || *schema != kReportSchema) {
    const bool named = schema != report->end() && schema->is_string();
    return Refuse(
        name, absl::StrCat("wanted a report of the schema ", std::string(kReportSchema), ", found ",
                           named ? Quoted(schema->get<std::string>()) : "JSON without one",
                           "; make the report again with this version of zerobox"));
  }
  try {
    CheckShape(*report);
  } catch (const Json::exception& error) {
    return Refuse(name,
                  absl::StrCat("wanted a whole report, found one with a wrong or missing "
                               "part (",
                               Quoted(error.what(), kLongestReason), "); make the report again"));
  }
  return report;
}

absl::StatusOr<ReportObject> MergeReports(std::vector<NamedReport> reports) {
  if (reports.empty()) return absl::InvalidArgumentError("wanted at least one report, found none");
  try {
    for (const NamedReport& other : reports) {
      if (const std::string why = Difference(reports.front(), other); !why.empty()) {
        return Refuse(other.name, why);
      }
    }
    return Merged(std::move(reports));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted whole reports, found one with a wrong or missing part (",
                     Quoted(error.what(), kLongestReason), ")"));
  }
}

}  // namespace zerobox
