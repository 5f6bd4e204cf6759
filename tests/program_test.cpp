// SPDX-License-Identifier: Apache-2.0
//
// Runs the built program: what it refuses, and how it says so.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Outcome {
  int code = -1;  // 128+n: killed by signal n
  std::string out, err;
};

// Each test has a folder of its own, in which the program runs.
class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(ProgramPath())) << ProgramPath() << " is not built";
    std::string pattern = testing::TempDir() + "/program_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    Write("book.txt", std::string(20000, 'b'));
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  // Starts a run of many steps and returns its process once the first step is done.
  pid_t StartLongRun(const std::vector<std::string>& flags) {
    std::array<int, 2> ends;
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(open("/dev/null", O_WRONLY), 1);
      dup2(ends[1], 2);
      Execute(flags);
    }
    close(ends[1]);
    errors_ = ends[0];
    std::string said;
    char c = 0;
    while (said.find("step ") == std::string::npos && read(errors_, &c, 1) == 1) said += c;
    EXPECT_THAT(said, testing::EndsWith("step "));
    return child;
  }
  // The exit code; the rest of what the process says is read, so that it cannot block.
  int WaitFor(pid_t child) {
    std::array<char, 4096> text;
    while (read(errors_, text.data(), text.size()) > 0) continue;
    close(errors_);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  [[noreturn]] void Execute(const std::vector<std::string>& arguments) {
    if (chdir(folder_.c_str()) != 0) _exit(126);
    std::string program = ProgramPath();
    std::vector<std::string> copies = arguments;
    std::vector<char*> argv = {program.data()};
    for (std::string& argument : copies) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(127);
  }

  // Output goes to files outside the folder, so that the folder shows what the program wrote.
  Outcome Run(const std::vector<std::string>& arguments) {
    const std::string out = folder_.string() + ".out";
    Outcome outcome = RunInto(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), arguments);
    outcome.out = Contents(out);
    fs::remove(out);
    return outcome;
  }
  // With a descriptor, which is closed, as stdout.
  Outcome RunInto(int out, const std::vector<std::string>& arguments) {
    const std::string err = folder_.string() + ".err";
    const pid_t child = fork();
    if (child == 0) {
      dup2(out, 1);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      Execute(arguments);
    }
    close(out);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    Outcome outcome{.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                    .err = Contents(err)};
    fs::remove(err);
    return outcome;
  }

  // Every path below the folder, with the contents of files.
  std::vector<std::string> Snapshot() {
    std::vector<std::string> entries;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      entries.push_back(entry.path().string() + "\n" +
                        (entry.is_regular_file() ? Contents(entry.path()) : ""));
    }
    std::sort(entries.begin(), entries.end());
    return entries;
  }

  // Refused: exit code 1, one message that starts with the program's name and holds all `parts`,
  // nothing on stdout, and the folder as it was.
  void ExpectRefused(const std::vector<std::string>& arguments,
                     const std::vector<std::string>& parts) {
    std::string command = "zerobox";
    for (const std::string& argument : arguments) command += " " + argument;
    SCOPED_TRACE(command);
    const std::vector<std::string> before = Snapshot();
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, testing::StartsWith("zerobox: "));
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_EQ(Snapshot(), before);
  }

  fs::path folder_;
  int errors_ = -1;  // stderr of a long run
};

std::vector<std::string> Train(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"train", "--data=book.txt"});
  return flags;
}

TEST_F(ProgramTest, RefusesCommandsThatItDoesNotKnow) {
  ExpectRefused({}, {"wanted a command"});
  ExpectRefused({"trian"}, {"found 'trian'", "did you mean train?"});
  ExpectRefused({"--steps=3"}, {"wanted a command first"});
  ExpectRefused({"help", "me"}, {"found 'me'"});
}

TEST_F(ProgramTest, RefusesBadNumbersInEveryFlag) {
  for (const char* flag :
       {"--devices",      "--threads", "--device_memory", "--zero_stage",    "--bucket_bytes",
        "--logits_bytes", "--n_layer", "--n_head",        "--n_embd",        "--seq_len",
        "--vocab_size",   "--dropout", "--micro_batch",   "--grad_accum",    "--steps",
        "--lr",           "--min_lr",  "--warmup",        "--weight_decay",  "--beta1",
        "--beta2",        "--eps",     "--grad_clip",     "--eval_interval", "--eval_batches",
        "--sample_bytes"}) {
    for (const char* value : {"nan", "1e30", "-1", "9000000000000000000000"}) {
      ExpectRefused(Train({std::string(flag) + "=" + value}), {flag, "wanted", value});
    }
  }
}

TEST_F(ProgramTest, RefusesFlagsThatAreNoneOfItsOwn) {
  ExpectRefused(Train({"--zero_sage=1"}), {"no flag --zero_sage", "--zero_stage"});
  ExpectRefused(Train({"--top_k=1"}), {"flag of sample"});
  ExpectRefused({"sample", "--steps=1"}, {"flag of train"});
  ExpectRefused(Train({"more"}), {"'more' is no flag"});
  ExpectRefused(Train({"--out", "--steps=1"}), {"--out has no value"});
  ExpectRefused(Train({"--out=--steps"}), {"looks like a flag"});
  ExpectRefused(Train({"--flagfile=none"}), {"--flagfile=none", "nothing there"});
}

TEST_F(ProgramTest, RefusesSettingsThatDoNotGoTogether) {
  ExpectRefused(Train({"--n_embd=129"}), {"--n_embd=129", "--n_head=4"});
  ExpectRefused(Train({"--model=gpt2", "--seq_len=1025"}), {"1025", "1024"});
  ExpectRefused(Train({"--model=gpt9"}), {"gpt9", "gpt2-xl"});
  ExpectRefused(Train({"--device=cuda"}), {"no CUDA devices", "--device=host"});
  ExpectRefused(Train({"--dtype=fp16"}), {"fp32 or bf16", "fp16"});
  ExpectRefused(Train({"--grad_accum_dtype=bf16"}), {"--grad_accum_dtype=bf16", "--dtype=fp32"});
  ExpectRefused(Train({"--activation_checkpointing=all"}), {"selective", "'all'"});
  ExpectRefused(Train({"--offload=optimizer,optimizer"}), {"each once"});
  ExpectRefused(Train({"--offload=activations"}),
                {"--offload=activations", "--activation_checkpointing"});
  ExpectRefused(Train({"--lr=1e-3", "--min_lr=1"}), {"--min_lr=1", "--lr=0.001"});
  ExpectRefused(Train({"--steps=5", "--warmup=6"}), {"--warmup=6", "--steps=5"});
  ExpectRefused(
      Train({"--n_layer=1024", "--n_embd=65536", "--micro_batch=65536", "--seq_len=65536"}),
      {"make some of them smaller"});
}

TEST_F(ProgramTest, RefusesBadData) {
  Write("empty.txt", "");
  Write("short.txt", "too short");
  Write("small.txt", std::string(600, 's'));
  Write("high.txt", std::string(20000, '\xf0'));
  fs::create_directory(folder_ / "folder");
  ExpectRefused({"train"}, {"--data is missing"});
  ExpectRefused({"train", "--data=none.txt"}, {"there is no file none.txt", "name one"});
  ExpectRefused({"train", "--data=empty.txt"}, {"empty.txt is empty", "name a file with text"});
  ExpectRefused({"train", "--data=short.txt"},
                {"short.txt holds 9 tokens", "a sequence takes 128", "lower --seq_len or name"});
  ExpectRefused({"train", "--data=folder"}, {"folder is a directory", "name a file in it"});
  ExpectRefused({"train", "--data=book.txt/page"},
                {"cannot find book.txt/page", "Not a directory", "wanted a file", "name another"});
  ExpectRefused({"train", "--data=*.none"}, {"no file matches *.none", "look for a mistake"});
  ExpectRefused(Train({"--val_data=none.txt"}), {"there is no file none.txt", "name one"});
  ExpectRefused({"train", "--data=small.txt"},
                {"small.txt", "4 micro_batch x 1 grad_accum x 4 devices = 16", "give more data"});
  ExpectRefused({"train", "--data=high.txt", "--vocab_size=128"},
                {"high.txt: byte 240 at position 0", "raise --vocab_size above 240"});
}

// llm.c's token file: 256 int32 (magic, version, count), then uint16 tokens.
std::string TokenFile(int32_t magic, int32_t version, int32_t count, size_t bytes_behind) {
  std::string text(1024 + bytes_behind, '\0');
  const std::array<int32_t, 3> header = {magic, version, count};
  std::copy_n(reinterpret_cast<const char*>(header.data()), sizeof(header), text.begin());
  return text;
}

TEST_F(ProgramTest, RefusesBadTokenFiles) {
  Write("magic.bin", TokenFile(20240521, 1, 5000, 10000));
  Write("version.bin", TokenFile(20240520, 2, 5000, 10000));
  Write("beyond.bin", TokenFile(20240520, 1, 5001, 10000));
  Write("negative.bin", TokenFile(20240520, 1, -1, 10000));
  Write("odd.bin", TokenFile(20240520, 1, 5000, 10001));
  Write("big.bin", TokenFile(20240520, 1, 5000, 10000).replace(2000, 2, "\xff\xff"));
  ExpectRefused({"train", "--data=magic.bin"},
                {"magic.bin", "20240521 where 20240520 is wanted", "write it again"});
  ExpectRefused({"train", "--data=version.bin"},
                {"version.bin", "2 where 1 is wanted", "write it again"});
  ExpectRefused({"train", "--data=beyond.bin"},
                {"beyond.bin", "counts 5001 tokens, wanted the 5000", "write it again"});
  ExpectRefused({"train", "--data=negative.bin"},
                {"negative.bin", "counts -1 tokens, wanted the 5000", "write it again"});
  ExpectRefused({"train", "--data=odd.bin"},
                {"odd.bin", "an odd number of bytes, 10001, where 2 a token", "write it again"});
  ExpectRefused({"train", "--data=big.bin"},
                {"big.bin: token 65535 at position 488", "raise --vocab_size above 65535"});
}

TEST_F(ProgramTest, OverwritesNothing) {
  Write("full/notes.txt", "keep me");
  ExpectRefused(Train({"--out=full"}), {"--out=full", "absent or empty"});
  ExpectRefused(Train({"--out=book.txt"}), {"--out=book.txt", "found a file"});
  ExpectRefused(Train({"--out=book.txt/below"}), {"on the way"});
  ExpectRefused(Train({"--out=/proc/zerobox"}), {"--out=/proc/zerobox"});
}

TEST_F(ProgramTest, KeepsItsFilesApartFromStandardStreamsThatAreClosed) {
  const std::string command = "cd '" + folder_.string() + "' && '" + ProgramPath() +
                              "' train --data=book.txt --out=closed --steps=2 --n_layer=1 "
                              "--eval_interval=0 --sample_bytes=0 <&- >&- 2>&-";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::istringstream lines(Contents(folder_ / "closed/metrics.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(lines, line); ++steps) {
    EXPECT_TRUE(line.starts_with("{\"step\":") && line.ends_with("}")) << line;
  }
  EXPECT_EQ(steps, 2);
}

// Behind a command, for a run of a moment.
std::vector<std::string> Short(std::vector<std::string> arguments) {
  for (const char* flag : {"--data=book.txt", "--device=host", "--steps=2", "--n_layer=1",
                           "--devices=1", "--eval_interval=0"}) {
    arguments.emplace_back(flag);
  }
  return arguments;
}

TEST_F(ProgramTest, SaysThatStdoutCannotBeWrittenAndWritesItsFiles) {
  const struct {
    std::vector<std::string> arguments;
    int code;
  } cases[] = {{{"help"}, 1},
               {{"--version"}, 1},
               {Short({"train", "--dry_run"}), 1},
               {Short({"train", "--out=run", "--sample_bytes=0"}), 3},
               {{"sample", "--run=run", "--bytes=1"}, 1},
               {Short({"compare", "--out=runs", "--zero_stages=0"}), 3}};
  for (const auto& [arguments, code] : cases) {
    const Outcome outcome = RunInto(open("/dev/full", O_WRONLY), arguments);
    EXPECT_EQ(outcome.code, code) << arguments[0];
    EXPECT_THAT(outcome.err,
                HasSubstr("zerobox: stdout cannot be written: No space left on device\n"));
    EXPECT_EQ(outcome.err.find("/log.txt\n") != std::string::npos, code == 3) << outcome.err;
  }
  for (const char* name : {"run/model.safetensors", "run/report.html", "runs/compare.json",
                           "runs/report.html", "runs/zero0/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder_ / name)) << name;
  }
  EXPECT_THAT(Contents(folder_ / "run/log.txt"), HasSubstr("Files in run"));
  EXPECT_THAT(Contents(folder_ / "runs/log.txt"), HasSubstr("Files in runs"));
}

TEST_F(ProgramTest, TrainsToItsEndWhereTheReaderOfStdoutWentAway) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  close(ends[0]);
  const Outcome outcome = RunInto(ends[1], Short({"train", "--out=run", "--sample_bytes=0"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("zerobox: ")));
  EXPECT_TRUE(fs::exists(folder_ / "run/model.safetensors"));
  EXPECT_THAT(Contents(folder_ / "run/log.txt"), HasSubstr("Files in run"));
}

TEST_F(ProgramTest, RefusesAModelThatDoesNotFitAndSaysWhatWould) {
  const std::vector<std::string> before = Snapshot();
  const Outcome outcome = Run(Train({"--device_memory=1MiB", "--devices=2", "--micro_batch=2"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--device_memory is 1.00 MiB (1,048,576 bytes)"));
  EXPECT_THAT(outcome.err, HasSubstr("makes it fit; the least is"));
  EXPECT_THAT(outcome.err, HasSubstr("--micro_batch=1 --grad_accum=2"));
  EXPECT_THAT(outcome.out, HasSubstr("optimizer states"));
  EXPECT_EQ(Snapshot(), before);
}

TEST_F(ProgramTest, PlansAModelFarBeyondTheMachineWithoutTakingMemory) {
  // 1.6 billion parameters on 8 devices: its plan is shown, and refused.
  const Outcome outcome =
      Run({"train", "--dry_run", "--model=gpt2-xl", "--devices=8", "--device_memory=1GiB"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("1,557,611,200"));
  EXPECT_THAT(outcome.err, HasSubstr("the run does not fit"));
}

TEST_F(ProgramTest, DryRunShowsThePapersBytesForGpt2InMixedPrecision) {
  // 16, 4 + 12/8, 2 + 14/8, 16/8 bytes for each of 124,439,808 parameters, and for 3,328 more.
  const struct {
    const char *stage, *bytes;
  } cases[] = {{"--zero_stage=0", "1,991,090,176"},
               {"--zero_stage=1", "684,437,248"},
               {"--zero_stage=2", "466,661,760"},
               {"--zero_stage=3", "248,886,272"}};
  for (const auto& [stage, bytes] : cases) {
    const Outcome outcome = Run({"train", "--dry_run", "--model=gpt2", "--dtype=bf16",
                                 "--devices=8", "--micro_batch=1", "--device_memory=80GiB", stage});
    EXPECT_THAT(outcome.out, HasSubstr("parameters (bf16)"));
    EXPECT_THAT(outcome.out, HasSubstr("gradients (bf16)"));
    EXPECT_THAT(outcome.out, HasSubstr("optimizer states (fp32)"));
    const std::string row = std::string("▸ ZeRO-") + stage[13];
    ASSERT_THAT(outcome.out, HasSubstr(row));
    EXPECT_THAT(outcome.out.substr(outcome.out.find(row), 45), HasSubstr(bytes));
    EXPECT_THAT(outcome.out, testing::Not(HasSubstr("≠")));
    EXPECT_THAT(outcome.out, testing::Not(HasSubstr("unexplained")));
  }
}

TEST_F(ProgramTest, DryRunShowsEverythingAndWritesNothing) {
  const std::vector<std::string> before = Snapshot();
  const Outcome outcome =
      Run(Train({"--dry_run", "--zero_stage=3", "--device_memory=512MiB", "--steps=10"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  for (const char* part : {"842,496", "4 micro_batch × 1 grad_accum × 4 devices = 16 sequences",
                           "zero_stage", "block 3", "not needed", "Memory of each of 4 devices",
                           "all-gather", "paper", "nothing was written"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_EQ(Snapshot(), before);
}

const std::vector<std::string> kLongRun = {
    "train",      "--data=book.txt", "--out=out",    "--steps=1000000", "--n_layer=1",
    "--n_head=1", "--n_embd=16",     "--seq_len=16", "--devices=2",     "--threads=2"};

TEST_F(ProgramTest, FinishesItsStepAndWritesEverythingWhenItIsStopped) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child = StartLongRun(kLongRun);
    kill(child, signal);
    EXPECT_EQ(WaitFor(child), 128 + signal);
    for (const char* name :
         {"model.safetensors", "memory.json", "communication.json", "config.json", "metrics.jsonl",
          "log.txt", "report.json", "report.html", "trace.json"}) {
      EXPECT_TRUE(fs::exists(folder_ / "out" / name)) << name;
    }
    EXPECT_THAT(Contents(folder_ / "out" / "log.txt"), HasSubstr("everything up to it is written"));
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(ProgramTest, EndsAtOnceWhenItIsStoppedTwice) {
  const pid_t child = StartLongRun(kLongRun);
  // Both are there before the program can act on the first.
  kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  kill(child, SIGINT);
  kill(child, SIGTERM);
  kill(child, SIGCONT);
  EXPECT_THAT(WaitFor(child), testing::AnyOf(128 + SIGINT, 128 + SIGTERM));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "memory.json"));
}

TEST_F(ProgramTest, HelpsAndSaysItsVersion) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"help"},
                                             {"--help"},
                                             {"help", "train"},
                                             {"train", "--help"},
                                             {"help", "sample"},
                                             {"help", "compare"}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("zerobox"));
    EXPECT_THAT(outcome.err, IsEmpty());
  }
  EXPECT_EQ(Run({"train", "--help"}).out, Run({"help", "train"}).out);
  EXPECT_EQ(Run({"compare", "--help"}).out, Run({"help", "compare"}).out);
  for (const char* part : {"zerobox 0.", "commit ", "compiler ", "SIMD ", "CUDA "}) {
    EXPECT_THAT(Run({"--version"}).out, HasSubstr(part));
  }
}

TEST_F(ProgramTest, SampleWantsARunThatExists) {
  ExpectRefused({"sample"}, {"--run=runs/latest", "nothing there", "train first"});
  fs::create_directory(folder_ / "empty");
  ExpectRefused({"sample", "--run=empty"}, {"no model.safetensors"});
  ExpectRefused({"sample", "--run=book.txt"}, {"--run=book.txt"});
  Write("broken/model.safetensors", "these are not tensors, only a line of text");
  ExpectRefused({"sample", "--run=broken"}, {"broken/model.safetensors"});
  for (const char* flag : {"--bytes=0", "--temperature=-1", "--temperature=nan", "--top_k=-2",
                           "--seed=-1", "--prompt="}) {
    ExpectRefused({"sample", flag}, {std::string(flag).substr(0, std::string(flag).find('='))});
  }
}

}  // namespace
}  // namespace zerobox
