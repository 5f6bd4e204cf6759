// SPDX-License-Identifier: Apache-2.0
//
// trace.json: the recorded step in the Trace Event Format, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open. Ranks are processes, streams are threads, memory is a counter for each
// rank and category, and arrows join the parts of one collective.
#ifndef ZEROBOX_TRAINER_TRACE_EVENTS_H_
#define ZEROBOX_TRAINER_TRACE_EVENTS_H_

#include <string>

#include "trainer/step_trace.h"

namespace zerobox {

std::string TraceEventsText(const StepTrace& trace);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TRACE_EVENTS_H_
