// SPDX-License-Identifier: Apache-2.0
#include "trainer/command_line.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/view.h"

namespace zerobox {
namespace {

constexpr int kDeepestFlagFile = 8;
constexpr int kMostFlagFiles = 1000;  // each as often as it is named

std::string_view CommandName(unsigned commands) {
  return (commands & kTrainCommand) != 0    ? "train"
         : (commands & kSampleCommand) != 0 ? "sample"
         : (commands & kReportCommand) != 0 ? "report"
                                            : "compare";
}

// Where one argument stands; a flag file's arguments are read by the same code as the command
// line's.
struct Place {
  std::string file;  // "": the command line
  int depth = 0;
};

class Parser {
 public:
  explicit Parser(CommandMask command) : command_(command) {}

  absl::Status ParseAll(std::span<const std::string> arguments, const Place& place) {
    for (size_t i = 0; i < arguments.size() && !line_.help && !line_.version; ++i) {
      const std::string_view argument = arguments[i];
      if (argument.size() < 2 || argument[0] != '-' || argument == "--") {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", View(argument), "' is no flag: wanted --name=value; flags of ",
            View(CommandName(command_)), ": zerobox help ", View(CommandName(command_))));
      }
      const std::string_view body = argument.substr(argument[1] == '-' ? 2 : 1);
      const size_t equals = body.find('=');
      const std::string name(body.substr(0, equals));
      std::optional<std::string> value;
      if (equals != std::string_view::npos) value = std::string(body.substr(equals + 1));
      const bool value_follows = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
      const std::string* const next = value_follows ? &arguments[i + 1] : nullptr;
      bool took_next = false;
      absl::Status status = ParseOne(name, value, next, place, took_next);
      if (!status.ok()) return status;
      if (took_next) ++i;
    }
    return absl::OkStatus();
  }

  CommandLine TakeLine() { return std::move(line_); }

 private:
  absl::Status ParseOne(const std::string& name, std::optional<std::string> value,
                        const std::string* next, const Place& place, bool& took_next) {
    if (name == "help" || name == "h" || name == "helpfull" || name == "helpshort") {
      line_.help = true;
      return absl::OkStatus();
    }
    if (name == "version") {
      line_.version = true;
      return absl::OkStatus();
    }
    const bool is_flag_file = name == "flagfile";
    const FlagInfo* info = FindFlag(name);
    if (info == nullptr && !is_flag_file && !value && name.starts_with("no")) {
      // --noname is --name=false.
      info = FindFlag(std::string_view(name).substr(2));
      if (info != nullptr && !Registered(*info)->IsOfType<bool>()) info = nullptr;
      if (info != nullptr) value = "false";
    }
    if (info == nullptr && !is_flag_file) return UnknownFlag(name);
    if (info != nullptr && (info->commands & command_) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is a flag of ", View(CommandName(info->commands)), ", not of ",
                       View(CommandName(command_)), "; leave it out (flags: zerobox help ",
                       View(CommandName(command_)), ")"));
    }
    if (!value && info != nullptr && Registered(*info)->IsOfType<bool>()) value = "true";
    if (!value && next != nullptr && place.file.empty()) {
      value = *next;
      took_next = true;
    }
    if (!value) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, " has no value: wanted --", name, "=",
          is_flag_file ? absl::string_view("FILE") : View(info->MeaningIn(command_).placeholder)));
    }
    if (is_flag_file) return ReadFlagFile(*value, place);
    return SetFlag(*info, *value, place);
  }

  absl::Status SetFlag(const FlagInfo& info, const std::string& value, const Place& place) {
    absl::CommandLineFlag* const flag = Registered(info);
    const std::string_view default_text = info.MeaningIn(command_).default_text;
    const auto refuse = [&] {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", View(info.name), "=", value, ": wanted ", Wanted(info), ", found '", value,
          "'; leave the flag out for its default (",
          default_text.empty() ? flag->DefaultValue() : std::string(default_text), ")"));
    };
    if (flag->IsOfType<std::string>() && value.starts_with("--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", View(info.name), ": wanted a value, found '", value,
                       "', which looks like a flag; give --", View(info.name), " a value"));
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) return refuse();
    if (!InRange(info, *flag)) return refuse();
    line_.sources[std::string(info.name)] = place.file.empty() ? "flag" : "flagfile";
    return absl::OkStatus();
  }

  static bool InRange(const FlagInfo& info, const absl::CommandLineFlag& flag) {
    if (const auto number = flag.TryGet<int64_t>()) {
      return info.range.Contains(static_cast<double>(*number));
    }
    if (const auto number = flag.TryGet<double>()) return info.range.Contains(*number);
    if (const auto size = flag.TryGet<Bytes>()) {
      return info.range.Contains(static_cast<double>(size->value));
    }
    return true;
  }

  absl::Status ReadFlagFile(const std::string& path, const Place& place) {
    if (path.empty() || path.starts_with("--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--flagfile: wanted a file name, found '", path, "'"));
    }
    if (place.depth == kDeepestFlagFile) {
      return absl::InvalidArgumentError(
          absl::StrCat("--flagfile=", path, ": flag files are nested more than ", kDeepestFlagFile,
                       " deep; does one include itself?"));
    }
    if (++flag_files_ > kMostFlagFiles) {
      return absl::InvalidArgumentError(
          absl::StrCat("--flagfile=", path, ": wanted at most ", kMostFlagFiles,
                       " flag files, found more (does one name another many times?); name fewer"));
    }
    std::error_code error;
    std::ifstream file;
    if (std::filesystem::is_regular_file(path, error)) file.open(path);
    if (!file.is_open()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--flagfile=", path, ": wanted a readable text file with a flag a line, found ",
          std::filesystem::exists(path, error) ? "something else" : "nothing there",
          "; name another"));
    }
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
      const std::string line(absl::StripAsciiWhitespace(text));
      if (line.empty() || line[0] == '#') continue;
      const absl::Status status =
          ParseAll(std::span<const std::string>(&line, 1), {path, place.depth + 1});
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ", line ", number, ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status UnknownFlag(const std::string& name) const {
    std::vector<std::string> nearest = NearestFlags(name, command_);
    for (std::string& flag : nearest) flag.insert(0, "--");
    const std::string hint =
        nearest.empty() ? "" : absl::StrCat("did you mean ", absl::StrJoin(nearest, " or "), "? ");
    return absl::InvalidArgumentError(absl::StrCat("there is no flag --", name, "; ", hint,
                                                   nearest.empty() ? "see" : "See",
                                                   " zerobox help ", View(CommandName(command_))));
  }

  static absl::CommandLineFlag* Registered(const FlagInfo& info) {
    return absl::FindCommandLineFlag(View(info.name));
  }

  CommandMask command_;
  CommandLine line_;
  int flag_files_ = 0;  // read so far
};

}  // namespace

absl::StatusOr<CommandLine> ParseArguments(CommandMask command,
                                           std::span<const std::string> arguments) {
  Parser parser(command);
  const absl::Status status = parser.ParseAll(arguments, {});
  if (!status.ok()) return status;
  return parser.TakeLine();
}

}  // namespace zerobox
