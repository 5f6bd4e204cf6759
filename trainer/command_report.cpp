// SPDX-License-Identifier: Apache-2.0
//
// zerobox report: runs that are done -> one page.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/help.h"
#include "trainer/report.h"
#include "trainer/run_folder.h"
#include "trainer/screen.h"
#include "trainer/table_rows.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> ReadWhole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  // Of an empty file nothing can be put into `text`, which is no error.
  if (!file.is_open() || file.bad()) {
    return absl::UnavailableError(
        absl::StrCat(path.string(), ": wanted a file that can be read, found one that cannot"));
  }
  return std::move(text).str();
}

absl::StatusOr<NamedReport> ReadReport(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::path(folder) / "report.json";
  if (folder.empty() || !fs::is_regular_file(path, error)) {
    const char* const found = folder.empty()                    ? "no name"
                              : fs::is_directory(folder, error) ? "no report.json in it"
                              : fs::exists(folder, error)       ? "something that is no folder"
                                                                : "nothing there";
    return absl::NotFoundError(
        absl::StrCat("--runs: wanted the folder of a run, found ", found, ": '", folder,
                     "'; give --runs=FOLDER,FOLDER of runs that have trained a step"));
  }
  absl::StatusOr<std::string> text = ReadWhole(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<ReportObject> report = ParseReport(path.string(), *text);
  if (!report.ok()) return report.status();
  return NamedReport{path.string(), *std::move(report)};
}

absl::StatusOr<ReportObject> ReadReports(const std::vector<std::string>& folders,
                                         std::span<const std::string> arguments) {
  std::vector<NamedReport> reports;
  for (const std::string& folder : folders) {
    absl::StatusOr<NamedReport> report = ReadReport(folder);
    if (!report.ok()) return report.status();
    reports.push_back(*std::move(report));
  }
  const bool several = reports.size() > 1;
  absl::StatusOr<ReportObject> merged = MergeReports(std::move(reports));
  if (!merged.ok() || !several) return merged;
  std::vector<std::string> command = {"report"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  SetMaker(*merged, CommandText(command), std::time(nullptr));
  (*merged)["title"] = absl::StrCat((*merged)["runs"].size(), " runs of ",
                                    (*merged)["model"]["name"].get<std::string>());
  return merged;
}

// Whether the page may be written there: a report is replaced, and nothing else.
absl::Status CheckOut(const std::string& out) {
  const auto refuse = [&](std::string_view found) {
    return absl::InvalidArgumentError(absl::StrCat("--out=", out,
                                                   ": wanted a name for the page, found ",
                                                   std::string(found), "; choose another name"));
  };
  std::error_code error;
  const fs::path folder = fs::absolute(out, error).parent_path();
  if (!fs::is_directory(folder, error)) return refuse("no folder " + folder.string());
  const fs::file_status status = fs::status(out, error);
  if (!fs::exists(status)) return absl::OkStatus();
  if (fs::is_directory(status)) return refuse("a folder");
  if (!fs::is_regular_file(status)) return refuse("something that is no file");
  const absl::StatusOr<std::string> text = ReadWhole(out);
  if (!text.ok()) return text.status();
  const bool ours = text->starts_with("<!doctype html") &&
                    text->find("\"schema\":\"zerobox.report/") != std::string::npos;
  return ours ? absl::OkStatus() : refuse("a file that is no report, which is kept");
}

absl::Status WriteReport(std::span<const std::string> arguments, Screen& screen) {
  const std::vector<std::string> folders = ParseList(absl::GetFlag(FLAGS_runs));
  const absl::StatusOr<ReportObject> report = ReadReports(folders, arguments);
  if (!report.ok()) return report.status();
  std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) {
    out = (fs::path(folders[0]) / (folders.size() == 1 ? "report.html" : "compare.html")).string();
  }
  if (absl::Status status = CheckOut(out); !status.ok()) return status;
  const std::string page = ReportPage(*report);
  if (absl::Status status = ReplaceFile(out, page); !status.ok()) return status;
  const auto runs = static_cast<int64_t>((*report)["runs"].size());
  screen.Print(absl::StrCat(out, ": ", Plural(runs, "run", "runs"), ", ",
                            HumanBytes(static_cast<int64_t>(page.size())),
                            "; open it in a browser\n"));
  return absl::OkStatus();
}

}  // namespace

int ReportProgram(std::span<const std::string> arguments) {
  Screen screen(OptionsOfThisProcess());
  const absl::StatusOr<CommandLine> line = ParseArguments(kReportCommand, arguments);
  absl::Status status = line.status();
  if (line.ok() && (line->help || line->version)) {
    screen.Print(line->help ? FlagsHelp(kReportCommand) : VersionText());
  } else if (line.ok()) {
    status = WriteReport(arguments, screen);
  }
  if (!status.ok()) {
    screen.Say(std::string(status.message()));
    return kRefused;
  }
  return screen.out_ok() ? kDone : kRefused;
}

}  // namespace zerobox
