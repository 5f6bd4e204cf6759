// SPDX-License-Identifier: Apache-2.0
//
// The folder that a run writes: log.txt, config.json, metrics.jsonl, memory.json,
// communication.json, report.json, report.html and trace.json. (model.safetensors is written by the
// run itself.)
//
// log.txt and metrics.jsonl grow line by line and are flushed after each; the others are written
// under a temporary name and renamed, so a reader never sees half a file.
#ifndef ZEROBOX_TRAINER_RUN_FOLDER_H_
#define ZEROBOX_TRAINER_RUN_FOLDER_H_

#include <cstdint>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/resolve.h"
#include "trainer/results.h"
#include "trainer/settings.h"

namespace zerobox {

struct ReportRun;

// "jargon-zero3-4dev": file, stage and devices, in letters that are safe in a file name.
std::string ShortName(const TrainSettings& settings);
// "compare-jargon-4dev".
std::string CompareName(const TrainSettings& settings);

// Numbers that follow from the flags, in the order in which config.json lists them.
using DerivedNumbers = std::vector<std::pair<std::string, int64_t>>;

class RunFolder {
 public:
  // Whether `out` can become a run folder: absent below a writable folder, or an empty, writable
  // folder. Creates nothing.
  static absl::Status Check(const std::string& out);
  // What a run of this plan writes at most: its model, logs, and reports of every usual size.
  static int64_t RoomFor(const RunPlan& plan);
  // Whether the file system of `out` (of runs/ when it is empty) has room for `bytes`.
  static absl::Status CheckRoom(const std::string& out, int64_t bytes);

  // Creates the folder `out`; or, when `out` is empty, the first free one of
  // runs/<UTC time>-<short name>, ...-2, ...-3. A folder directly in runs/ becomes runs/latest.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Create(const std::string& out,
                                                           const std::string& short_name,
                                                           std::time_t now);

  // The same for a folder of folders of runs: with a log alone, and runs/latest stays.
  static absl::StatusOr<std::unique_ptr<RunFolder>> CreateForRuns(const std::string& out,
                                                                  const std::string& short_name,
                                                                  std::time_t now);

  const std::string& path() const { return path_; }
  // Takes back what Create made, for a run that does not begin after all.
  void Remove();
  std::string File(std::string_view name) const;

  void Log(std::string_view text);
  void Append(const StepMetrics& metrics);
  void Append(const EvalMetrics& metrics);
  void WriteConfig(const std::vector<ResolvedFlag>& flags, const DerivedNumbers& derived);
  void WriteMemory(const RunPlan& plan, const std::vector<RankResult>& ranks);
  void WriteCommunication(const RunPlan& plan, const std::vector<RankResult>& ranks);
  // Any other file. Whether it was written.
  bool Write(std::string_view name, std::string_view text) { return Replace(name, text); }
  // report.json and report.html; and trace.json, where the run has recorded a step.
  void WriteReport(const ReportRun& run);

  // The first error of anything above: a run is not worth stopping for a full disk.
  const absl::Status& status() const { return status_; }

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  absl::Status OpenLog();
  absl::Status OpenMetrics();
  absl::Status CheckOpen(const std::ofstream& file) const;
  void AppendLine(std::ofstream& file, std::string_view name, std::string_view text);
  bool Replace(std::string_view name, std::string_view text);
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  std::string path_;
  std::ofstream log_;
  std::ofstream metrics_;
  absl::Status status_;
};

// Writes a file, which gets its name, and replaces another, when it is whole
// (checkpoints/new_file.h). DataLoss where that cannot be, with nothing left.
absl::Status ReplaceFile(const std::string& path, std::string_view text);

// The texts of the files. memory.json: predicted_bytes of a category is what the plan says it holds
// at the device's peak, so it compares with at_peak_bytes and sums to the planned peak.
std::string StepLine(const StepMetrics& metrics);
std::string EvalLine(const EvalMetrics& metrics);
std::string ConfigText(const std::vector<ResolvedFlag>& flags, const DerivedNumbers& derived);
std::string MemoryText(const RunPlan& plan, const std::vector<RankResult>& ranks);
std::string CommunicationText(const RunPlan& plan, const std::vector<RankResult>& ranks);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RUN_FOLDER_H_
