// SPDX-License-Identifier: Apache-2.0
//
// What a run shows about itself, as text at most 80 columns wide.
#ifndef ZEROBOX_TRAINER_TABLES_H_
#define ZEROBOX_TRAINER_TABLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/resolve.h"
#include "trainer/results.h"
#include "trainer/settings.h"
#include "trainer/text.h"

namespace zerobox {

// What a run says about its data; nothing when none was opened (a dry run).
struct DataFacts {
  int64_t train_tokens = 0;
  int64_t train_sequences = 0;
  int64_t validation_sequences = 0;
};

// Model with Psi, batch identity, data, optimizer, devices. `about_devices`: see ResolvedTrain.
std::string Header(const TrainSettings& settings, const std::string& model, const RunPlan& plan,
                   const DataFacts* data, const std::string& about_devices, const Style& style);

// What each device holds at its peak, by category: predicted, and measured beside it once there are
// `measured` ranks (may be empty). Devices with the same numbers share one block; a device that
// differs gets its own. The bars show a category's share, and in light what stage 0 holds of it.
std::string MemoryTable(const TrainSettings& settings, const RunPlan& plan,
                        const std::vector<RankResult>& measured, const Style& style);

// What each device sends in one steady step: the paper's figure, the prediction of the step program
// and (where `measured` is not empty) what was counted; and why prediction and paper differ.
std::string TrafficTable(const RunPlan& plan, const std::vector<RankResult>& measured,
                         const Style& style);

// "exposed communication   1.9 ms of 12.3 ms a step (15%)": medians over the steps after the
// second; nothing of a run with one device, or without such steps.
std::string ExposedCommunication(const RunResult& result, const Style& style);

// Every resolved flag with its source, by topic.
std::string FlagsTable(const std::vector<ResolvedFlag>& flags, const Style& style);

// One micro-batch, visit by visit.
std::string ProgramTable(const TrainSettings& settings, const RunPlan& plan, const Style& style);

// The plan's largest reservation of one device; what has to fit the device's memory.
int64_t LargestReservation(const RunPlan& plan);

// Held-out losses of count models and of the trained model, smallest last.
struct Yardstick {
  std::string name;
  double loss;
  bool ours = false;
};
std::string YardstickTable(const std::vector<Yardstick>& yardsticks, const Style& style);

// Text that a model wrote, behind a line on the left.
std::string SampleBlock(const std::string& text, const Style& style);

// "step 100   held-out loss 2.6012   perplexity 13.48"
std::string EvalText(const EvalMetrics& metrics, const Style& style);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TABLES_H_
