// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ops/view.h"

namespace zerobox::gpu_check {
namespace {

std::string Percent(double share) {
  return share > 0 ? absl::StrFormat("%.0f%%", 100 * share) : "";
}

// Three digits, in the largest unit that leaves one before the point.
std::string Scaled(double value, std::initializer_list<std::pair<double, const char*>> units) {
  for (const auto& [size, name] : units) {
    if (value < size) continue;
    const double scaled = value / size;
    const int decimals = scaled < 10 ? 2 : scaled < 100 ? 1 : 0;
    return absl::StrFormat("%.*f %s", decimals, scaled, name);
  }
  return absl::StrFormat("%.3g", value);
}

}  // namespace

std::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNone:
      return "";
    case Verdict::kPass:
      return "PASS";
    case Verdict::kWarn:
      return "WARN";
    case Verdict::kFail:
      return "FAIL";
  }
  return "";
}

void Report::BeginPart(int number, std::string_view title) {
  EndPart();
  part_ = number;
  part_began_ = std::chrono::steady_clock::now();
  absl::FPrintF(out_, "\n%d. %s\n", number, title);
  std::fflush(out_);
}

void Report::EndPart() {
  if (part_ == 0) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - part_began_;
  absl::FPrintF(out_, "   part %d took %.1f s\n", part_, took.count());
  std::fflush(out_);
  part_ = 0;
}

void Report::BeginTable(std::string_view title) {
  absl::FPrintF(out_, "   %-50s %9s %13s %13s %6s %6s\n", title, "time", "measured", "bound",
                "share", "target");
  std::fflush(out_);
}

void Report::Add(const Row& row) {
  absl::FPrintF(out_, "   %-50s %9s %13s %13s %6s %6s  %s\n", row.name, row.time, row.measured,
                row.bound, Percent(row.share), Percent(row.target), Name(row.verdict));
  std::fflush(out_);
  rows_.push_back(row);
}

void Report::Check(std::string name, double found, double limit, std::string_view where) {
  const bool good = found <= limit;
  Add({.name = std::move(name),
       .time = "",
       .measured = absl::StrFormat("%.2g", found),
       .bound = absl::StrFormat("%.2g", limit),
       .verdict = good ? Verdict::kPass : Verdict::kFail});
  if (!good) Say(absl::StrCat("  ", View(where)));
}

void Report::Measure(Row row) {
  if (row.target > 0) {
    row.verdict = row.share >= row.target ? Verdict::kPass : Verdict::kWarn;
  }
  Add(row);
}

void Report::Say(std::string_view line) {
  absl::FPrintF(out_, "   %s\n", line);
  std::fflush(out_);
}

void Report::Fail(const absl::Status& status, std::string_view what) {
  if (status.ok()) return;
  const absl::string_view name(what.data(), what.size());
  rows_.push_back({.name = std::string(what),
                   .time = "",
                   .measured = "",
                   .bound = "",
                   .verdict = Verdict::kFail});
  Say(absl::StrCat("FAIL: ", name, ": ", status.message()));
}

int Report::Count(Verdict verdict) const {
  return static_cast<int>(std::count_if(
      rows_.begin(), rows_.end(), [verdict](const Row& row) { return row.verdict == verdict; }));
}

std::string TimeText(double seconds) {
  return Scaled(seconds, {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}});
}
std::string BandwidthText(double bytes_a_second) {
  return Scaled(bytes_a_second, {{1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}});
}
std::string FlopsText(double flops_a_second) {
  return Scaled(flops_a_second, {{1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1e6, "MFLOP/s"}});
}
std::string BytesText(double bytes) { return Scaled(bytes, {{1e9, "GB"}, {1e6, "MB"}}); }

}  // namespace zerobox::gpu_check
