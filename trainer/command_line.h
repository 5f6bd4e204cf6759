// SPDX-License-Identifier: Apache-2.0
//
// Reads a command line into Abseil's flag registry. absl::ParseCommandLine is not used: it ends the
// program by itself, knows no commands, and cannot say where a value came from.
#ifndef ZEROBOX_TRAINER_COMMAND_LINE_H_
#define ZEROBOX_TRAINER_COMMAND_LINE_H_

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "trainer/flags.h"

namespace zerobox {

struct CommandLine {
  // Where the value of each flag that was given comes from: "flag" or "flagfile".
  std::map<std::string, std::string, std::less<>> sources;
  bool help = false;  // --help was among the arguments; the rest was not looked at
  bool version = false;

  bool Given(std::string_view flag) const { return sources.find(flag) != sources.end(); }
};

// `arguments` are those behind the command's name: --name=value, --name value, --name and --noname
// for true and false, --flagfile=FILE (a flag a line, # comments). The last of several values wins.
// Errors name the flag, what it wants, what was found and what to do: unknown flag (with the
// nearest names), flag of another command, missing or malformed value, number out of range, a value
// that begins with "--", an argument that is no flag, unreadable flag file (with its line).
absl::StatusOr<CommandLine> ParseArguments(CommandMask command,
                                           std::span<const std::string> arguments);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_COMMAND_LINE_H_
