// SPDX-License-Identifier: Apache-2.0
//
// What holds of every recorded step, on host devices and GPUs.
#ifndef ZEROBOX_TESTS_TRACE_CHECKS_H_
#define ZEROBOX_TESTS_TRACE_CHECKS_H_

#include "tests/small_run.h"

namespace zerobox {

// The recorded step agrees with what was counted beside it (the ledger, the traffic, the copies),
// with its settings, and with the order that the events enforce.
void ExpectTraceAgrees(const TrainSettings& settings, const SmallRun& run);

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_TRACE_CHECKS_H_
