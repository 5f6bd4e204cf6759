// SPDX-License-Identifier: Apache-2.0
#include "trainer/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace zerobox {
namespace {

constexpr std::string_view kBlocks[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

std::string Repeated(std::string_view piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

// Three digits: 9.99, 99.9, 999.
std::string ThreeDigits(double number) {
  const int decimals = number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f", decimals, number);
}

// Bytes of the UTF-8 character that `text` begins with; 0 when it is broken: cut short, longer than
// its character needs, half of a UTF-16 pair, or beyond U+10FFFF.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t bytes = first < 0x80         ? 1
                       : first >> 5 == 0x06 ? 2
                       : first >> 4 == 0x0e ? 3
                       : first >> 3 == 0x1e ? 4
                                            : 0;
  if (bytes < 2 || bytes > text.size()) return bytes == 1 ? 1 : 0;
  uint32_t character = first & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    character = character << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};  // of so many bytes
  const bool half = character >= 0xd800 && character <= 0xdfff;
  return character < kLeast[bytes] || half || character > 0x10ffff ? 0 : bytes;
}

}  // namespace

std::string Style::Wrap(std::string_view code, std::string_view text) const {
  if (!color || text.empty()) return std::string(text);
  return std::string(code).append(text).append("\x1b[0m");
}

std::string WithCommas(int64_t number) {
  std::string digits = absl::StrCat(number);
  const int first = digits[0] == '-' ? 1 : 0;
  for (int i = static_cast<int>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

std::string SignedCommas(int64_t number) { return (number > 0 ? "+" : "") + WithCommas(number); }

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double number = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::fabs(number) >= 1023.5 && unit + 1 < kUnits.size()) {
    number /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrCat(bytes, " B");
  return absl::StrCat(number < 0 ? "-" : "", ThreeDigits(std::fabs(number)), " ", kUnits[unit]);
}

std::string HumanCount(double number) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  if (!std::isfinite(number)) return "-";
  size_t unit = 0;
  while (std::fabs(number) >= 999.5 && unit + 1 < kUnits.size()) {
    number /= 1000;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f", number);
  return absl::StrCat(number < 0 ? "-" : "", ThreeDigits(std::fabs(number)), kUnits[unit]);
}

std::string Duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "-:--";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

double WithoutNanSign(double number) { return std::isnan(number) ? std::fabs(number) : number; }

int Columns(std::string_view text) {
  int columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((static_cast<unsigned char>(text[i]) >> 6) != 2) ++columns;
  }
  return columns;
}

std::string Left(std::string_view text, int columns) {
  const int missing = std::max(0, columns - Columns(text));
  return std::string(text).append(static_cast<size_t>(missing), ' ');
}

std::string Right(std::string_view text, int columns) {
  const int missing = std::max(0, columns - Columns(text));
  return std::string(static_cast<size_t>(missing), ' ').append(text);
}

std::string Shortened(std::string_view text, int columns) {
  if (Columns(text) <= columns || columns < 8) return std::string(text);
  std::string printable = Printable(text);
  const auto skip_to = [&](size_t i) {  // the beginning of a character at or behind i
    while (i < printable.size() && (static_cast<unsigned char>(printable[i]) >> 6) == 2) ++i;
    return i;
  };
  // Cut bytes from the middle until the rest fits; the end of a path says more than its beginning.
  const size_t head = skip_to(static_cast<size_t>(columns) / 3);
  size_t tail = skip_to(head + 1);
  while (Columns(printable.substr(tail)) + Columns(printable.substr(0, head)) + 1 > columns) {
    tail = skip_to(tail + 1);
  }
  return printable.substr(0, head) + "…" + printable.substr(tail);
}

std::string Bar(double share, double ghost_share, int columns) {
  const auto eighths_of = [&](double part) {
    if (!(part > 0)) return 0;
    const double eighths = std::round(std::min(part, 1.0) * columns * 8);
    return std::max(1, static_cast<int>(eighths));
  };
  const int eighths = eighths_of(share);
  std::string bar = Repeated(kBlocks[8], eighths / 8) + std::string(kBlocks[eighths % 8]);
  int filled = (eighths + 7) / 8;
  const int ghost = static_cast<int>(
      std::round(std::clamp(ghost_share > 0 ? ghost_share : 0.0, 0.0, 1.0) * columns));
  if (ghost > filled) {
    bar += Repeated("░", ghost - filled);
    filled = ghost;
  }
  return bar.append(static_cast<size_t>(columns - filled), ' ');
}

std::string Rule(int columns) { return Repeated("─", columns); }

std::string WithoutColor(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      while (i < text.size() && text[i] != 'm' && text[i] != 'K') ++i;
      continue;
    }
    plain += text[i];
  }
  return plain;
}

std::string Printable(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control =
        bytes == 1 && (first < 0x20 || first == 0x7f) && first != '\n' && first != '\t';
    // U+0080 to U+009F are control characters too.
    const bool second_set =
        bytes == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (bytes == 0 || control || second_set) {
      printable += "·";
    } else {
      printable += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return printable;
}

}  // namespace zerobox
