// SPDX-License-Identifier: Apache-2.0
//
// zerobox sample: lets a trained model write.
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/help.h"
#include "trainer/resolve.h"
#include "trainer/screen.h"
#include "trainer/signals.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

// A file or a pipe gets every byte as the model draws it; a terminal gets words that it can show.
class Writer {
 public:
  Writer(Screen& screen, bool terminal) : screen_(screen), terminal_(terminal) {}
  bool Write(std::string_view text) {
    pending_.append(text);
    if (!terminal_ || text.find_first_of(" \n") != text.npos) Flush();
    return screen_.out_open() && StopSignal() == 0;
  }
  void Flush() {
    screen_.Print(terminal_ ? Printable(pending_) : pending_);
    pending_.clear();
  }

 private:
  Screen& screen_;
  const bool terminal_;
  std::string pending_;
};

absl::Status WriteSample(const CommandLine& line, Writer& writer) {
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
  CatchStopSignals();
  return Sample(resolved->settings, [&](std::string_view text) { return writer.Write(text); });
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
  Writer writer(screen, options.out_terminal);
  if (absl::Status status = WriteSample(*line, writer); !status.ok()) return refuse(status);
  writer.Flush();
  if (options.out_terminal) screen.Print("\n");
  if (StopSignal() != 0) return kStoppedBySignal + StopSignal();
  return screen.out_ok() ? kDone : kRefused;
}

}  // namespace zerobox
