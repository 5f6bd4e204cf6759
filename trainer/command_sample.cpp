// SPDX-License-Identifier: Apache-2.0
//
// zerobox sample: lets a trained model write.
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/help.h"
#include "trainer/resolve.h"
#include "trainer/screen.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

absl::StatusOr<std::string> Written(const CommandLine& line) {
  const absl::StatusOr<ResolvedSample> resolved = ResolveSample(line, ThisMachine());
  if (!resolved.ok()) return resolved.status();
  const std::string& run = resolved->settings.run;
  std::error_code error;
  if (!std::filesystem::is_regular_file(run + "/model.safetensors", error)) {
    return absl::NotFoundError(absl::StrCat(
        "--run=", run, ": wanted the folder of a finished run, found ",
        std::filesystem::exists(run, error) ? "no model.safetensors in it" : "nothing there",
        "; give --run=FOLDER, or train first (zerobox train --data=FILE)"));
  }
  return Sample(resolved->settings);
}

}  // namespace

int SampleProgram(std::span<const std::string> arguments) {
  const ScreenOptions options = OptionsOfThisProcess();
  Screen screen(options);
  const auto refuse = [&](const absl::Status& status) {
    screen.Say(std::string(status.message()));
    return kRefused;
  };
  const absl::StatusOr<CommandLine> line = ParseArguments(kSampleCommand, arguments);
  if (!line.ok()) return refuse(line.status());
  if (line->help || line->version) {
    screen.Print(line->help ? FlagsHelp(kSampleCommand) : VersionText());
    return screen.out_ok() ? kDone : kRefused;
  }
  const absl::StatusOr<std::string> text = Written(*line);
  if (!text.ok()) return refuse(text.status());
  // A file or a pipe gets every byte as the model wrote it.
  screen.Print(options.out_terminal ? Printable(*text) + "\n" : *text);
  return screen.out_ok() ? kDone : kRefused;
}

}  // namespace zerobox
