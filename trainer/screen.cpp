// SPDX-License-Identifier: Apache-2.0
#include "trainer/screen.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace zerobox {
namespace {

constexpr double kSecondsBetweenBars = 0.1;
// Weight of the newest step in the smoothed time of one.
constexpr double kNewest = 0.1;

// False when the descriptor takes no more.
bool WriteAll(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

ScreenOptions OptionsOfThisProcess() {
  ScreenOptions options;
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  options.out_terminal = isatty(options.out) == 1 && !dumb;
  options.err_terminal = isatty(options.err) == 1 && !dumb;
  options.color = no_color == nullptr || *no_color == 0;
  return options;
}

void Screen::Write(int descriptor, std::string_view text) {
  bool& open = descriptor == options_.out ? out_open_ : err_open_;
  if (!open || WriteAll(descriptor, text)) return;
  open = false;
  if (descriptor != options_.out) return;
  // A reader that went away (zerobox train | head) has what it wanted; the run goes on.
  const int why = errno;
  if (why == EPIPE) return;
  out_ok_ = false;
  Write(options_.err,
        absl::StrCat("zerobox: stdout cannot be written: ", std::strerror(why), "\n"));
}

void Screen::ClearBar() {
  if (bar_shown_) Write(options_.err, "\r\x1b[K");
  bar_shown_ = false;
}

void Screen::Log(std::string_view text) {
  if (log_) {
    log_(WithoutColor(text));
  } else {
    unlogged_ += WithoutColor(text);
  }
}

void Screen::Print(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ClearBar();
  Write(options_.out, text);
  Log(text);
}

void Screen::Say(std::string_view message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ClearBar();
  const std::string line = absl::StrCat("zerobox: ", std::string(message), "\n");
  Write(options_.err, line);
  Log(line);
}

void Screen::ShowBar(std::string_view bar) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!options_.err_terminal) return;
  Write(options_.err, absl::StrCat("\r", std::string(bar), "\x1b[K"));
  bar_shown_ = true;
}

void Screen::ShowLine(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string text = std::string(line) + "\n";
  if (!options_.err_terminal) Write(options_.err, text);
  Log(text);
}

void Screen::LogTo(std::function<void(std::string_view)> log) {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_ = std::move(log);
  if (log_ && !unlogged_.empty()) log_(unlogged_);
  unlogged_.clear();
}

//---- Progress

std::string ProgressLine(const StepMetrics& metrics, int64_t steps, double seconds_left) {
  const std::string total = absl::StrCat(steps);
  return absl::StrFormat("step %*d/%s  loss %.4f  norm %-7.3g lr %.1e  %5s tokens/s  %s left%s",
                         static_cast<int>(total.size()), metrics.step, total,
                         WithoutNanSign(metrics.loss), WithoutNanSign(metrics.grad_norm),
                         metrics.lr, HumanCount(metrics.tokens_per_second), Duration(seconds_left),
                         metrics.skipped ? "  skipped" : "");
}

std::string ProgressBar(const StepMetrics& metrics, int64_t steps, double seconds_left,
                        const Style& style) {
  const double share = static_cast<double>(metrics.step) / static_cast<double>(steps);
  const std::string numbers = absl::StrFormat(
      "  %d/%d  loss %.3f  %s tokens/s  %s left", metrics.step, steps, WithoutNanSign(metrics.loss),
      HumanCount(metrics.tokens_per_second), Duration(seconds_left));
  const int width = std::clamp(kScreenWidth - 2 - Columns(numbers), 4, 30);
  return absl::StrCat(" ", style.Cyan(Bar(share, 1, width)), numbers);
}

double Progress::SecondsLeft(const StepMetrics& metrics) const {
  return static_cast<double>(steps_ - metrics.step) * smooth_seconds_;
}

void Progress::OnStep(const StepMetrics& metrics) {
  elapsed_ += metrics.step_seconds;
  // The first steps warm caches up, so their average counts before the smoothing takes over.
  const double newest =
      std::max(kNewest, 1.0 / static_cast<double>(std::max<int64_t>(metrics.step, 1)));
  smooth_seconds_ += newest * (metrics.step_seconds - smooth_seconds_);
  const double left = SecondsLeft(metrics);
  const bool ends = metrics.step == 1 || metrics.step == steps_;
  if (ends || metrics.skipped || elapsed_ >= next_line_) {
    screen_.ShowLine(ProgressLine(metrics, steps_, left));
    next_line_ = elapsed_ + kSecondsBetweenLines;
  }
  if (ends || elapsed_ >= next_bar_) {
    screen_.ShowBar(ProgressBar(metrics, steps_, left, screen_.err_style()));
    next_bar_ = elapsed_ + kSecondsBetweenBars;
  }
}

void ReadingProgress::OnRead(int64_t bytes, int64_t all, double seconds) {
  const std::string text = absl::StrCat(
      "looking for tokens outside the vocabulary: ", HumanBytes(bytes), " of ", HumanBytes(all));
  if (seconds >= next_line_) {
    screen_.ShowLine(text);
    next_line_ = seconds + kSecondsBetweenLines;
  }
  if (seconds >= next_bar_) {
    const double share = static_cast<double>(bytes) / static_cast<double>(all);
    screen_.ShowBar(absl::StrCat(" ", screen_.err_style().Cyan(Bar(share, 1, 12)), "  ", text));
    next_bar_ = seconds + kSecondsBetweenBars;
  }
}

}  // namespace zerobox
