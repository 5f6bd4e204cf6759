// SPDX-License-Identifier: Apache-2.0
//
// A command line, an argument a line behind the command's name; and what it resolves to, on a
// machine without GPUs and on one with two. What is accepted: every number is in its flag's range;
// a flag file of the same flags says the same; and the settings, as config.json has them, given as
// flags are the same settings again.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ops/view.h"
#include "tests/fuzz/target.h"
#include "trainer/combinations.h"
#include "trainer/command_line.h"
#include "trainer/flags.h"
#include "trainer/resolve.h"

namespace zerobox::fuzz {
namespace {

using Arguments = std::vector<std::string>;

absl::CommandLineFlag& Registered(const FlagInfo& flag) {
  return *absl::FindCommandLineFlag(View(flag.name));
}

// Into a registry where all flags have their defaults.
absl::StatusOr<CommandLine> Parse(CommandMask command, const Arguments& arguments) {
  for (const FlagInfo& flag : AllFlags()) {
    std::string error;
    Expect(Registered(flag).ParseFrom(Registered(flag).DefaultValue(), &error),
           "a default is a value");
  }
  return ParseArguments(command, arguments);
}

std::map<std::string_view, std::string> Values() {
  std::map<std::string_view, std::string> values;
  for (const FlagInfo& flag : AllFlags()) values[flag.name] = Registered(flag).CurrentValue();
  return values;
}

void ExpectInRange(const std::vector<ResolvedFlag>& flags) {
  for (const ResolvedFlag& flag : flags) {
    const NumberRange& range = FindFlag(flag.name)->range;
    if (const auto* number = std::get_if<int64_t>(&flag.value)) {
      Expect(range.Contains(static_cast<double>(*number)), "a whole number is in its range");
    }
    if (const auto* number = std::get_if<double>(&flag.value)) {
      Expect(range.Contains(*number), "a number is in its range");
    }
  }
}

void ExpectSameFlags(const std::vector<ResolvedFlag>& a, const std::vector<ResolvedFlag>& b) {
  Expect(std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ResolvedFlag& x, const ResolvedFlag& y) {
                      return x.name == y.name && x.value == y.value;
                    }),
         "settings given as flags are the same settings");
}

Arguments AsArguments(const std::vector<ResolvedFlag>& flags) {
  Arguments arguments;
  for (const ResolvedFlag& flag : flags) {
    // What these are when they are left out; given as empty they are refused.
    const bool may_be_left_out = flag.name == "out" || flag.name == "prompt";
    if (may_be_left_out && Text(flag.value).empty()) continue;
    arguments.push_back(absl::StrCat("--", flag.name, "=", Text(flag.value)));
  }
  return arguments;
}

// `resolve` is ResolveTrain or ResolveSample.
template <typename Resolve>
void CheckResolved(CommandMask command, const Arguments& arguments, const Machine& machine,
                   Resolve resolve) {
  const auto resolved = resolve(Parse(command, arguments).value(), machine);
  if (!resolved.ok()) return ExpectRefused(resolved.status());
  ExpectInRange(resolved->flags);
  const absl::StatusOr<CommandLine> line = Parse(command, AsArguments(resolved->flags));
  Expect(line.ok(), "settings can be given as flags");
  const auto again = resolve(*line, machine);
  Expect(again.ok(), "settings given as flags are accepted");
  ExpectSameFlags(again->flags, resolved->flags);
}

void CheckCombinations(const Arguments& arguments, const Machine& machine) {
  const CommandLine line = Parse(kCompareCommand, arguments).value();
  const auto before = Values();
  const absl::StatusOr<std::vector<Combination>> runs = ResolveCombinations(line, machine);
  Expect(Values() == before, "the registry is left as it was");
  if (!runs.ok()) return ExpectRefused(runs.status());
  std::set<std::string> names;
  for (const Combination& run : *runs) {
    Expect(names.insert(run.name).second, "each run has a name of its own");
    ExpectInRange(run.resolved.flags);
  }
  Expect(!names.empty() && names.size() <= 4 * 4 * 3, "as many runs as values");
}

void CheckFlagFile(CommandMask command, const Arguments& arguments,
                   const std::map<std::string_view, std::string>& values) {
  for (const std::string& argument : arguments) {
    const bool a_line = argument.starts_with("--") && absl::StrContains(argument, "=") &&
                        absl::StripAsciiWhitespace(argument) == argument;
    if (!a_line) return;
  }
  const MemoryFile file(absl::StrJoin(arguments, "\n"));
  Expect(Parse(command, {"--flagfile=" + file.path()}).ok(), "a flag file has the same flags");
  Expect(Values() == values, "a flag file says the same");
}

}  // namespace

void Check(std::string_view input) {
  Arguments arguments = absl::StrSplit(View(input), '\n');
  const CommandMask command = CommandByName(arguments.front());
  arguments.erase(arguments.begin());
  // Another file than that of CheckFlagFile is not this input's.
  if (command == kNoCommand || absl::StrContains(absl::StrJoin(arguments, " "), "flagfile")) return;
  const absl::StatusOr<CommandLine> line = Parse(command, arguments);
  if (!line.ok()) return ExpectRefused(line.status());
  CheckFlagFile(command, arguments, Values());
  if (line->help || line->version) return;

  const Machine without = {.cores = 6, .available_memory = int64_t{8} << 30};
  Machine with_gpus = without;
  with_gpus.count_gpus = [] { return 2; };
  with_gpus.free_gpu_memory = [](int) { return int64_t{70} << 30; };
  with_gpus.gpu_workspace = [](const CudaOpsSizes&) { return int64_t{1} << 20; };
  with_gpus.check_nccl = [] { return absl::OkStatus(); };
  with_gpus.links = [](int) { return GpuLinks{}; };
  for (const Machine& machine : {without, with_gpus}) {
    if (command == kTrainCommand) CheckResolved(command, arguments, machine, ResolveTrain);
    if (command == kSampleCommand) CheckResolved(command, arguments, machine, ResolveSample);
    if (command == kCompareCommand) CheckCombinations(arguments, machine);
  }
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const char* line :
       {"train --data=a --zero_stage=3 --devices=2 --nodry_run --lr 1e-3",
        "train --dry_run --model=gpt2 --device=cuda --device_memory=72GiB --dtype=bf16",
        "train --data=a --offload=activations --activation_checkpointing=full --trace=7",
        "train --data=a --micro_batch=65536 --seq_len=65536 --logits_bytes=1KiB",
        "train --data=a --virtual --tf32 --grad_accum=3 --grad_accum_dtype=bf16",
        "sample --run=a --prompt=b --bytes=3 --temperature=0 --top_k=2",
        "sample --run=a --bytes=30", "report --runs=a,b --out=c",
        "compare --data=a --zero_stages=0,3 --offloads=none,optimizer+activations",
        "compare --data=a --zero_stages=2 --activation_checkpointings=selective,full",
        "train --help"}) {
    seeds.push_back(absl::StrReplaceAll(line, {{" ", "\n"}}));
  }
  return seeds;
}

std::vector<std::string> Words() {
  std::vector<std::string> words = {"\n--",   "=",         "true",        "9223372036854775807",
                                    "-1",     "nan",       "inf",         "1e308",
                                    "0x10",   "1e-30",     "optimizer",   "activations",
                                    "none",   "selective", "full",        "bf16",
                                    "fp32",   "cuda",      "host",        "auto",
                                    "0.5GiB", "1000TB",    "gpt2-medium", "65536"};
  for (const FlagInfo& flag : AllFlags())
    words.push_back(absl::StrCat("\n--", std::string(flag.name)));
  return words;
}

}  // namespace zerobox::fuzz
