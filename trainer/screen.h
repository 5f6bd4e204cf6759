// SPDX-License-Identifier: Apache-2.0
//
// The screen: results on stdout, messages and progress on stderr, and a copy of both for log.txt.
#ifndef ZEROBOX_TRAINER_SCREEN_H_
#define ZEROBOX_TRAINER_SCREEN_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "trainer/results.h"
#include "trainer/text.h"

namespace zerobox {

struct ScreenOptions {
  int out = 1;  // file descriptors
  int err = 2;
  bool out_terminal = false;
  bool err_terminal = false;
  bool color = true;  // on a terminal
};
// NO_COLOR (not empty) and TERM=dumb switch colours off; a dumb terminal has no bar either.
ScreenOptions OptionsOfThisProcess();

// Any thread may call any member.
class Screen {
 public:
  explicit Screen(const ScreenOptions& options) : options_(options) {}
  ~Screen() { ClearBar(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Of stdout, for texts that are to be printed there.
  Style style() const { return {.color = options_.color && options_.out_terminal}; }

  void Print(std::string_view text);   // a result, to stdout as it is
  void Say(std::string_view message);  // "zerobox: message" and a line break, to stderr
  // A line that is replaced by the next one: on a terminal only, and not logged.
  void ShowBar(std::string_view bar);
  // A line of progress: to stderr when that is no terminal, and to the log.
  void ShowLine(std::string_view line);

  // Gets what was printed and said so far, and everything from now on, without colours.
  void LogTo(std::function<void(std::string_view)> log);

  bool err_terminal() const { return options_.err_terminal; }
  // Of stderr, for the bar.
  Style err_style() const { return {.color = options_.color && options_.err_terminal}; }
  // False once stdout could not be written, other than because its reader went away.
  bool out_ok() const { return out_ok_; }
  // False once nothing that is printed arrives, for whatever reason.
  bool out_open() const { return out_open_; }

 private:
  void ClearBar();
  void Write(int descriptor, std::string_view text);
  void Log(std::string_view text);

  const ScreenOptions options_;
  std::mutex mutex_;
  std::string unlogged_;
  std::function<void(std::string_view)> log_;
  bool bar_shown_ = false;
  bool out_open_ = true;
  bool err_open_ = true;
  bool out_ok_ = true;
};

inline constexpr double kSecondsBetweenLines = 5;
inline constexpr double kSecondsBeforeReadingBar = 0.5;

// Turns the metrics of a run into a bar or into lines every few seconds.
class Progress {
 public:
  Progress(Screen& screen, int64_t steps) : screen_(screen), steps_(steps) {}
  void OnStep(const StepMetrics& metrics);

 private:
  double SecondsLeft(const StepMetrics& metrics) const;

  Screen& screen_;
  const int64_t steps_;
  double elapsed_ = 0;  // seconds of the steps so far
  double next_line_ = 0;
  double next_bar_ = 0;
  double smooth_seconds_ = 0;  // of one step
};

// The same for what is read before a run, where that takes longer than a moment.
class ReadingProgress {
 public:
  explicit ReadingProgress(Screen& screen) : screen_(screen) {}
  // `seconds` since the reading began.
  void OnRead(int64_t bytes, int64_t all, double seconds);

 private:
  Screen& screen_;
  double next_line_ = kSecondsBetweenLines;
  double next_bar_ = kSecondsBeforeReadingBar;
};

// "step 120/400  loss 2.8312  norm 0.61    lr 9.1e-04  12.3k tokens/s  0:21 left"
std::string ProgressLine(const StepMetrics& metrics, int64_t steps, double seconds_left);
std::string ProgressBar(const StepMetrics& metrics, int64_t steps, double seconds_left,
                        const Style& style);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_SCREEN_H_
