// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C and SIGTERM: all ranks end after the same step, and everything up to it is written.
#include "trainer/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/process.h"
#include "trainer/board.h"

namespace zerobox {
namespace {

TEST(StopPoint, LetsEveryRankRunAllStepsWithoutASignal) {
  StopPoint always(3, nullptr);
  const std::function<int()> none = [] { return 0; };
  StopPoint asked(3, none);
  for (StopPoint* stop : {&always, &asked}) {
    for (int rank = 0; rank < 2; ++rank) {
      for (int64_t step = 1; step <= 3; ++step) EXPECT_TRUE(stop->Continue(step));
      EXPECT_FALSE(stop->Continue(4));
    }
    EXPECT_EQ(stop->signal(), 0);
  }
}

TEST(StopPoint, EndsAfterTheStepThatTheFurthestRankHasBegun) {
  int signal = 0;
  const std::function<int()> ask = [&] { return signal; };
  StopPoint stop(100, ask);
  for (int64_t step = 1; step <= 5; ++step) EXPECT_TRUE(stop.Continue(step));  // rank 0
  EXPECT_TRUE(stop.Continue(1));                                               // rank 1
  signal = 15;
  for (int64_t step = 2; step <= 5; ++step) EXPECT_TRUE(stop.Continue(step));
  EXPECT_FALSE(stop.Continue(6));
  EXPECT_FALSE(stop.Continue(6));  // rank 0
  EXPECT_EQ(stop.signal(), 15);
  signal = 2;
  EXPECT_FALSE(stop.Continue(6));
  EXPECT_EQ(stop.signal(), 15) << "the first signal counts";
}

TEST(StopPoint, RunsNoStepWhenTheSignalWasThereBefore) {
  const std::function<int()> ask = [] { return 2; };
  StopPoint stop(100, ask);
  EXPECT_FALSE(stop.Continue(1));
  EXPECT_FALSE(stop.Continue(1));
}

TEST(StopPoint, GivesAllRanksTheSameLastStepWhereverASignalFindsThem) {
  constexpr int kRanks = 4;
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> questions{0};
    const std::function<int()> ask = [&] { return ++questions > round ? 2 : 0; };
    StopPoint stop(1000, ask);
    std::vector<int64_t> last(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        int64_t step = 1;
        while (stop.Continue(step)) ++step;
        last[rank] = step - 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(last, std::vector<int64_t>(kRanks, last[0]));
    EXPECT_LE(last[0], round);
  }
}

TEST(StopSignals, LeaveTheErrorOfACallThatTheyComeInto) {
  const pid_t child = fork();
  if (child == 0) {
    CatchStopSignals();
    close(STDERR_FILENO);  // what the handler says cannot be written
    errno = ENOENT;
    raise(SIGINT);
    _exit(errno == ENOENT && StopSignal() == SIGINT ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- the program ----

class SignalledProgram : public testing::Test {
 protected:
  SignalledProgram() {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "line " + std::to_string(i * 7919 % 1000) + "\n";
    WriteFile(folder_.path() + "/data.txt", text);
  }
  std::string Out(const std::string& file) const { return folder_.path() + "/run/" + file; }

  // A run that would go on for days.
  std::vector<std::string> Arguments() const {
    return {ProgramPath(),
            "train",
            "--data=" + folder_.path() + "/data.txt",
            "--out=" + Out(""),
            "--devices=2",
            "--zero_stage=3",
            "--n_layer=1",
            "--n_head=1",
            "--n_embd=16",
            "--seq_len=16",
            "--micro_batch=1",
            "--steps=1000000000",
            "--eval_interval=0",
            "--device_memory=64MiB"};
  }

  int64_t Steps() const {
    const std::string metrics = ReadFile(Out("metrics.jsonl"));
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
  // Until the program trains.
  void AwaitSteps(Process& process, int64_t steps) const {
    while (Steps() < steps && process.Running()) std::this_thread::yield();
    ASSERT_TRUE(process.Running()) << process.output();
  }

  const TemporaryFolder folder_;
};

TEST_F(SignalledProgram, FinishesItsStepWritesEverythingAndExitsWith128PlusTheSignal) {
  const std::vector<std::string> offload = {"--n_layer=3", "--dtype=bf16",
                                            "--activation_checkpointing=full",
                                            "--offload=optimizer,activations"};
  const struct {
    int signal;
    std::string name;
    std::vector<std::string> flags;
  } cases[] = {{SIGINT, "Ctrl-C", {}},
               {SIGTERM, "SIGTERM", {}},
               {SIGHUP, "SIGHUP", {}},
               {SIGINT, "Ctrl-C", offload}};
  for (const auto& [signal, name, flags] : cases) {
    std::filesystem::remove_all(Out(""));
    std::vector<std::string> arguments = Arguments();
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    Process process(arguments);
    AwaitSteps(process, 2);
    kill(process.pid(), signal);
    EXPECT_EQ(process.Wait(), 128 + signal);
    const std::string said = "stopped by " + name + " after step " + std::to_string(Steps()) +
                             "; everything up to it is written";
    EXPECT_NE(process.output().find(said), std::string::npos) << said << "\n" << process.output();
    for (const char* file :
         {"model.safetensors", "memory.json", "communication.json", "config.json", "log.txt",
          "report.json", "report.html", "trace.json"}) {
      EXPECT_TRUE(std::filesystem::exists(Out(file))) << file;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Out("")), {}), 9);
  }
}

TEST_F(SignalledProgram, GoesOnWithoutItsTerminalUnderNohup) {
  Process process(Arguments(), {}, [] { signal(SIGHUP, SIG_IGN); });
  AwaitSteps(process, 2);
  kill(process.pid(), SIGHUP);
  AwaitSteps(process, Steps() + 20);
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 128 + SIGTERM);
}

#ifndef __SANITIZE_THREAD__  // which puts signals off
TEST_F(SignalledProgram, ExitsAtOnceOnASecondSignal) {
  Process process(Arguments());
  AwaitSteps(process, 2);
  // Stopped, so that it meets both signals at once.
  kill(process.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(process.pid(), &status, WUNTRACED), process.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  kill(process.pid(), SIGINT);
  kill(process.pid(), SIGTERM);
  kill(process.pid(), SIGCONT);
  const int code = process.Wait();
  EXPECT_TRUE(code == 128 + SIGINT || code == 128 + SIGTERM) << code;
  EXPECT_FALSE(std::filesystem::exists(Out("model.safetensors")));
  EXPECT_EQ(process.output().find("stopped by"), std::string::npos) << process.output();
}
#endif

}  // namespace
}  // namespace zerobox
