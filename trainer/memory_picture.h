// SPDX-License-Identifier: Apache-2.0
//
// memory.png: what a device holds in each of several runs, as ZeRO's figure 1 has it
// (arXiv:1910.02054): a bar that was predicted beside one that was measured, by category.
#ifndef ZEROBOX_TRAINER_MEMORY_PICTURE_H_
#define ZEROBOX_TRAINER_MEMORY_PICTURE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/device/memory.h"
#include "trainer/picture.h"

namespace zerobox {

// From the bottom of a bar, here and in report.html.
inline constexpr std::array<Category, kCategories> kStackedCategories = {
    Category::kParameters,
    Category::kGradients,
    Category::kOptimizerStates,
    Category::kWorkspace,
    Category::kActivationCheckpoints,
    Category::kActivations,
    Category::kCommunicationBuffers};

struct MemoryBars {
  std::string label;                 // "ZeRO-2"
  std::vector<std::string> details;  // "optimizer offloaded", a line each
  PerCategory<int64_t> predicted{};
  std::optional<PerCategory<int64_t>> measured;  // none: it was not run
  bool fits = true;
  int64_t needed = 0;   // what a device has to have
  int64_t states = 0;   // bytes of model states
  double saved = 1;     // times less model states than the first
  std::string formula;  // "2Ψ + 14Ψ/4", or ""
  std::string shares;   // "and gradients sharded"
};

struct MemoryFigure {
  std::string title, subtitle, footer;
  int64_t capacity = 0;  // bytes of a device
  int together = 1;      // runs that stand in one row, where that has room for them
  std::vector<MemoryBars> runs;
};

// 1600 pixels wide; 900 high where there are up to six runs and no details, else higher.
Picture DrawMemory(const MemoryFigure& figure);

// Where the bars of each run stand, as DrawMemory draws them.
struct BarPlaces {
  Box predicted, measured;  // all categories together, without the lines around
};
std::vector<BarPlaces> PlaceBars(const MemoryFigure& figure);

// The light palette of report.html.
Color CategoryColor(Category category);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_MEMORY_PICTURE_H_
