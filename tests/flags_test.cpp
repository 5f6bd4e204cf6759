// SPDX-License-Identifier: Apache-2.0
#include "trainer/flags.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/view.h"
#include "tests/process.h"
#include "trainer/command_line.h"
#include "trainer/help.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string ErrorOf(std::vector<std::string> arguments, CommandMask command = kTrainCommand) {
  const absl::FlagSaver saver;
  const absl::StatusOr<CommandLine> line = ParseArguments(command, arguments);
  return line.ok() ? "" : std::string(line.status().message());
}

const std::string& Folder() {
  static const TemporaryFolder folder;
  return folder.path();
}

std::string WriteTemporary(const std::string& name, const std::string& text) {
  const std::string path = Folder() + "/" + name;
  WriteFile(path, text);
  return path;
}

TEST(Bytes, HaveUnitsOrNone) {
  const auto value = [](std::string_view text) { return ParseBytes(text).value().value; };
  EXPECT_EQ(value("0"), 0);
  EXPECT_EQ(value("1000000"), 1000000);
  EXPECT_EQ(value("9223372036854775807"), 9223372036854775807);
  EXPECT_EQ(value("4KiB"), 4096);
  EXPECT_EQ(value("512MiB"), 536870912);
  EXPECT_EQ(value("8GiB"), 8589934592);
  EXPECT_EQ(value("1.5GiB"), 1610612736);
  EXPECT_EQ(value("25MB"), 25000000);
  EXPECT_EQ(value("2g"), 2147483648);
  EXPECT_EQ(value("3 MiB"), 3145728);
}

TEST(Bytes, RefuseWhatIsNoSize) {
  for (const char* text : {"", "MiB", "-1", "1.5", "12XB", "1e30", "nan", "inf", "1..5MiB", "0x10",
                           "9223372036854775808", "99999999999TiB", "5MiB5"}) {
    const absl::StatusOr<Bytes> bytes = ParseBytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("512MiB")) << text;
  }
}

TEST(Bytes, AreWrittenAsTheyAreRead) {
  for (const int64_t bytes : {0L, 1L, 1023L, 1024L, 26214400L, 1L << 30, (1L << 30) + 1}) {
    EXPECT_EQ(ParseBytes(AbslUnparseFlag(Bytes{bytes})).value().value, bytes);
  }
  EXPECT_EQ(AbslUnparseFlag(Bytes{26214400}), "25MiB");
}

TEST(Flags, AreReadWithEqualsSignAndWithout) {
  const absl::FlagSaver saver;
  const std::vector<std::string> arguments = {
      "--steps=7", "--lr", "0.25", "--dry_run", "-devices=3", "--bucket_bytes=1KiB", "--min_lr=-0"};
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, arguments);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(absl::GetFlag(FLAGS_steps), 7);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.25);
  EXPECT_TRUE(absl::GetFlag(FLAGS_dry_run));
  EXPECT_EQ(absl::GetFlag(FLAGS_devices), 3);
  EXPECT_EQ(absl::GetFlag(FLAGS_bucket_bytes).value, 1024);
  EXPECT_EQ(line->sources.at("steps"), "flag");
  EXPECT_FALSE(line->Given("seed"));
}

TEST(Flags, TakeTheLastOfSeveralValues) {
  const absl::FlagSaver saver;
  const std::vector<std::string> arguments = {"--steps=7", "--dry_run", "--steps=9", "--nodry_run"};
  ASSERT_TRUE(ParseArguments(kTrainCommand, arguments).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_steps), 9);
  EXPECT_FALSE(absl::GetFlag(FLAGS_dry_run));
}

TEST(Flags, KnowTheirFixedNamesAndDefaults) {
  const absl::FlagSaver saver;
  EXPECT_EQ(absl::GetFlag(FLAGS_device), "auto");
  EXPECT_EQ(absl::GetFlag(FLAGS_devices), 4);
  EXPECT_FALSE(absl::GetFlag(FLAGS_virtual));
  EXPECT_EQ(absl::GetFlag(FLAGS_collective_timeout), 600);
  EXPECT_EQ(absl::GetFlag(FLAGS_zero_stage), 0);
  EXPECT_EQ(absl::GetFlag(FLAGS_dtype), "fp32");
  EXPECT_FALSE(absl::GetFlag(FLAGS_tf32));
  EXPECT_EQ(absl::GetFlag(FLAGS_grad_accum_dtype), "auto");
  EXPECT_EQ(absl::GetFlag(FLAGS_activation_checkpointing), "none");
  EXPECT_EQ(absl::GetFlag(FLAGS_offload), "none");
  EXPECT_EQ(absl::GetFlag(FLAGS_logits_bytes).value, 67108864);
  EXPECT_EQ(absl::GetFlag(FLAGS_bucket_bytes).value, 26214400);
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "tiny");
  EXPECT_EQ(absl::GetFlag(FLAGS_dropout), 0);
  EXPECT_EQ(absl::GetFlag(FLAGS_micro_batch), 4);
  EXPECT_EQ(absl::GetFlag(FLAGS_grad_accum), 1);
  EXPECT_EQ(absl::GetFlag(FLAGS_steps), 400);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 1e-3);
  EXPECT_EQ(absl::GetFlag(FLAGS_min_lr), 1e-4);
  EXPECT_EQ(absl::GetFlag(FLAGS_weight_decay), 0.1);
  EXPECT_EQ(absl::GetFlag(FLAGS_beta1), 0.9);
  EXPECT_EQ(absl::GetFlag(FLAGS_beta2), 0.95);
  EXPECT_EQ(absl::GetFlag(FLAGS_eps), 1e-8);
  EXPECT_EQ(absl::GetFlag(FLAGS_grad_clip), 1.0);
  EXPECT_EQ(absl::GetFlag(FLAGS_seed), 1337u);
  EXPECT_EQ(absl::GetFlag(FLAGS_eval_interval), 100);
  EXPECT_EQ(absl::GetFlag(FLAGS_eval_batches), 20);
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_bytes), 300);
  EXPECT_FALSE(absl::GetFlag(FLAGS_dry_run));
  EXPECT_EQ(absl::GetFlag(FLAGS_trace), "auto");
  EXPECT_EQ(absl::GetFlag(FLAGS_run), "runs/latest");
  EXPECT_EQ(absl::GetFlag(FLAGS_runs), "runs/latest");
  EXPECT_EQ(absl::GetFlag(FLAGS_bytes), 300);
  EXPECT_EQ(absl::GetFlag(FLAGS_temperature), 0.8);
  EXPECT_EQ(absl::GetFlag(FLAGS_top_k), 0);
  std::vector<std::string> names;
  for (const FlagInfo& flag : AllFlags()) names.emplace_back(flag.name);
  EXPECT_THAT(names,
              testing::UnorderedElementsAre(
                  "data", "val_data", "out", "trace", "runs", "device", "devices", "threads",
                  "device_memory", "zero_stage", "dtype", "tf32", "grad_accum_dtype",
                  "activation_checkpointing", "offload", "logits_bytes", "bucket_bytes", "model",
                  "n_layer", "n_head", "n_embd", "seq_len", "vocab_size", "dropout", "micro_batch",
                  "grad_accum", "steps", "lr", "min_lr", "warmup", "weight_decay", "beta1", "beta2",
                  "eps", "grad_clip", "seed", "eval_interval", "eval_batches", "sample_bytes",
                  "dry_run", "run", "prompt", "bytes", "temperature", "top_k", "virtual",
                  "collective_timeout", "zero_stages", "offloads", "activation_checkpointings"));
}

TEST(Flags, RefuseAbsurdNumbersEverywhere) {
  int refused = 0;
  for (const FlagInfo& flag : AllFlags()) {
    const absl::CommandLineFlag& registered = *absl::FindCommandLineFlag(View(flag.name));
    if (registered.IsOfType<std::string>() || registered.IsOfType<bool>()) continue;
    for (const char* value :
         {"nan", "inf", "-inf", "-1", "1e30", "", "abc", "1,5", "99999999999999999999999999"}) {
      const std::string error =
          ErrorOf({"--" + std::string(flag.name) + "=" + value},
                  (flag.commands & kTrainCommand) != 0 ? kTrainCommand : kSampleCommand);
      EXPECT_THAT(error, HasSubstr("--" + std::string(flag.name) + "="));
      EXPECT_THAT(error, HasSubstr("wanted a"));
      EXPECT_THAT(error, HasSubstr("found '" + std::string(value) + "'"));
      EXPECT_THAT(error, HasSubstr("leave the flag out"));
      ++refused;
    }
  }
  EXPECT_EQ(refused, 31 * 9);
}

TEST(Flags, RefuseZeroWhereItMeansNothing) {
  for (const char* name : {"devices", "threads", "device_memory", "bucket_bytes", "logits_bytes",
                           "n_layer", "n_head", "n_embd", "seq_len", "vocab_size", "micro_batch",
                           "grad_accum", "steps", "lr", "eps", "eval_batches"}) {
    EXPECT_THAT(ErrorOf({std::string("--") + name + "=0"}), HasSubstr("wanted a")) << name;
  }
  for (const char* name :
       {"zero_stage", "dropout", "min_lr", "warmup", "weight_decay", "beta1", "beta2", "grad_clip",
        "seed", "eval_interval", "sample_bytes", "collective_timeout"}) {
    EXPECT_EQ(ErrorOf({std::string("--") + name + "=0"}), "") << name;
  }
}

TEST(Flags, RefuseAnEpsThatIsZeroInFp32) {
  EXPECT_THAT(ErrorOf({"--eps=1e-50"}), HasSubstr("wanted a number from 1e-30 to 1"));
  EXPECT_EQ(ErrorOf({"--eps=1e-30"}), "");
}

TEST(Flags, SayWhatTheyWanted) {
  EXPECT_EQ(ErrorOf({"--devices=65"}),
            "--devices=65: wanted a whole number from 1 to 64, found '65'; leave the flag out for "
            "its default (4; with GPUs, and no --virtual, all of them)");
  EXPECT_THAT(ErrorOf({"--beta1=1"}), HasSubstr("wanted a number from 0 to below 1"));
  EXPECT_THAT(ErrorOf({"--lr=0"}), HasSubstr("wanted a number above 0 up to 1000"));
  EXPECT_THAT(ErrorOf({"--device_memory=5XB"}), HasSubstr("512MiB"));
  EXPECT_EQ(
      ErrorOf({"--collective_timeout=-1"}),
      "--collective_timeout=-1: wanted a whole number from 0 to 1000000000, found '-1'; leave "
      "the flag out for its default (600)");
  EXPECT_THAT(ErrorOf({"--dry_run=maybe"}), HasSubstr("wanted true or false"));
  EXPECT_THAT(ErrorOf({"--n_layer=0"}), HasSubstr("its default (from --model)"));
}

TEST(Flags, ThatAreUnknownShowTheNearestNames) {
  EXPECT_THAT(ErrorOf({"--zero_sage=3"}), HasSubstr("did you mean --zero_stage?"));
  EXPECT_THAT(ErrorOf({"--zero-stage=3"}), HasSubstr("did you mean --zero_stage?"));
  EXPECT_THAT(ErrorOf({"--step=3"}), HasSubstr("did you mean --steps"));
  EXPECT_THAT(ErrorOf({"--xyzzy"}), testing::AllOf(HasSubstr("there is no flag --xyzzy"),
                                                   Not(HasSubstr("did you mean"))));
  EXPECT_THAT(NearestFlags("evalinterval", kTrainCommand), ElementsAre("eval_interval"));
  EXPECT_THAT(NearestFlags("memory", kTrainCommand), ElementsAre("device_memory"));
  EXPECT_THAT(NearestFlags("temperature", kTrainCommand), IsEmpty());
}

TEST(Flags, OfAnotherCommandAreRefused) {
  EXPECT_THAT(ErrorOf({"--temperature=1"}), HasSubstr("is a flag of sample, not of train"));
  EXPECT_THAT(ErrorOf({"--steps=1"}, kSampleCommand), HasSubstr("is a flag of train"));
  EXPECT_EQ(ErrorOf({"--seed=1"}, kSampleCommand), "");
}

TEST(Flags, DoNotSwallowTheNextFlag) {
  EXPECT_THAT(ErrorOf({"--data", "--steps=3"}),
              HasSubstr("--data has no value: wanted --data=FILE"));
  EXPECT_THAT(ErrorOf({"--data=--steps"}), HasSubstr("looks like a flag"));
  EXPECT_THAT(ErrorOf({"--steps"}), HasSubstr("--steps has no value"));
}

TEST(Flags, AreAllThatACommandTakes) {
  EXPECT_THAT(ErrorOf({"book.txt"}), HasSubstr("'book.txt' is no flag"));
  EXPECT_THAT(ErrorOf({"--steps=1", "2"}), HasSubstr("'2' is no flag"));
  EXPECT_THAT(ErrorOf({"--"}), HasSubstr("is no flag"));
  EXPECT_THAT(ErrorOf({""}), HasSubstr("is no flag"));
}

TEST(FlagFile, SetsFlagsAndSaysSo) {
  const absl::FlagSaver saver;
  const std::string path =
      WriteTemporary("good.flags", "# a comment\n\n  --steps=11\n--data=a b.txt\n");
  const std::vector<std::string> arguments = {"--steps=3", "--flagfile=" + path, "--devices=2"};
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, arguments);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(absl::GetFlag(FLAGS_steps), 11);
  EXPECT_EQ(absl::GetFlag(FLAGS_data), "a b.txt");
  EXPECT_EQ(line->sources.at("steps"), "flagfile");
  EXPECT_EQ(line->sources.at("devices"), "flag");
}

TEST(FlagFile, IsRefusedWithItsLine) {
  EXPECT_THAT(ErrorOf({"--flagfile=" + WriteTemporary("bad.flags", "--steps=5\n--stepz=4\n")}),
              testing::AllOf(HasSubstr("bad.flags, line 2: "), HasSubstr("--steps?")));
  EXPECT_THAT(ErrorOf({"--flagfile=/nowhere/x"}), HasSubstr("nothing there"));
  EXPECT_THAT(ErrorOf({"--flagfile=" + Folder()}), HasSubstr("something else"));
  const std::string own = Folder() + "/own.flags";
  EXPECT_THAT(ErrorOf({"--flagfile=" + WriteTemporary("own.flags", "--flagfile=" + own + "\n")}),
              HasSubstr("include itself"));
}

TEST(FlagFile, IsRefusedWhereAFewNameEachOtherOverAndOver) {
  std::string next = WriteTemporary("0.flags", "--steps=11\n");
  for (int file = 1; file < 8; ++file) {
    std::string text;
    for (int line = 0; line < 30; ++line) text += "--flagfile=" + next + "\n";
    next = WriteTemporary(std::to_string(file) + ".flags", text);
  }
  EXPECT_THAT(ErrorOf({"--flagfile=" + next}), HasSubstr("at most 1000 flag files"));
}

TEST(Help, ShowsEveryFlagOfItsCommandAndNoOther) {
  const std::string train = FlagsHelp(kTrainCommand), sample = FlagsHelp(kSampleCommand);
  const std::string report = FlagsHelp(kReportCommand);
  for (const FlagInfo& flag : AllFlags()) {
    const std::string name =
        "  --" + std::string(flag.name) + (flag.placeholder.empty() ? " " : "=");
    EXPECT_EQ(train.find(name) != std::string::npos, (flag.commands & kTrainCommand) != 0) << name;
    EXPECT_EQ(sample.find(name) != std::string::npos, (flag.commands & kSampleCommand) != 0)
        << name;
    EXPECT_EQ(report.find(name) != std::string::npos, (flag.commands & kReportCommand) != 0)
        << name;
  }
  for (const char* topic :
       {"\nData and output\n", "\nDevices and memory\n", "\nZeRO\n", "\nPrecision and memory\n",
        "\nModel\n", "\nBatch and schedule\n", "\nOptimizer\n", "\nEvaluation and sampling\n"}) {
    EXPECT_THAT(train, HasSubstr(topic));
  }
}

TEST(Help, SaysOfEachCommandWhatItsOutIs) {
  EXPECT_THAT(FlagsHelp(kTrainCommand), HasSubstr("  --out=FOLDER "));
  EXPECT_THAT(FlagsHelp(kReportCommand), HasSubstr("  --out=FILE "));
  EXPECT_THAT(ErrorOf({"--out"}), HasSubstr("wanted --out=FOLDER"));
  EXPECT_THAT(ErrorOf({"--out"}, kReportCommand), HasSubstr("wanted --out=FILE"));
}

TEST(Help, SaysWhoDecidesWhichGpusThereAre) {
  const std::string train = FlagsHelp(kTrainCommand);
  const auto of = [&](const std::string& flag) {
    const size_t begin = train.find("  --" + flag);
    return train.substr(begin, train.find("\n  --", begin) - begin);
  };
  EXPECT_THAT(of("device="), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(of("devices="), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(Help, FitsAScreen) {
  for (const std::string& text : {CommandsHelp(), FlagsHelp(kTrainCommand),
                                  FlagsHelp(kSampleCommand), FlagsHelp(kReportCommand)}) {
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      EXPECT_LE(Columns(text.substr(begin, end - begin)), 80) << text.substr(begin, end - begin);
    }
  }
}

TEST(EditDistance, CountsSwapsAsOne) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("steps", "steps"), 0);
  EXPECT_EQ(EditDistance("setps", "steps"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

}  // namespace
}  // namespace zerobox
