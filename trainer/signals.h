// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C, SIGTERM and SIGHUP: the first asks a run to finish its step and write everything, the
// second ends the program at once. Output to a closed pipe is an error of the write, not a signal.
#ifndef ZEROBOX_TRAINER_SIGNALS_H_
#define ZEROBOX_TRAINER_SIGNALS_H_

namespace zerobox {

// Also for a file beyond the size that the system allows.
void TurnWriteSignalsIntoErrors();
// Before the threads of a run exist.
void CatchStopSignals();
// The signal that asked to stop, or 0. From any thread.
int StopSignal();

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_SIGNALS_H_
