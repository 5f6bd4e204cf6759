// SPDX-License-Identifier: Apache-2.0
#include "trainer/help.h"

#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "hwy/highway.h"
#include "ops/host/matmul.h"
#include "ops/view.h"
#include "trainer/build_info.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

constexpr int kHelpColumn = 28;

// `text` in lines that end before column kScreenWidth, each behind kHelpColumn blanks but the
// first.
std::string Wrapped(const std::string& text) {
  std::string wrapped;
  int column = kHelpColumn;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const int columns = Columns(std::string_view(word.data(), word.size()));
    if (column > kHelpColumn && column + 1 + columns > kScreenWidth) {
      absl::StrAppend(&wrapped, "\n", std::string(kHelpColumn, ' '));
      column = kHelpColumn;
    }
    if (column > kHelpColumn) wrapped += ' ', ++column;
    absl::StrAppend(&wrapped, word);
    column += columns;
  }
  return wrapped;
}

std::string DefaultOf(const FlagMeaning& meaning, const absl::CommandLineFlag& registered) {
  if (!meaning.default_text.empty()) return std::string(meaning.default_text);
  const std::string text = registered.DefaultValue();
  return text.empty() ? "none" : text;
}

std::string FlagHelp(const FlagInfo& flag, CommandMask command) {
  const absl::CommandLineFlag& registered = *absl::FindCommandLineFlag(View(flag.name));
  const FlagMeaning meaning = flag.MeaningIn(command);
  const std::string_view placeholder = meaning.placeholder;
  std::string name = absl::StrCat("  --", std::string(flag.name), placeholder.empty() ? "" : "=",
                                  std::string(placeholder));
  std::string text = meaning.help.empty() ? registered.Help() : std::string(meaning.help);
  if (!registered.IsOfType<bool>()) {
    absl::StrAppend(&text, " (default: ", DefaultOf(meaning, registered), ")");
  }
  const bool fits = Columns(name) < kHelpColumn;
  name = fits ? Left(name, kHelpColumn) : name + "\n" + std::string(kHelpColumn, ' ');
  return absl::StrCat(name, Wrapped(text), "\n");
}

}  // namespace

std::string CommandsHelp() {
  return absl::StrCat(
      "zerobox ", kVersion,
      "\nTrains a small GPT on every device of one machine, with every stage of ZeRO, and\n"
      "shows what ZeRO does while it does it.\n"
      "\n"
      "  zerobox train --data=FILE   trains a model; writes a run folder in runs/\n"
      "  zerobox compare --data=FILE trains with several stages of ZeRO, and compares\n"
      "  zerobox sample              lets the newest model write\n"
      "  zerobox report              writes a page about runs that are done\n"
      "  zerobox help [COMMAND]      this text, or the flags of a command\n"
      "  zerobox --version           version, commit, compiler and SIMD target\n"
      "\n"
      "A first run: four devices, everything shared between them (ZeRO-3).\n"
      "\n"
      "  zerobox train --data=book.txt --zero_stage=3 --devices=4\n"
      "  zerobox train --model=gpt2 --zero_stage=2 --devices=8 --dry_run\n"
      "\n"
      "Results go to stdout, messages and progress to stderr. Exit codes: 0 done,\n"
      "1 refused before the first step, 3 a worker failed or a file or stdout could not\n"
      "be written, 128+n stopped by signal n.\n");
}

std::string FlagsHelp(CommandMask command) {
  std::string text =
      command == kTrainCommand
          ? "zerobox train --data=FILE [--flag=value ...]\n"
            "Trains a GPT on the devices of this machine, with ZeRO stage 0 to 3.\n"
      : command == kSampleCommand ? "zerobox sample [--flag=value ...]\n"
                                    "Lets a trained model write text.\n"
      : command == kCompareCommand
          ? "zerobox compare --data=FILE [--zero_stages=0,1,2,3] [--flag=value ...]\n"
            "Trains the same steps with each stage, offload and way of checkpointing,\n"
            "and compares results, memory, traffic and speed. The first is what the\n"
            "others are compared to.\n"
          : "zerobox report [--runs=FOLDER,FOLDER...]\n"
            "Writes a page about one run, or about several runs side by side.\n";
  for (int topic = 0; topic <= static_cast<int>(Topic::kEvaluationAndSampling); ++topic) {
    std::string flags;
    for (const FlagInfo& flag : AllFlags()) {
      if (flag.topic == static_cast<Topic>(topic) && (flag.commands & command) != 0) {
        flags += FlagHelp(flag, command);
      }
    }
    if (flags.empty()) continue;
    absl::StrAppend(&text, "\n", std::string(Title(static_cast<Topic>(topic))), "\n", flags);
  }
  absl::StrAppend(&text,
                  "\nAny command\n"
                  "  --flagfile=FILE           Read flags from a file, one on each line;\n"
                  "                            lines that begin with # are comments. Of several\n"
                  "                            values the last one wins.\n"
                  "  --help                    This text.\n"
                  "  --version                 Version, commit, compiler, SIMD target, CUDA.\n"
                  "\nSizes are bytes, or have a unit: 512MiB, 8GiB, 25MB.\n");
  return text;
}

std::string VersionText() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  // The best target is the lowest bit.
  return absl::StrCat("zerobox ", kVersion, "\ncommit    ", kCommit, "\ncompiler  ", kCompiler,
                      "\nSIMD      ", hwy::TargetName(targets & -targets),
                      host::MultipliesBFloat16InPairs() ? ", AVX512_BF16" : "", "\nCUDA      ",
                      kCuda, "\n");
}

}  // namespace zerobox
