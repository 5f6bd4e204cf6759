// SPDX-License-Identifier: Apache-2.0
//
// zerobox help, and the choice of a command.
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "trainer/commands.h"
#include "trainer/flags.h"
#include "trainer/help.h"
#include "trainer/screen.h"

namespace zerobox {
namespace {

int Show(const std::string& text) {
  Screen screen(OptionsOfThisProcess());
  screen.Print(text);
  return screen.out_ok() ? kDone : kRefused;
}

int RefuseCommand(const std::string& found, const std::string& wanted) {
  Screen screen(OptionsOfThisProcess());
  std::string hint;
  for (const std::string_view command : {"train", "compare", "sample", "report", "help"}) {
    if (EditDistance(found, command) <= 2)
      hint = absl::StrCat("did you mean ", std::string(command), "? ");
  }
  screen.Say(absl::StrCat("wanted ", wanted, ", found '", found, "'; ", hint,
                          hint.empty() ? "see" : "See", " zerobox help"));
  return kRefused;
}

}  // namespace

int HelpProgram(std::span<const std::string> arguments) {
  if (arguments.empty() || arguments[0] == "help" || arguments[0] == "--help") {
    return Show(CommandsHelp());
  }
  const CommandMask command = CommandByName(arguments[0]);
  if (arguments.size() > 1 || command == kNoCommand) {
    return RefuseCommand(arguments.size() > 1 ? arguments[1] : arguments[0],
                         "one command: train, compare, sample or report");
  }
  return Show(FlagsHelp(command));
}

int RunProgram(std::span<const std::string> arguments) {
  if (arguments.empty()) {
    Screen screen(OptionsOfThisProcess());
    screen.Say("wanted a command, train, compare, sample, report or help; see zerobox help");
    return kRefused;
  }
  const std::string& command = arguments[0];
  const std::span<const std::string> rest = arguments.subspan(1);
  if (command == "train") return TrainProgram(rest);
  if (command == "compare") return CompareProgram(rest);
  if (command == "sample") return SampleProgram(rest);
  if (command == "report") return ReportProgram(rest);
  if (command == "help" || command == "--help" || command == "-h" || command == "-help") {
    return HelpProgram(rest);
  }
  if (command == "--version" || command == "-version") return Show(VersionText());
  return RefuseCommand(command, "a command first: train, compare, sample, report or help");
}

}  // namespace zerobox
