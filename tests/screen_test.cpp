// SPDX-License-Identifier: Apache-2.0
#include "trainer/screen.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Both ends of a pipe: what was written to one can be read as text.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe2(ends_, O_NONBLOCK), 0); }
  ~Pipe() {
    CloseReader();
    close(ends_[1]);
  }
  int writer() const { return ends_[1]; }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  std::string Read() {
    std::string text(65536, 0);
    const ssize_t bytes = read(ends_[0], text.data(), text.size());
    text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(Text, WritesNumbersForPeople) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(SignedCommas(1234), "+1,234");
  EXPECT_EQ(SignedCommas(-1234), "-1,234");
  EXPECT_EQ(HumanBytes(823), "823 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(1686016), "1.61 MiB");
  EXPECT_EQ(HumanBytes(1048575), "1.00 MiB");
  EXPECT_EQ(HumanBytes(int64_t{12} << 30), "12.0 GiB");
  EXPECT_EQ(HumanCount(12345), "12.3k");
  EXPECT_EQ(HumanCount(999.6), "1.00k");
  EXPECT_EQ(HumanCount(std::nan("")), "-");
  EXPECT_EQ(Duration(7), "0:07");
  EXPECT_EQ(Duration(3723), "1:02:03");
  EXPECT_EQ(Duration(std::nan("")), "-:--");
}

TEST(Text, CountsColumnsNotBytes) {
  EXPECT_EQ(Columns("Ψ = █"), 5);
  EXPECT_EQ(Columns("\x1b[1mbold\x1b[0m"), 4);
  EXPECT_EQ(Left("Ψ", 3), "Ψ  ");
  EXPECT_EQ(Right("Ψ", 3), "  Ψ");
  EXPECT_EQ(WithoutColor("a\x1b[31mb\x1b[0mc\r\x1b[K"), "abc\r");
  EXPECT_EQ(Shortened("short", 10), "short");
  EXPECT_EQ(Columns(Shortened(std::string(200, 'x') + "/end.txt", 20)), 20);
  EXPECT_THAT(Shortened(std::string(200, 'x') + "/end.txt", 20), testing::EndsWith("/end.txt"));
}

TEST(Text, DrawsBars) {
  EXPECT_EQ(Bar(1, 0, 4), "████");
  EXPECT_EQ(Bar(0.5, 0, 4), "██  ");
  EXPECT_EQ(Bar(0.25, 1, 4), "█░░░");
  EXPECT_EQ(Bar(0.0001, 0, 4), "▏   ");
  EXPECT_EQ(Bar(0, 0, 4), "    ");
  EXPECT_EQ(Bar(7, 9, 4), "████");
  EXPECT_EQ(Bar(std::nan(""), std::nan(""), 4), "    ");
}

TEST(Text, KeepsControlCharactersOffTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\a\n\tc\x7f"), "a·[2Jb·\n\tc·");
  EXPECT_EQ(Printable("Ψ\xff\xce"), "Ψ··");
  EXPECT_EQ(Printable("\xc2\x9b"), "·");
}

TEST(Text, PrintsOnlyTheShortestUtf8OfACharacterThatThereIs) {
  EXPECT_EQ(
      Printable("\xc2\xa0\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"),
      "\xc2\xa0\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
  EXPECT_EQ(Printable("\xc0\x9b"), "··");            // Escape, in two bytes,
  EXPECT_EQ(Printable("\xe0\x82\x9b"), "···");       // another, in three,
  EXPECT_EQ(Printable("\xf0\x80\x82\x9b"), "····");  // and in four
  EXPECT_EQ(Printable("\xed\xa0\x80"), "···");       // U+D800
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "····");  // U+110000
}

TEST(Screen, ColoursTerminalsOnlyAndLogsWithout) {
  Pipe out, err;
  std::string log;
  Screen screen({.out = out.writer(), .err = err.writer(), .out_terminal = true});
  screen.Print(screen.style().Bold("before") + "\n");
  screen.LogTo([&](std::string_view text) { log += text; });
  screen.Say("careful");
  EXPECT_EQ(out.Read(), "\x1b[1mbefore\x1b[0m\n");
  EXPECT_EQ(err.Read(), "zerobox: careful\n");
  EXPECT_EQ(log, "before\nzerobox: careful\n");
  Screen plain({.out = out.writer(), .err = err.writer(), .out_terminal = false});
  EXPECT_EQ(plain.style().Bold("x"), "x");
  Screen no_color({.out = out.writer(), .err = err.writer(), .out_terminal = true, .color = false});
  EXPECT_EQ(no_color.style().Bold("x"), "x");
}

TEST(Screen, GoesOnWhenItsReaderWentAway) {
  signal(SIGPIPE, SIG_IGN);
  Pipe out, err;
  std::string log;
  Screen screen({.out = out.writer(), .err = err.writer()});
  screen.LogTo([&](std::string_view text) { log += text; });
  EXPECT_TRUE(screen.out_open());
  out.CloseReader();
  screen.Print("one\n");
  EXPECT_FALSE(screen.out_open());  // what only writes there may stop
  screen.Print("two\n");
  EXPECT_TRUE(screen.out_ok());
  EXPECT_EQ(log, "one\ntwo\n");
  EXPECT_EQ(err.Read(), "");
}

TEST(Screen, SaysWhenStdoutCannotBeWritten) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  Pipe err;
  Screen screen({.out = full, .err = err.writer()});
  screen.Print("lost\n");
  EXPECT_FALSE(screen.out_ok());
  EXPECT_THAT(err.Read(), HasSubstr("stdout cannot be written"));
  close(full);
}

TEST(Screen, ClearsItsBarBeforeOtherOutput) {
  Pipe out, err;
  Screen screen({.out = out.writer(), .err = err.writer(), .err_terminal = true});
  screen.ShowBar("bar");
  EXPECT_EQ(err.Read(), "\rbar\x1b[K");
  screen.Print("result\n");
  EXPECT_EQ(err.Read(), "\r\x1b[K");
  EXPECT_EQ(out.Read(), "result\n");
}

TEST(Progress, IsALineEveryFewSecondsWithoutATerminal) {
  Pipe out, err;
  Screen screen({.out = out.writer(), .err = err.writer()});
  Progress progress(screen, 100);
  for (int64_t step = 1; step <= 100; ++step) {
    progress.OnStep({.step = step,
                     .loss = 2.5,
                     .grad_norm = 0.5,
                     .lr = 1e-3,
                     .tokens_per_second = 2048,
                     .step_seconds = 1});
  }
  const std::string text = err.Read();
  // The first step, then every five seconds, and the last step.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
  EXPECT_THAT(text, HasSubstr("step  51/100  loss 2.5000  norm 0.5     lr 1.0e-03  2.05k "
                              "tokens/s  0:49 left\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(Columns({line.data(), line.size()}), 80);
  }
}

TEST(Progress, IsABarOnATerminal) {
  Pipe out, err;
  std::string log;
  Screen screen({.out = out.writer(), .err = err.writer(), .err_terminal = true});
  screen.LogTo([&](std::string_view text) { log += text; });
  Progress progress(screen, 2);
  progress.OnStep({.step = 1, .loss = 2.5, .tokens_per_second = 2048, .step_seconds = 1});
  const std::string text = err.Read();
  EXPECT_THAT(text, HasSubstr("1/2  loss 2.500  2.05k tokens/s  0:01 left"));
  EXPECT_THAT(text, HasSubstr("█"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_THAT(log, HasSubstr("step 1/2"));  // the log has lines
}

TEST(ReadingProgress, IsALineEveryFewSecondsWithoutATerminal) {
  Pipe out, err;
  Screen screen({.out = out.writer(), .err = err.writer()});
  ReadingProgress progress(screen);
  progress.OnRead(int64_t{1} << 30, int64_t{20} << 30, 4.9);
  EXPECT_EQ(err.Read(), "");
  progress.OnRead(int64_t{2} << 30, int64_t{20} << 30, 5);
  progress.OnRead(int64_t{3} << 30, int64_t{20} << 30, 9.9);
  EXPECT_EQ(err.Read(), "looking for tokens outside the vocabulary: 2.00 GiB of 20.0 GiB\n");
  progress.OnRead(int64_t{20} << 30, int64_t{20} << 30, 10);
  EXPECT_EQ(err.Read(), "looking for tokens outside the vocabulary: 20.0 GiB of 20.0 GiB\n");
}

TEST(ReadingProgress, IsABarOnATerminalOnceItTakesLonger) {
  Pipe out, err;
  Screen screen({.out = out.writer(), .err = err.writer(), .err_terminal = true, .color = false});
  ReadingProgress progress(screen);
  progress.OnRead(int64_t{1} << 20, int64_t{4} << 20, 0.4);
  EXPECT_EQ(err.Read(), "");
  progress.OnRead(int64_t{2} << 20, int64_t{4} << 20, 0.5);
  progress.OnRead(int64_t{3} << 20, int64_t{4} << 20, 0.55);
  EXPECT_EQ(
      err.Read(),
      "\r ██████░░░░░░  looking for tokens outside the vocabulary: 2.00 MiB of 4.00 MiB\x1b[K");
  screen.Print("header");
  EXPECT_EQ(err.Read(), "\r\x1b[K");
}

TEST(Progress, ShowsSkippedSteps) {
  Pipe out, err;
  Screen screen({.out = out.writer(), .err = err.writer()});
  Progress progress(screen, 100);
  progress.OnStep({.step = 1, .step_seconds = 1});
  err.Read();
  progress.OnStep({.step = 2, .loss = std::nan(""), .step_seconds = 1, .skipped = true});
  EXPECT_THAT(err.Read(), HasSubstr("skipped"));
}

TEST(Progress, ShowsNoSignOfNan) {
  const double negative = -std::numeric_limits<double>::quiet_NaN();
  const StepMetrics metrics = {.step = 2, .loss = negative, .grad_norm = negative};
  EXPECT_THAT(ProgressLine(metrics, 3, 1), HasSubstr("step 2/3  loss nan  norm nan     lr"));
  EXPECT_THAT(ProgressBar(metrics, 3, 1, {}), HasSubstr("loss nan  "));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(ProgressLine({.step = 2, .loss = infinity, .grad_norm = -infinity}, 3, 1),
              HasSubstr("loss inf  norm -inf "));
}

}  // namespace
}  // namespace zerobox
