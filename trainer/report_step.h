// SPDX-License-Identifier: Apache-2.0
//
// The part `step` of a report: the recorded step as three tables.
#ifndef ZEROBOX_TRAINER_REPORT_STEP_H_
#define ZEROBOX_TRAINER_REPORT_STEP_H_

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "trainer/step_trace.h"

namespace zerobox {

// `clock`: what took the times, "host clock" or "GPU events".
nlohmann::ordered_json StepJson(const StepTrace& trace, const std::string& clock);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_REPORT_STEP_H_
