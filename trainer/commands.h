// SPDX-License-Identifier: Apache-2.0
//
// The commands of the program. Each takes the arguments behind its name and returns the exit code:
// 0 done, 1 refused before step 1, 3 a worker failed or something could not be written, 128+n
// stopped by signal n.
#ifndef ZEROBOX_TRAINER_COMMANDS_H_
#define ZEROBOX_TRAINER_COMMANDS_H_

#include <span>
#include <string>
#include <vector>

#include "trainer/train.h"

namespace zerobox {

inline constexpr int kDone = 0;
inline constexpr int kRefused = 1;
inline constexpr int kFailed = 3;
inline constexpr int kStoppedBySignal = 128;  // + the signal's number

// `hooks` are for tests.
int TrainProgram(std::span<const std::string> arguments, const TrainHooks& hooks = {});
// `hooks` are those of each run by its number from 0; fewer than runs: the rest has none.
int CompareProgram(std::span<const std::string> arguments,
                   const std::vector<TrainHooks>& hooks = {});
int SampleProgram(std::span<const std::string> arguments);
int ReportProgram(std::span<const std::string> arguments);
int HelpProgram(std::span<const std::string> arguments);

// Chooses the command by the first argument; `arguments` are without the program's name.
int RunProgram(std::span<const std::string> arguments);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_COMMANDS_H_
