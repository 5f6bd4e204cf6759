// SPDX-License-Identifier: Apache-2.0
//
// The texts of help and --version.
#ifndef ZEROBOX_TRAINER_HELP_H_
#define ZEROBOX_TRAINER_HELP_H_

#include <string>

#include "trainer/flags.h"

namespace zerobox {

std::string CommandsHelp();                  // what the program does, and its commands
std::string FlagsHelp(CommandMask command);  // the flags of one command, by topic
std::string VersionText();  // version, commit, compiler, SIMD target of this CPU, CUDA

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_HELP_H_
