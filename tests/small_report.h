// SPDX-License-Identifier: Apache-2.0
//
// A run without training, for tests of what is written about one: a small model with its real plan,
// results that say that the plan came true, and a step that is drawn by hand.
#ifndef ZEROBOX_TESTS_SMALL_REPORT_H_
#define ZEROBOX_TESTS_SMALL_REPORT_H_

#include <string>

#include "trainer/report.h"
#include "trainer/resolve.h"
#include "trainer/results.h"

namespace zerobox {

// Of two ranks, 1000 ns long:
//   op 0  forward lookup (unit 0)           rank 0 [0, 100), rank 1 [50, 150)
//   op 1  all-gather of unit 1, parameters  rank 0 [20, 120), rank 1 [60, 120)
//   op 2  forward block 0 (unit 1)          both [150, 400) and, after a wait, [500, 600)
//   op 3  all-reduce of scalars             rank 0 [600, 700), rank 1 [650, 700)
//   op 4  copy of the batch, from the host  both [700, 700)
// Regions of each rank: parameters, 1000 bytes, before and after; a gathered unit 1, 400 bytes, in
// [20, 600); activations, 50 bytes, in [150, 600); so that the peak is 1450 bytes from 150 on.
StepTrace SmallTrace();

// Stage 3 on two host devices; 2 layers, 2 heads, width 8, 4 positions, 16 tokens.
struct SmallReport {
  explicit SmallReport(int stage = 3);
  ReportRun run() const;  // points into this

  ResolvedTrain resolved;
  RunPlan plan;
  RunResult result;
};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_SMALL_REPORT_H_
