// SPDX-License-Identifier: Apache-2.0
//
// Numbers, bars and columns as text for the screen.
#ifndef ZEROBOX_TRAINER_TEXT_H_
#define ZEROBOX_TRAINER_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace zerobox {

inline constexpr int kScreenWidth = 80;

// Colours, where the screen has them.
struct Style {
  bool color = false;

  std::string Bold(std::string_view text) const { return Wrap("\x1b[1m", text); }
  std::string Dim(std::string_view text) const { return Wrap("\x1b[2m", text); }
  std::string Red(std::string_view text) const { return Wrap("\x1b[31m", text); }
  std::string Green(std::string_view text) const { return Wrap("\x1b[32m", text); }
  std::string Cyan(std::string_view text) const { return Wrap("\x1b[36m", text); }

 private:
  std::string Wrap(std::string_view code, std::string_view text) const;
};

std::string WithCommas(int64_t number);    // 1,234,567
std::string SignedCommas(int64_t number);  // +1,234 or -1,234
std::string HumanBytes(int64_t bytes);     // 823 B, 1.61 MiB, 12.3 GiB: three digits
std::string HumanCount(double number);     // 823, 12.3k, 1.65M: three digits
std::string Duration(double seconds);      // 0:07, 1:05, 2:03:04
// NaN as it is to be printed, "nan": its sign, "-nan", tells nothing.
double WithoutNanSign(double number);

// Columns that `text` takes on a screen: UTF-8 characters, without colour codes. Every character
// that zerobox prints is one column wide.
int Columns(std::string_view text);
std::string Left(std::string_view text, int columns);   // padded on the right; never cut
std::string Right(std::string_view text, int columns);  // padded on the left; never cut
// A path or name shortened in its middle to at most that many columns.
std::string Shortened(std::string_view text, int columns);

// `share` of `columns` as full blocks and an eighth, at least a sliver when it is above zero, then
// light blocks up to `ghost_share` where that is larger. Always `columns` wide.
std::string Bar(double share, double ghost_share, int columns);
std::string Rule(int columns);

std::string WithoutColor(std::string_view text);
// What may safely go to a terminal: control characters and broken UTF-8 become a dot.
std::string Printable(std::string_view text);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TEXT_H_
