// SPDX-License-Identifier: Apache-2.0
#include "trainer/combinations.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace zerobox {
namespace {

// The three flags that a run is given, as they were. (absl::FlagSaver writes to stderr.)
class FlagsOfOneRun {
 public:
  FlagsOfOneRun() = default;
  ~FlagsOfOneRun() { Set(stage_, offload_, checkpointing_); }
  FlagsOfOneRun(const FlagsOfOneRun&) = delete;
  FlagsOfOneRun& operator=(const FlagsOfOneRun&) = delete;

  static void Set(int64_t stage, const std::string& offload, const std::string& checkpointing) {
    absl::SetFlag(&FLAGS_zero_stage, stage);
    absl::SetFlag(&FLAGS_offload, offload);
    absl::SetFlag(&FLAGS_activation_checkpointing, checkpointing);
  }

 private:
  const int64_t stage_ = absl::GetFlag(FLAGS_zero_stage);
  const std::string offload_ = absl::GetFlag(FLAGS_offload);
  const std::string checkpointing_ = absl::GetFlag(FLAGS_activation_checkpointing);
};

// What one of the flags for several values says, as the flag for one value has it.
struct ValueList {
  std::vector<std::string> values;
  std::string source;  // see ResolvedFlag
};

// `read` returns a value as the flag for one value has it; "" for one that it does not know.
absl::StatusOr<ValueList> ReadList(const CommandLine& line, const std::string& one,
                                   const std::string& several, const std::string& text,
                                   const std::string& given_one, const std::string& otherwise,
                                   const std::function<std::string(const std::string&)>& read) {
  const auto given = line.sources.find(several);
  if (given == line.sources.end()) {
    const auto single = line.sources.find(one);
    if (single != line.sources.end()) return ValueList{{given_one}, single->second};
    return ValueList{ParseList(otherwise), "default"};
  }
  const FlagInfo& flag = *FindFlag(several);
  const auto refuse = [&](const std::string& found) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", several, "=", text, ": wanted ", std::string(flag.placeholder),
                     ", each at most once, found ", found, "; leave the flag out for ", otherwise));
  };
  if (line.Given(one)) {
    return absl::InvalidArgumentError(absl::StrCat("--", one, "=", given_one, " with --", several,
                                                   "=", text,
                                                   ": wanted one of these flags, found "
                                                   "both; leave --",
                                                   one, " out"));
  }
  if (text.empty()) return refuse("nothing");
  ValueList list = {{}, given->second};
  for (const std::string& part : ParseList(text)) {
    const std::string value = read(part);
    if (value.empty()) return refuse(absl::StrCat("'", part, "'"));
    if (std::find(list.values.begin(), list.values.end(), value) != list.values.end()) {
      return refuse(absl::StrCat("'", part, "' again"));
    }
    list.values.push_back(value);
  }
  return list;
}

std::string ReadStage(const std::string& text) {
  int64_t stage = 0;
  if (!absl::SimpleAtoi(text, &stage)) return "";
  return FindFlag("zero_stage")->range.Contains(static_cast<double>(stage)) ? absl::StrCat(stage)
                                                                            : "";
}

std::string ReadCheckpointing(const std::string& text) {
  for (const auto choice : {ActivationCheckpointing::kNone, ActivationCheckpointing::kSelective,
                            ActivationCheckpointing::kFull}) {
    if (text == Name(choice)) return text;
  }
  return "";
}

// Both with a plus between, because a comma parts the runs.
std::string ReadOffload(const std::string& text) {
  if (text == "activations+optimizer") return "optimizer,activations";
  std::string value = absl::StrReplaceAll(text, {{"+", ","}});
  for (const bool optimizer : {false, true}) {
    for (const bool activations : {false, true}) {
      if (value == OffloadName(optimizer, activations)) return value;
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<Combination>> ResolveCombinations(const CommandLine& line,
                                                             const Machine& machine) {
  const FlagsOfOneRun flags;
  const auto stages = ReadList(line, "zero_stage", "zero_stages", absl::GetFlag(FLAGS_zero_stages),
                               absl::StrCat(absl::GetFlag(FLAGS_zero_stage)), "0,1,2,3", ReadStage);
  if (!stages.ok()) return stages.status();
  const auto offloads = ReadList(line, "offload", "offloads", absl::GetFlag(FLAGS_offloads),
                                 absl::GetFlag(FLAGS_offload), "none", ReadOffload);
  if (!offloads.ok()) return offloads.status();
  const auto checkpointings =
      ReadList(line, "activation_checkpointing", "activation_checkpointings",
               absl::GetFlag(FLAGS_activation_checkpointings),
               absl::GetFlag(FLAGS_activation_checkpointing), "none", ReadCheckpointing);
  if (!checkpointings.ok()) return checkpointings.status();

  CommandLine one = line;
  const auto set = [&one](const std::string& name, const std::string& source) {
    if (source != "default") one.sources[name] = source;
  };
  set("zero_stage", stages->source);
  set("offload", offloads->source);
  set("activation_checkpointing", checkpointings->source);
  const bool several =
      stages->values.size() * offloads->values.size() * checkpointings->values.size() > 1;
  std::vector<Combination> combinations;
  for (const std::string& checkpointing : checkpointings->values) {
    for (const std::string& offload : offloads->values) {
      for (const std::string& stage : stages->values) {
        int64_t number = 0;
        if (!absl::SimpleAtoi(stage, &number)) return absl::InternalError(stage);
        FlagsOfOneRun::Set(number, offload, checkpointing);
        absl::StatusOr<ResolvedTrain> resolved = ResolveTrain(one, machine);
        if (!resolved.ok()) {
          if (!several) return resolved.status();
          return absl::Status(resolved.status().code(),
                              absl::StrCat("the run with --zero_stage=", stage, " --offload=",
                                           offload, " --activation_checkpointing=", checkpointing,
                                           ": ", resolved.status().message()));
        }
        Combination combination{NameOfRun(resolved->settings, offloads->values.size() > 1,
                                          checkpointings->values.size() > 1),
                                *std::move(resolved)};
        for (ResolvedFlag& flag : combination.resolved.flags) {
          if (flag.name == "out") flag.source = "derived";  // a folder in that of the comparison
        }
        combinations.push_back(std::move(combination));
      }
    }
  }
  return combinations;
}

}  // namespace zerobox
