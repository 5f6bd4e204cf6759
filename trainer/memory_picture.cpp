// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/embedded.h"
#include "trainer/table_rows.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

constexpr Color kPage = Rgb(0xf8f8f5), kSurface = Rgb(0xffffff), kLine = Rgb(0xe2e2dc);
constexpr Color kInk = Rgb(0x1b1f24), kMuted = Rgb(0x5b636c), kAlert = Rgb(0xb3261e);

constexpr int kWidth = 1600, kMargin = 56;
constexpr int kMostColumns = 6;
// From the top of the picture.
constexpr int kTitle = 78, kSubtitle = 120, kLegend = 168, kFirstPanel = 200;
constexpr int kPanelGap = 24;
// From the top of a panel, which holds the groups of one row; what stands below is moved down by a
// line's height for each line of details.
constexpr int kLabel = 52, kDetail = 84, kDetailLine = 28;
constexpr int kPeak = 90, kChartTop = 122, kChartBottom = 474;
constexpr int kFactor = 545, kFormula = 588, kShares = 620, kPanel = 644;
constexpr int kTicks = 124;  // width, for the numbers left of the bars
constexpr int kBarLine = 2;

int64_t Sum(const PerCategory<int64_t>& bytes) {
  int64_t sum = 0;
  for (const int64_t part : bytes) sum += part;
  return sum;
}

// What the page shows of a run at its peak.
int64_t Peak(const MemoryBars& run) { return Sum(run.measured ? *run.measured : run.predicted); }

const Font& Regular() {
  static const Font kFont(Embedded("build/fonts/DejaVuSans.ttf"));
  return kFont;
}
const Font& Bold() {
  static const Font kFont(Embedded("build/fonts/DejaVuSans-Bold.ttf"));
  return kFont;
}

struct Group {
  Box box;
  int bar_width = 0;
  int middle() const { return (box.left + box.right) / 2; }
};

// Where everything stands.
class Geometry {
 public:
  explicit Geometry(const MemoryFigure& figure) : figure_(figure) {
    const int runs = static_cast<int>(std::ssize(figure.runs));
    const bool keep = figure.together <= kMostColumns && runs % figure.together == 0;
    const int together = keep ? figure.together : 1;
    const int most = kMostColumns / together * together;
    rows_ = (runs + most - 1) / most;
    columns_ = (runs / together + rows_ - 1) / rows_ * together;
    for (const MemoryBars& run : figure.runs) {
      top_bytes_ = std::max({top_bytes_, Sum(run.predicted), Peak(run)});
      all_fit_ = all_fit_ && run.fits;
      detail_height_ =
          std::max(detail_height_, static_cast<int>(std::ssize(run.details)) * kDetailLine);
    }
    // A capacity far above would make the bars too small to read.
    show_capacity_ = !all_fit_ || static_cast<double>(figure.capacity) <= 1.3 * top_bytes_;
    if (show_capacity_) top_bytes_ = std::max(top_bytes_, figure.capacity);
  }

  std::vector<BarPlaces> Places() const {
    std::vector<BarPlaces> places;
    places.reserve(figure_.runs.size());
    for (int i = 0; i < std::ssize(figure_.runs); ++i) places.push_back(Bars(i));
    return places;
  }

  int rows() const { return rows_; }
  bool show_capacity() const { return show_capacity_; }
  int64_t top_bytes() const { return top_bytes_; }
  int detail_height() const { return detail_height_; }
  int PanelHeight() const { return kPanel + detail_height_; }
  int PanelTop(int row) const { return kFirstPanel + row * (PanelHeight() + kPanelGap); }

  Group GroupOf(int run) const {
    const int left = kMargin + kTicks, right = kWidth - kMargin - 20;
    const int row = run / columns_, column = run % columns_;
    const auto edge = [&](int at) { return left + (right - left) * at / columns_; };
    const Box box = {edge(column), PanelTop(row), edge(column + 1), PanelTop(row) + PanelHeight()};
    return {box, std::min(96, box.width() * 3 / 10)};
  }

  int TextWidth(int run) const { return GroupOf(run).box.width() - 20; }

  int Height(int64_t bytes) const {  // in pixels
    return static_cast<int>(std::lround(static_cast<double>(bytes) * (kChartBottom - kChartTop) /
                                        static_cast<double>(std::max<int64_t>(top_bytes_, 1))));
  }

  BarPlaces Bars(int run) const {
    const Group group = GroupOf(run);
    const MemoryBars& bars = figure_.runs[static_cast<size_t>(run)];
    const int bottom = group.box.top + detail_height_ + kChartBottom, middle = group.middle();
    BarPlaces places;
    places.predicted = {middle - 2 - group.bar_width, bottom - Height(Sum(bars.predicted)),
                        middle - 2, bottom};
    if (bars.measured) {
      places.measured = {middle + 2, bottom - Height(Sum(*bars.measured)),
                         middle + 2 + group.bar_width, bottom};
    }
    return places;
  }

 private:
  const MemoryFigure& figure_;
  int rows_ = 1, columns_ = 1;
  int detail_height_ = 0;
  int64_t top_bytes_ = 0;  // of the highest bar or line
  bool all_fit_ = true, show_capacity_ = false;
};

// "2.29× less", the number large.
struct Factor {
  static constexpr double kSmaller = 0.4;
  Factor(const MemoryBars& run, int index) {
    const bool less = run.saved >= 0.995;
    number = absl::StrFormat("%.2f×", less ? run.saved : 1 / run.saved);
    than = index == 0 ? " baseline" : number == "1.00×" ? " the same" : less ? " less" : " more";
  }
  double Width(double size) const {
    return Bold().Width(number, size) + Regular().Width(than, size * kSmaller);
  }
  std::string number, than;
};

class Drawing {
 public:
  explicit Drawing(const MemoryFigure& figure)
      : figure_(figure),
        geometry_(figure),
        picture_(kWidth, geometry_.PanelTop(geometry_.rows()) - kPanelGap + kMargin, kPage) {
    for (int i = 0; i < std::ssize(figure.runs); ++i) {
      const Factor factor(figure.runs[static_cast<size_t>(i)], i);
      while (factor_size_ > 20 && factor.Width(factor_size_) > geometry_.TextWidth(i))
        --factor_size_;
    }
  }

  Picture Draw() {
    Fitted(kMargin, kTitle, figure_.title, Bold(), 46, kInk, kWidth - 2 * kMargin);
    Fitted(kMargin, kSubtitle, figure_.subtitle, Regular(), 26, kMuted, kWidth - 2 * kMargin);
    DrawLegend();
    Fitted(kMargin, picture_.height() - 20, figure_.footer, Regular(), 22, kMuted,
           kWidth - 2 * kMargin);
    for (int row = 0; row < geometry_.rows(); ++row) DrawPanel(row);
    for (int i = 0; i < std::ssize(figure_.runs); ++i) DrawGroup(i);
    for (int row = 0; row < geometry_.rows() && geometry_.show_capacity(); ++row) DrawCapacity(row);
    return std::move(picture_);
  }

 private:
  // Text in at most `width` pixels: smaller where it has to be, at last shortened.
  void Fitted(double x, int baseline, std::string text, const Font& font, double size, Color color,
              int width, Align align = Align::kLeft) {
    constexpr double kSmallest = 16;
    while (size > kSmallest && font.Width(text, size) > width) size -= 1;
    for (int columns = Columns(text) - 1; columns >= 8 && font.Width(text, size) > width;
         --columns) {
      text = Shortened(text, columns);
    }
    picture_.Text(x, baseline, text, font, size, color, align);
  }

  // Of what any run holds, and of what the two bars are.
  void DrawLegend() {
    std::vector<Category> held;
    for (const Category category : kStackedCategories) {
      const auto holds = [i = static_cast<size_t>(category)](const MemoryBars& run) {
        return run.predicted[i] > 0 || (run.measured && (*run.measured)[i] > 0);
      };
      if (std::any_of(figure_.runs.begin(), figure_.runs.end(), holds)) held.push_back(category);
    }
    constexpr int kChip = 18, kAfterChip = 9, kAfterText = 26;
    double size = 24;
    const auto width = [&] {
      double sum = 2 * (kChip + kAfterChip + kAfterText) + Regular().Width("predicted", size) +
                   Regular().Width("measured", size);
      for (const Category category : held) {
        sum += kChip + kAfterChip + kAfterText + Regular().Width(Spaced(Name(category)), size);
      }
      return sum;
    };
    while (size > 14 && width() > kWidth - 2 * kMargin + kAfterText) size -= 0.5;
    double x = kMargin;
    const auto entry = [&](const std::string& name, Color color, bool outlined) {
      const int left = static_cast<int>(std::lround(x));
      const Box chip = {left, kLegend - kChip + 2, left + kChip, kLegend + 2};
      picture_.Fill(chip, outlined ? Blend(color, kPage, 0.2) : color);
      if (outlined) picture_.Outline(chip, kBarLine, color);
      x += kChip + kAfterChip;
      picture_.Text(x, kLegend, name, Regular(), size, kMuted);
      x += Regular().Width(name, size) + kAfterText;
    };
    for (const Category category : held)
      entry(Spaced(Name(category)), CategoryColor(category), false);
    entry("predicted", kMuted, true);
    entry("measured", kMuted, false);
  }

  void DrawPanel(int row) {
    const int top = geometry_.PanelTop(row);
    const Box panel = {kMargin, top, kWidth - kMargin, top + geometry_.PanelHeight()};
    picture_.Fill(panel, kSurface);
    picture_.Outline(panel, kBarLine, kLine);
    // Ticks in round numbers of the unit, at most four above zero.
    double unit = 1;
    std::string name = "B";
    for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
      if (static_cast<double>(geometry_.top_bytes()) < 1024 * unit) break;
      unit *= 1024;
      name = larger;
    }
    double step = 0.2;
    for (int i = 0; static_cast<double>(geometry_.top_bytes()) / unit / step > 4.5; ++i) {
      step *= i % 3 == 0 ? 2.5 : 2;  // 0.2, 0.5, 1, 2, 5, 10
    }
    for (int i = 0; i * step * unit <= static_cast<double>(geometry_.top_bytes()); ++i) {
      const auto bytes = static_cast<int64_t>(i * step * unit);
      const int y = top + geometry_.detail_height() + kChartBottom - geometry_.Height(bytes);
      picture_.Rule(kMargin + kTicks, kWidth - kMargin - 20, y, kBarLine, 0, kLine);
      const bool taken =
          geometry_.show_capacity() &&
          std::abs(geometry_.Height(bytes) - geometry_.Height(figure_.capacity)) < 44;
      if (taken) continue;
      picture_.Text(kMargin + kTicks - 12, y + 7,
                    i == 0 ? "0" : absl::StrFormat("%g %s", i * step, name), Regular(), 20, kMuted,
                    Align::kRight);
    }
  }

  void DrawCapacity(int row) {
    const int y = geometry_.PanelTop(row) + geometry_.detail_height() + kChartBottom -
                  geometry_.Height(figure_.capacity);
    picture_.Rule(kMargin + kTicks, kWidth - kMargin - 20, y, kBarLine, 8, kInk);
    picture_.Text(kMargin + kTicks - 12, y - 5, "capacity", Bold(), 20, kInk, Align::kRight);
    picture_.Text(kMargin + kTicks - 12, y + 19, HumanBytes(figure_.capacity), Bold(), 20, kInk,
                  Align::kRight);
  }

  void DrawBar(const Box& bar, const PerCategory<int64_t>& bytes, bool outlined) {
    int64_t below = 0;
    for (const Category category : kStackedCategories) {
      const int64_t part = bytes[static_cast<size_t>(category)];
      const Box box = {bar.left, bar.bottom - geometry_.Height(below + part), bar.right,
                       bar.bottom - geometry_.Height(below)};
      below += part;
      const Color color = CategoryColor(category);
      picture_.Fill(box, outlined ? Blend(color, kSurface, 0.2) : color);
      if (outlined) picture_.Outline(box, kBarLine, color);
      // Neighbours are parted by a line.
      if (box.height() > 3) picture_.Fill({box.left, box.top, box.right, box.top + 1}, kSurface);
    }
  }

  void DrawGroup(int index) {
    const Group group = geometry_.GroupOf(index);
    const MemoryBars& run = figure_.runs[static_cast<size_t>(index)];
    const BarPlaces places = geometry_.Bars(index);
    const int width = geometry_.TextWidth(index);
    const int top = group.box.top, below = top + geometry_.detail_height();
    const auto centered = [&](int y, const std::string& text, const Font& font, double size,
                              Color color) {
      Fitted(group.middle(), y, text, font, size, color, width, Align::kCenter);
    };
    centered(top + kLabel, run.label, Bold(), 32, kInk);
    for (int i = 0; i < std::ssize(run.details); ++i) {
      centered(top + kDetail + i * kDetailLine, run.details[static_cast<size_t>(i)], Regular(), 22,
               kMuted);
    }
    if (run.fits) {
      centered(below + kPeak, "peak " + HumanBytes(Peak(run)), Regular(), 24, kMuted);
    } else {
      const std::string needed = HumanBytes(run.needed);
      const std::string sentence = "does not fit: needs " + needed;
      const bool room = Bold().Width(sentence, 20) <= width;
      centered(below + kPeak, room ? sentence : "does not fit: " + needed, Bold(), 24, kAlert);
    }
    DrawBar(places.predicted, run.predicted, true);
    if (run.measured) DrawBar(places.measured, *run.measured, false);

    const Factor factor(run, index);
    const double size = factor_size_;
    const double left = group.middle() - factor.Width(size) / 2;
    picture_.Text(left, below + kFactor, factor.number, Bold(), size, kInk);
    picture_.Text(left + Bold().Width(factor.number, size), below + kFactor, factor.than, Regular(),
                  size * Factor::kSmaller, kMuted);
    centered(below + kFormula,
             run.formula.empty() ? HumanBytes(run.states)
                                 : absl::StrCat(run.formula, " = ", HumanBytes(run.states)),
             Regular(), 24, kInk);
    centered(below + kShares, run.shares, Regular(), 20, kMuted);
  }

  const MemoryFigure& figure_;
  const Geometry geometry_;
  Picture picture_;
  int factor_size_ = 66;  // as large as fits every group
};

}  // namespace

Color CategoryColor(Category category) {
  switch (category) {
    case Category::kParameters:
      return Rgb(0x2b62ad);
    case Category::kGradients:
      return Rgb(0xe58a1f);
    case Category::kOptimizerStates:
      return Rgb(0x45a37c);
    case Category::kWorkspace:
      return Rgb(0x767d86);
    case Category::kActivationCheckpoints:
      return Rgb(0xecbcd8);
    case Category::kActivations:
      return Rgb(0xa34a8b);
    case Category::kCommunicationBuffers:
      return Rgb(0x7cc7ea);
  }
  return kInk;
}

Picture DrawMemory(const MemoryFigure& figure) { return Drawing(figure).Draw(); }

std::vector<BarPlaces> PlaceBars(const MemoryFigure& figure) { return Geometry(figure).Places(); }

}  // namespace zerobox
