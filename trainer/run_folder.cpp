// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "checkpoints/new_file.h"
#include "nlohmann/json.hpp"
#include "trainer/build_info.h"
#include "trainer/report.h"
#include "trainer/text.h"
#include "trainer/trace_events.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMostFoldersOfOneSecond = 1000;
constexpr int64_t kLogAndReportBytes = int64_t{32} << 20;

// NaN and infinities become null; other numbers read back exactly. Bytes that are not UTF-8, in
// file names, are replaced rather than refused.
std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json CategoriesJson(const Ledger& measured, const Ledger& predicted) {
  Json categories;
  for (size_t i = 0; i < kCategories; ++i) {
    categories[std::string(Name(static_cast<Category>(i)))] = {
        {"live_bytes", measured.live[i]},
        {"at_peak_bytes", measured.at_peak[i]},
        {"peak_bytes", measured.peak[i]},
        {"predicted_bytes", predicted.at_peak[i]}};
  }
  return categories;
}

std::string UtcTime(std::time_t now) {
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text;
  text[std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc)] = 0;
  return text.data();
}

// Where `path` will be created: its nearest ancestor that exists.
fs::path ExistingAncestor(const fs::path& path) {
  std::error_code error;
  fs::path ancestor = fs::absolute(path, error).lexically_normal();
  while (!fs::exists(ancestor, error) && ancestor.has_relative_path()) {
    ancestor = ancestor.parent_path();
  }
  return ancestor;
}

bool Writable(const fs::path& folder) {
  return faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

// Points runs/latest to `folder`, which lies in runs/. Something else by that name is left alone.
void PointLatestTo(const fs::path& folder) {
  std::error_code error;
  const fs::path latest = folder.parent_path() / "latest";
  const fs::file_status present = fs::symlink_status(latest, error);
  if (fs::exists(present) && !fs::is_symlink(present)) return;
  const fs::path temporary = folder.parent_path() / absl::StrCat(".latest-", getpid());
  fs::remove(temporary, error);
  fs::create_directory_symlink(folder.filename(), temporary, error);
  if (!error) fs::rename(temporary, latest, error);
}

absl::StatusOr<std::string> CreateNamed(const std::string& out) {
  if (absl::Status status = RunFolder::Check(out); !status.ok()) return status;
  std::error_code error;
  fs::create_directories(out, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out=", out, ": wanted to create this folder, found: ", error.message(),
                     "; choose another --out"));
  }
  const size_t end = out.find_last_not_of('/');
  return end == std::string::npos ? out : out.substr(0, end + 1);
}

absl::StatusOr<std::string> CreateInRuns(const std::string& name) {
  std::error_code error;
  fs::create_directories("runs", error);
  for (int i = 1; !error && i <= kMostFoldersOfOneSecond; ++i) {
    const std::string path = absl::StrCat("runs/", name, i == 1 ? "" : absl::StrCat("-", i));
    if (fs::create_directory(path, error)) return path;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "runs/", name,
      ": wanted to create this folder, found: ", error ? error.message() : "too many of that name",
      "; choose another place with --out=FOLDER"));
}

// The file, in letters that are safe in a file name.
std::string DataName(const TrainSettings& settings) {
  std::string stem;
  for (const char c : fs::path(settings.data).stem().string()) {
    const bool safe = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    if (safe && stem.size() < 24) stem += c;
  }
  if (stem.empty() || stem.find_first_not_of('.') == std::string::npos) stem = "data";
  return stem;
}

}  // namespace

std::string ShortName(const TrainSettings& settings) {
  return absl::StrCat(DataName(settings), "-zero", settings.zero_stage, "-", settings.devices,
                      "dev");
}

std::string CompareName(const TrainSettings& settings) {
  return absl::StrCat("compare-", DataName(settings), "-", settings.devices, "dev");
}

absl::Status RunFolder::Check(const std::string& out) {
  std::error_code error;
  const fs::path ancestor = ExistingAncestor(out);
  if (fs::exists(out, error)) {
    if (!fs::is_directory(out, error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--out=", out, ": wanted an absent or empty folder, found a file; choose another name"));
    }
    const bool empty = fs::is_empty(out, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("--out=", out, ": wanted a readable folder, found: ", error.message(),
                       "; choose another name"));
    }
    if (!empty) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--out=", out,
          ": wanted an absent or empty folder, found one with files, which are kept; choose "
          "another name or remove it"));
    }
  } else if (!fs::is_directory(ancestor, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out=", out, ": wanted a folder name, found the file ", ancestor.string(),
                     " on the way; choose another place"));
  }
  if (!Writable(ancestor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out=", out, ": wanted a place to write to, but ", ancestor.string(),
                     " is not writable; choose another place"));
  }
  return absl::OkStatus();
}

int64_t RunFolder::RoomFor(const RunPlan& plan) {
  return plan.parameters * SizeOf(plan.types.parameters) + kLogAndReportBytes;
}

absl::Status RunFolder::CheckRoom(const std::string& out, int64_t bytes) {
  std::error_code error;
  const fs::path ancestor = ExistingAncestor(out.empty() ? "runs" : out);
  const fs::space_info space = fs::space(ancestor, error);
  if (error || space.available >= static_cast<uintmax_t>(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      out.empty() ? "runs" : absl::StrCat("--out=", out), ": wanted room for ", HumanBytes(bytes),
      " (the model, logs and reports), found ", HumanBytes(static_cast<int64_t>(space.available)),
      "; make room or choose another place"));
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Create(const std::string& out,
                                                             const std::string& short_name,
                                                             std::time_t now) {
  auto folder = CreateForRuns(out, short_name, now);
  if (!folder.ok()) return folder;
  if (absl::Status status = (*folder)->OpenMetrics(); !status.ok()) {
    (*folder)->Remove();
    return status;
  }
  std::error_code error;
  const fs::path absolute = fs::absolute((*folder)->path(), error).lexically_normal();
  if (absolute.parent_path() == fs::absolute("runs", error).lexically_normal()) {
    PointLatestTo(fs::path("runs") / absolute.filename());
  }
  return folder;
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::CreateForRuns(const std::string& out,
                                                                    const std::string& short_name,
                                                                    std::time_t now) {
  absl::StatusOr<std::string> path =
      out.empty() ? CreateInRuns(absl::StrCat(UtcTime(now), "-", short_name)) : CreateNamed(out);
  if (!path.ok()) return path.status();
  std::unique_ptr<RunFolder> folder(new RunFolder(*path));
  if (absl::Status status = folder->OpenLog(); !status.ok()) return status;
  return folder;
}

absl::Status RunFolder::OpenLog() {
  // "wx": two runs that were given the same empty folder cannot both have it.
  std::FILE* const mine = std::fopen(File("log.txt").c_str(), "wx");
  if (mine == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(File("log.txt"), ": wanted to create this file, found: ", std::strerror(errno),
                     "; choose another --out"));
  }
  std::fclose(mine);
  log_.open(File("log.txt"), std::ios::binary | std::ios::app);
  absl::Status status = CheckOpen(log_);
  if (!status.ok()) Remove();
  return status;
}

absl::Status RunFolder::OpenMetrics() {
  metrics_.open(File("metrics.jsonl"), std::ios::binary | std::ios::app);
  return CheckOpen(metrics_);
}

absl::Status RunFolder::CheckOpen(const std::ofstream& file) const {
  if (file.is_open()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path_, ": wanted to write files here, found: ", std::strerror(errno),
                   "; choose another --out"));
}

void RunFolder::Remove() {
  log_.close();
  metrics_.close();
  std::error_code error;
  for (const char* name : {"log.txt", "metrics.jsonl", "config.json"})
    fs::remove(File(name), error);
  fs::remove(path_, error);  // where nothing else is in it
}

std::string RunFolder::File(std::string_view name) const {
  return (fs::path(path_) / name).string();
}

void RunFolder::AppendLine(std::ofstream& file, std::string_view name, std::string_view text) {
  file << text << std::flush;
  if (!file) {
    Keep(absl::DataLossError(
        absl::StrCat(File(name), ": could not be written: ", std::strerror(errno))));
  }
}

bool RunFolder::Replace(std::string_view name, std::string_view text) {
  const absl::Status status = ReplaceFile(File(name), text);
  Keep(status);
  return status.ok();
}

void RunFolder::Log(std::string_view text) { AppendLine(log_, "log.txt", text); }
void RunFolder::Append(const StepMetrics& metrics) {
  AppendLine(metrics_, "metrics.jsonl", StepLine(metrics));
}
void RunFolder::Append(const EvalMetrics& metrics) {
  AppendLine(metrics_, "metrics.jsonl", EvalLine(metrics));
}
void RunFolder::WriteConfig(const std::vector<ResolvedFlag>& flags, const DerivedNumbers& derived) {
  Replace("config.json", ConfigText(flags, derived));
}
void RunFolder::WriteMemory(const RunPlan& plan, const std::vector<RankResult>& ranks) {
  Replace("memory.json", MemoryText(plan, ranks));
}
void RunFolder::WriteCommunication(const RunPlan& plan, const std::vector<RankResult>& ranks) {
  Replace("communication.json", CommunicationText(plan, ranks));
}
void RunFolder::WriteReport(const ReportRun& run) {
  const ReportObject report = MakeReport(run);
  Replace("report.json", ReportText(report));
  Replace("report.html", ReportPage(report));
  if (run.result != nullptr && run.result->trace) {
    Replace("trace.json", TraceEventsText(*run.result->trace));
  }
}

absl::Status ReplaceFile(const std::string& path, std::string_view text) {
  NewFile file;
  int error = file.Open(path);
  if (error == 0) error = file.Write(text);
  if (error == 0) error = file.Finish();
  if (error == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": could not be written: ", std::strerror(error)));
}

//---- The texts of the files

std::string StepLine(const StepMetrics& metrics) {
  Json json = {{"step", metrics.step},
               {"loss", metrics.loss},
               {"grad_norm", metrics.grad_norm},
               {"clip", metrics.clip},
               {"lr", metrics.lr},
               {"tokens", metrics.tokens},
               {"position", metrics.position},
               {"epoch", metrics.epoch},
               {"tokens_per_second", metrics.tokens_per_second},
               {"step_seconds", metrics.step_seconds},
               {"exposed_seconds", metrics.exposed_seconds},
               {"skipped", metrics.skipped}};
  if (metrics.skipped) json["reason"] = "the gradient norm is not finite";
  return Dump(json, -1) + "\n";
}

std::string EvalLine(const EvalMetrics& metrics) {
  return Dump({{"step", metrics.step}, {"val_loss", metrics.val_loss}}, -1) + "\n";
}

std::string ConfigText(const std::vector<ResolvedFlag>& flags, const DerivedNumbers& derived) {
  Json json = {{"format", 1}, {"version", std::string(kVersion)}, {"commit", std::string(kCommit)}};
  for (const ResolvedFlag& flag : flags) {
    Json value;
    std::visit([&](const auto& v) { value = v; }, flag.value);
    json["flags"][flag.name] = {{"value", value}, {"source", flag.source}};
  }
  for (const auto& [name, value] : derived) json["derived"][name] = value;
  return Dump(json, 2) + "\n";
}

std::string MemoryText(const RunPlan& plan, const std::vector<RankResult>& ranks) {
  Json json = {{"parameters", plan.parameters},
               {"padding", plan.padding},
               {"dtype", std::string(Name(plan.types.parameters))},
               {"grad_accum_dtype", std::string(Name(plan.types.gradients))}};
  json["devices"] = Json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    Json device = {{"rank", rank},
                   {"capacity_bytes", ranks[rank].capacity_bytes},
                   {"peak_bytes", ranks[rank].memory.peak_bytes}};
    device["categories"] = CategoriesJson(ranks[rank].memory, plan.ranks.at(rank).memory);
    device["host_categories"] =
        CategoriesJson(ranks[rank].host_memory, plan.ranks.at(rank).host_memory);
    json["devices"].push_back(std::move(device));
  }
  return Dump(json, 2) + "\n";
}

std::string CommunicationText(const RunPlan& plan, const std::vector<RankResult>& ranks) {
  Json json = {{"ranks", Json::array()}};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Traffic& counted = ranks[rank].step_traffic;
    const RankPlan& planned = plan.ranks.at(rank);
    Json row = {{"rank", rank}};
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter,
                                        Collective::kAllReduce, Collective::kBroadcast}) {
      const auto i = static_cast<size_t>(collective);
      const CollectiveCount& predicted = planned.step_traffic.collectives[i];
      // A broadcast is part of no stage's step; one that was counted is shown.
      if (collective == Collective::kBroadcast && counted.collectives[i].calls == 0 &&
          predicted.calls == 0) {
        continue;
      }
      row["collectives"][std::string(Name(collective))] = {
          {"calls", counted.collectives[i].calls},
          {"bytes_sent", counted.collectives[i].bytes_sent},
          {"predicted_bytes", predicted.bytes_sent},
          {"paper_bytes", plan.paper_bytes[i]}};
    }
    row["scalars"] = {{"calls", counted.scalars.calls},
                      {"bytes_sent", counted.scalars.bytes_sent},
                      {"predicted_bytes", planned.step_traffic.scalars.bytes_sent}};
    row["copies"]["to_host"] = {{"bytes", ranks[rank].step_copies.to_host},
                                {"predicted_bytes", planned.step_copies.to_host}};
    row["copies"]["from_host"] = {{"bytes", ranks[rank].step_copies.from_host},
                                  {"predicted_bytes", planned.step_copies.from_host}};
    json["ranks"].push_back(std::move(row));
  }
  return Dump(json, 2) + "\n";
}

}  // namespace zerobox
