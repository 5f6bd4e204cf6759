// SPDX-License-Identifier: Apache-2.0
//
// What the check prints: tables whose lines appear one by one, so that what was found is there when
// the check is cut short.
#ifndef ZEROBOX_BENCH_GPU_CHECK_REPORT_H_
#define ZEROBOX_BENCH_GPU_CHECK_REPORT_H_

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace zerobox::gpu_check {

// kWarn: right but slow. kFail: wrong.
enum class Verdict : uint8_t { kNone, kPass, kWarn, kFail };
std::string_view Name(Verdict verdict);

// Empty columns, and a share or target of 0, are left blank.
struct Row {
  std::string name;
  std::string time;
  std::string measured;
  std::string bound;
  double share = 0;   // of the bound
  double target = 0;  // of the share
  Verdict verdict = Verdict::kNone;
};

class Report {
 public:
  explicit Report(std::FILE* out) : out_(out) {}

  // Ends the part before; each end says how long the part took.
  void BeginPart(int number, std::string_view title);
  void EndPart();
  // Of the rows that follow; a short title.
  void BeginTable(std::string_view title);
  void Add(const Row& row);
  // A row whose verdict is whether found <= limit. Where not, `where` says more, in a line below.
  void Check(std::string name, double found, double limit, std::string_view where);
  // A row of a rate; it passes at `target` of the bound, and has no verdict where that is 0.
  void Measure(Row row);
  void Say(std::string_view line);
  // Something went wrong; a status that is OK did not.
  void Fail(const absl::Status& status, std::string_view what);

  const std::vector<Row>& rows() const { return rows_; }
  int Count(Verdict verdict) const;
  bool ok() const { return Count(Verdict::kFail) == 0; }

 private:
  std::FILE* const out_;
  std::vector<Row> rows_;
  int part_ = 0;
  std::chrono::steady_clock::time_point part_began_;
};

// "38.1 us", "2.95 TB/s", "571 TFLOP/s", "25.4 GB".
std::string TimeText(double seconds);
std::string BandwidthText(double bytes_a_second);
std::string FlopsText(double flops_a_second);
std::string BytesText(double bytes);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_REPORT_H_
