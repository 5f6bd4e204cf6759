// SPDX-License-Identifier: Apache-2.0
//
// What a comparison of runs has to say: as a table, as a sentence, as compare.json, and as the
// figure of memory.png.
#ifndef ZEROBOX_TRAINER_COMPARISON_H_
#define ZEROBOX_TRAINER_COMPARISON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/combinations.h"
#include "trainer/memory_picture.h"
#include "trainer/report.h"
#include "trainer/results.h"
#include "trainer/run_equality.h"
#include "trainer/text.h"

namespace zerobox {

enum class RunEnd : uint8_t { kPlanned, kDone, kDoesNotFit, kStopped, kFailed };
std::string_view Name(RunEnd end);  // "done", "does_not_fit"

struct ComparedRun {
  const Combination* combination = nullptr;
  const RunPlan* plan = nullptr;
  RunEnd end = RunEnd::kPlanned;      // kPlanned: not run, or not yet
  const RunResult* result = nullptr;  // where steps were done
  std::string failure;                // of kDoesNotFit and kFailed: one sentence
  std::optional<LargestModel> largest_model;
  // To the reference; none for that itself, and for a run that did not end.
  std::optional<Equality> equality;
  std::optional<LossDifference> loss_difference;
  bool equality_promised = true;

  const TrainSettings& settings() const { return combination->resolved.settings; }
  // Of device 0, at its peak: measured where the run was, else planned.
  const Ledger& memory() const;
  int64_t state_bytes() const;  // parameters, gradients and optimizer states
  int64_t sent_bytes() const;   // by device 0 in one step, without scalars
  // The same as the paper counts: numbers, in multiples of Psi, without the factor (N - 1) / N.
  double sent_psi() const;
  // The median over the steps after the second; none of a shorter run.
  std::optional<double> tokens_per_second() const;
};

struct Comparison {
  std::string command;
  std::string folder;  // "": nothing was written
  // At least one; the first is what memory is compared to.
  std::vector<ComparedRun> runs;
  // What losses and parameters are compared to: the first that was done; null: none was.
  const ComparedRun* reference() const;
  // How many times less model states than the first.
  double Saved(const ComparedRun& run) const;
};

// The most layers with which the model fits settings.device_memory_bytes, everything else
// unchanged, found by planning. Up to kMostLayers; none where not even one layer fits.
inline constexpr int64_t kMostLayers = 1 << 13;
std::optional<LargestModel> FindLargestModel(const TrainSettings& settings);

// A row for each run, what stands beside them, and what came out as a sentence.
std::string CompareTable(const Comparison& comparison, const Style& style);
std::string Verdict(const Comparison& comparison);
// What compare.json has.
std::string CompareText(const Comparison& comparison);

// "4Ψ + 12Ψ/4": bytes of model states on a device, by the paper's formula with its numbers.
std::string StatesFormula(const TrainSettings& settings);
MemoryFigure FigureOf(const Comparison& comparison);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_COMPARISON_H_
