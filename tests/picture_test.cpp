// SPDX-License-Identifier: Apache-2.0
//
// memory.png, by its pixels.
#include "trainer/picture.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/embedded.h"
#include "trainer/memory_picture.h"

namespace zerobox {
namespace {

constexpr Color kWhite = Rgb(0xffffff), kBlack = Rgb(0x000000), kRed = Rgb(0xff0000);

const Font& Regular() {
  static const Font kFont(Embedded("build/fonts/DejaVuSans.ttf"));
  return kFont;
}

// Pixels of a box that are not `ground`.
int Drawn(const Picture& picture, const Box& box, Color ground) {
  int drawn = 0;
  for (int y = box.top; y < box.bottom; ++y) {
    for (int x = box.left; x < box.right; ++x) drawn += picture.At(x, y) == ground ? 0 : 1;
  }
  return drawn;
}

uint32_t BigEndian(const std::string& bytes, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  return number;
}

TEST(Picture, FillsPixelsInsideTheBoxAndCutsOffTheRest) {
  Picture picture(10, 8, kWhite);
  picture.Fill({2, 3, 5, 6}, kRed);
  EXPECT_EQ(Drawn(picture, {0, 0, 10, 8}, kWhite), 3 * 3);
  EXPECT_EQ(picture.At(2, 3), kRed);
  EXPECT_EQ(picture.At(4, 5), kRed);
  EXPECT_EQ(picture.At(5, 6), kWhite);
  picture.Fill({-5, -5, 2, 2}, kBlack);
  picture.Fill({9, 7, 40, 40}, kBlack);
  EXPECT_EQ(Drawn(picture, {0, 0, 10, 8}, kWhite), 3 * 3 + 2 * 2 + 1);
}

TEST(Picture, OutlinesInsideTheBox) {
  Picture picture(10, 10, kWhite);
  picture.Outline({1, 1, 9, 8}, 2, kRed);
  EXPECT_EQ(Drawn(picture, {0, 0, 10, 10}, kWhite), 8 * 7 - 4 * 3);
  EXPECT_EQ(picture.At(3, 3), kWhite);
  EXPECT_EQ(picture.At(2, 2), kRed);
}

TEST(Picture, DashesARule) {
  Picture picture(20, 3, kWhite);
  picture.Rule(0, 20, 1, 1, 4, kBlack);
  EXPECT_EQ(Drawn(picture, {0, 0, 20, 3}, kWhite), 4 + 4 + 4);
  EXPECT_EQ(picture.At(4, 1), kWhite);
  EXPECT_EQ(picture.At(8, 1), kBlack);
}

TEST(Picture, DrawsTextBetweenItsEndsOnTheBaseline) {
  Picture picture(300, 60, kWhite);
  const double width = Regular().Width("Hxk", 40);
  picture.Text(20, 45, "Hxk", Regular(), 40, kBlack);
  const int right = 20 + static_cast<int>(width) + 1;
  EXPECT_GT(Drawn(picture, {20, 10, right, 45}, kWhite), 300);
  EXPECT_EQ(Drawn(picture, {0, 0, 20, 60}, kWhite), 0);
  EXPECT_EQ(Drawn(picture, {right, 0, 300, 60}, kWhite), 0);
  EXPECT_EQ(Drawn(picture, {0, 46, 300, 60}, kWhite), 0);  // no letter reaches below
  // Edges are smooth: there is more than black and white.
  std::set<uint8_t> grays;
  for (int x = 20; x < right; ++x) grays.insert(picture.At(x, 35).red);
  EXPECT_GT(grays.size(), 4u);
}

TEST(Picture, AlignsText) {
  const double width = Regular().Width("mm", 30);
  for (const Align align : {Align::kLeft, Align::kCenter, Align::kRight}) {
    Picture picture(400, 50, kWhite);
    picture.Text(200, 40, "mm", Regular(), 30, kBlack, align);
    const double left = align == Align::kLeft     ? 200
                        : align == Align::kCenter ? 200 - width / 2
                                                  : 200 - width;
    const Box box = {static_cast<int>(left), 0, static_cast<int>(left + width) + 1, 50};
    EXPECT_GT(Drawn(picture, box, kWhite), 100);
    EXPECT_EQ(Drawn(picture, {0, 0, 400, 50}, kWhite), Drawn(picture, box, kWhite));
  }
}

TEST(Picture, HasTheGreekLettersAndSignsThatFormulasNeed) {
  // A character that the font lacks would be its box for all of them.
  const auto drawn = [](const char* text) {
    Picture picture(60, 60, kWhite);
    picture.Text(10, 45, text, Regular(), 40, kBlack);
    return picture.Png();
  };
  std::set<std::string> pictures;
  for (const char* text : {"Ψ", "×", "…", "\xf0\x9f\x98\x80"}) pictures.insert(drawn(text));
  EXPECT_EQ(pictures.size(), 4u);
  EXPECT_GT(Regular().Width("ΨΨ", 20), 1.9 * Regular().Width("Ψ", 20));
}

TEST(Picture, DrawsNoPixelForBrokenTextOutsideThePicture) {
  Picture picture(40, 40, kWhite);
  picture.Text(-10, 20, "\xce", Regular(), 30, kBlack);
  picture.Text(35, 39, "W\xff\xfe", Regular(), 30, kBlack);
  EXPECT_EQ(picture.Png().substr(1, 3), "PNG");
}

TEST(Picture, DrawsTheLettersBehindBrokenBytes) {
  // A byte in the middle of a character, one that begins a character which does not go on, and
  // both.
  const double broken = Regular().Width("\x80", 40), letter = Regular().Width("W", 40);
  EXPECT_GT(broken, 0);
  for (const auto& [text, bytes] : {std::pair{"\x80W", 1}, std::pair{"\xbfW", 1},
                                    std::pair{"\xceW", 1}, std::pair{"\xe2\x84W", 2}}) {
    EXPECT_NEAR(Regular().Width(text, 40), bytes * broken + letter, 1e-6) << bytes;
  }
}

TEST(Picture, IsAPngOfItsSize) {
  Picture picture(321, 123, kWhite);
  const std::string png = picture.Png();
  ASSERT_GT(png.size(), 45u);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
  EXPECT_EQ(BigEndian(png, 16), 321u);
  EXPECT_EQ(BigEndian(png, 20), 123u);
  EXPECT_EQ(png[24], 8);  // bits a channel
  EXPECT_EQ(png[25], 2);  // red, green, blue
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
}

//---- The memory figure

MemoryBars Run(int64_t parameters, int64_t optimizer, int64_t activations) {
  MemoryBars bars = {.label = "ZeRO-0", .formula = "16Ψ", .shares = "nothing sharded"};
  bars.predicted[static_cast<size_t>(Category::kParameters)] = parameters;
  bars.predicted[static_cast<size_t>(Category::kOptimizerStates)] = optimizer;
  bars.predicted[static_cast<size_t>(Category::kActivations)] = activations;
  bars.measured = bars.predicted;
  bars.states = parameters + optimizer;
  return bars;
}

MemoryFigure Figure(int runs) {
  MemoryFigure figure = {.title = "What each of 4 devices holds",
                         .subtitle = "tiny",
                         .footer = "Factors compare model states.",
                         .capacity = int64_t{1} << 40};
  for (int i = 0; i < runs; ++i) {
    figure.runs.push_back(Run(1000000, 2000000 / (i + 1), 1000000));
    figure.runs.back().saved = 1 + i;
    if (i >= 4) figure.runs.back().details = {"full checkpointing", "optimizer offloaded"};
  }
  return figure;
}

TEST(MemoryPicture, HasABarForEachThatIsPredictedAndMeasured) {
  const MemoryFigure figure = Figure(2);
  const Picture picture = DrawMemory(figure);
  EXPECT_EQ(picture.width(), 1600);
  EXPECT_EQ(picture.height(), 900);
  const std::vector<BarPlaces> places = PlaceBars(figure);
  ASSERT_EQ(places.size(), 2u);
  const Box& bar = places[0].measured;
  EXPECT_GT(bar.height(), 200);
  // From the bottom: a quarter parameters, half optimizer states, a quarter activations.
  const int x = (bar.left + bar.right) / 2;
  EXPECT_EQ(picture.At(x, bar.bottom - bar.height() / 8), CategoryColor(Category::kParameters));
  EXPECT_EQ(picture.At(x, bar.bottom - bar.height() / 2),
            CategoryColor(Category::kOptimizerStates));
  EXPECT_EQ(picture.At(x, bar.top + bar.height() / 8), CategoryColor(Category::kActivations));
  EXPECT_EQ(picture.At(x, bar.top - 3), picture.At(bar.left - 30, bar.top - 3));  // nothing above
  // What was predicted stands beside it, outlined: its line in the colour, a light one inside.
  const Box& outlined = places[0].predicted;
  EXPECT_EQ(outlined.height(), bar.height());
  EXPECT_LT(outlined.right, bar.left);
  const int y = outlined.bottom - outlined.height() / 8;
  EXPECT_EQ(picture.At(outlined.left, y), CategoryColor(Category::kParameters));
  const Color inside = picture.At((outlined.left + outlined.right) / 2, y);
  EXPECT_GT(inside.red, CategoryColor(Category::kParameters).red + 100);
  // 3 million bytes are 3/4 of 4 million.
  EXPECT_NEAR(places[1].measured.height(), bar.height() * 3.0 / 4, 1);
}

TEST(MemoryPicture, LeavesOutTheMeasuredBarOfWhatDoesNotFit) {
  MemoryFigure figure = Figure(2);
  figure.capacity = 3500000;
  figure.runs[0].fits = false;
  figure.runs[0].measured.reset();
  figure.runs[0].needed = 4000000;
  const std::vector<BarPlaces> places = PlaceBars(figure);
  EXPECT_EQ(places[0].measured.height(), 0);
  EXPECT_GT(places[0].predicted.height(), places[1].predicted.height());
  const Picture picture = DrawMemory(figure);
  // "does not fit" is the only thing in the colour of alarms.
  int red = 0;
  for (int y = 0; y < picture.height(); ++y) {
    for (int x = 0; x < picture.width(); ++x) red += picture.At(x, y) == Rgb(0xb3261e) ? 1 : 0;
  }
  EXPECT_GT(red, 200);
}

TEST(MemoryPicture, ShowsTheCapacityWhereItIsNearTheBars) {
  MemoryFigure figure = Figure(1);
  const int far = PlaceBars(figure)[0].measured.height();
  figure.capacity = 5000000;  // a fifth more than the 4 million of the bar
  const std::vector<BarPlaces> places = PlaceBars(figure);
  EXPECT_NEAR(places[0].measured.height(), far * 4.0 / 5, 1);
  const Picture picture = DrawMemory(figure);
  // The line is a quarter of the bar's height above it, and drawn or blank in turn.
  const Box& bar = places[0].measured;
  const int y = bar.bottom - far;
  std::set<std::tuple<int, int, int>> colors;
  for (int x = bar.left; x < bar.left + 16; ++x) {
    const Color color = picture.At(x, y);
    colors.insert({color.red, color.green, color.blue});
  }
  EXPECT_EQ(colors.size(), 2u);
}

TEST(MemoryPicture, WritesTitleLegendAndFactors) {
  const Picture picture = DrawMemory(Figure(4));
  const Color page = picture.At(0, 0);
  EXPECT_GT(Drawn(picture, {50, 40, 900, 85}, page), 1000);
  EXPECT_GT(Drawn(picture, {50, 150, 900, 175}, page), 1000);
  EXPECT_GT(Drawn(picture, {50, 860, 900, 895}, page), 300);
  for (const BarPlaces& bars : PlaceBars(Figure(4))) {
    const Box below = {bars.predicted.left, bars.predicted.bottom + 10, bars.measured.right,
                       bars.predicted.bottom + 80};
    EXPECT_GT(Drawn(picture, below, Rgb(0xffffff)), 500);
  }
}

TEST(MemoryPicture, KeepsBarsApartWithAnyNumberOfRuns) {
  for (const int runs : {1, 2, 4, 5, 8, 12, 13}) {
    const MemoryFigure figure = Figure(runs);
    const Picture picture = DrawMemory(figure);
    const std::vector<BarPlaces> places = PlaceBars(figure);
    ASSERT_EQ(std::ssize(places), runs);
    for (int i = 0; i < runs; ++i) {
      const BarPlaces& bars = places[static_cast<size_t>(i)];
      EXPECT_GE(bars.predicted.left, 0);
      EXPECT_LT(bars.predicted.right, bars.measured.left);
      EXPECT_LE(bars.measured.right, picture.width());
      EXPECT_LE(bars.measured.bottom, picture.height());
      if (i == 0) continue;
      const BarPlaces& before = places[static_cast<size_t>(i) - 1];
      const bool same_row = bars.measured.bottom == before.measured.bottom;
      EXPECT_TRUE(same_row ? bars.predicted.left > before.measured.right + 40
                           : bars.measured.top > before.measured.bottom + 100)
          << runs << " runs, run " << i;
    }
  }
}

TEST(MemoryPicture, KeepsRunsThatBelongTogetherInOneRow) {
  const auto rows = [](int runs, int together) {
    MemoryFigure figure = Figure(runs);
    figure.together = together;
    std::map<int, int> in_row;
    for (const BarPlaces& bars : PlaceBars(figure)) ++in_row[bars.measured.bottom];
    std::vector<int> counts;
    counts.reserve(in_row.size());
    for (const auto& [bottom, count] : in_row) counts.push_back(count);
    return counts;
  };
  EXPECT_EQ(rows(12, 4), (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(rows(12, 1), (std::vector<int>{6, 6}));
  EXPECT_EQ(rows(12, 3), (std::vector<int>{6, 6}));
  EXPECT_EQ(rows(8, 4), (std::vector<int>{4, 4}));
  EXPECT_EQ(rows(8, 2), (std::vector<int>{4, 4}));
  EXPECT_EQ(rows(4, 4), (std::vector<int>{4}));
  EXPECT_EQ(rows(7, 1), (std::vector<int>{4, 3}));
}

TEST(MemoryPicture, IsTheSameBytesEveryTime) {
  EXPECT_EQ(DrawMemory(Figure(8)).Png(), DrawMemory(Figure(8)).Png());
  EXPECT_NE(DrawMemory(Figure(8)).Png(), DrawMemory(Figure(7)).Png());
}

TEST(MemoryPicture, FitsNamesOfAnyLength) {
  MemoryFigure figure = Figure(6);
  figure.title = std::string(300, 'T');
  figure.subtitle = std::string(500, 's');
  for (MemoryBars& bars : figure.runs) bars.formula = std::string(80, '1');
  const Picture picture = DrawMemory(figure);
  // The right margin stays blank.
  EXPECT_EQ(Drawn(picture, {1560, 0, 1600, picture.height()}, picture.At(0, 0)), 0);
}

TEST(MemoryPicture, HasTheColoursOfThePageInLightMode) {
  const std::string css(Embedded("trainer/report/base.css"));
  for (int i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    const std::string property = "--" + std::string(Name(category)) + ": #";
    const size_t at = css.find(property);  // the light palette stands first
    ASSERT_NE(at, std::string::npos) << property;
    const std::string colour = css.substr(at + property.size(), 6);
    EXPECT_EQ(CategoryColor(category), Rgb(static_cast<uint32_t>(std::stoul(colour, nullptr, 16))))
        << property;
  }
}

}  // namespace
}  // namespace zerobox
