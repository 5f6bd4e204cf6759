// SPDX-License-Identifier: Apache-2.0
//
// The program, run on a small text.
#ifndef ZEROBOX_TESTS_PROGRAM_RUN_H_
#define ZEROBOX_TESTS_PROGRAM_RUN_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process.h"
#include "trainer/settings.h"

namespace zerobox {

// A folder of its own with a text to train on, gone after the test.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(ProgramPath())) << ProgramPath() << " is not built";
    std::ofstream data(Data(), std::ios::binary);
    for (int i = 0; i < 20000; ++i) data << static_cast<char>((i * i / 7 + i) % 101);
  }

  std::string Data() const { return (folder_ / "data").string(); }
  std::filesystem::path Out() const { return folder_ / "out"; }

  std::vector<std::string> Flags(const TrainSettings& settings) const {
    const ModelConfig& model = settings.model;
    std::vector<std::string> flags;
    const auto add = [&](const char* name, const auto& value) {
      std::ostringstream flag;
      flag << "--" << name << "=" << value;
      flags.push_back(flag.str());
    };
    add("data", Data());
    add("out", Out().string());
    add("n_layer", model.n_layer);
    add("n_head", model.n_head);
    add("n_embd", model.n_embd);
    add("seq_len", model.seq_len);
    add("vocab_size", model.vocab_size);
    add("devices", settings.devices);
    add("zero_stage", settings.zero_stage);
    add("activation_checkpointing", Name(settings.activation_checkpointing));
    add("offload", OffloadName(settings.offload_optimizer, settings.offload_activations));
    add("dtype", Name(settings.dtype));
    add("logits_bytes", settings.logits_bytes);
    add("micro_batch", settings.micro_batch);
    add("grad_accum", settings.grad_accum);
    add("steps", settings.steps);
    add("eval_interval", 0);
    add("sample_bytes", 0);
    add("threads", 1);
    add("device_memory", settings.device_memory_bytes);
    return flags;
  }

  // The exit code of `zerobox train` on the model of `settings`.
  int Train(const TrainSettings& settings) const {
    std::string command = "'" + ProgramPath() + "' train";
    for (const std::string& flag : Flags(settings)) command += " '" + flag + "'";
    command +=
        " >'" + (folder_ / "stdout").string() + "' 2>'" + (folder_ / "stderr").string() + "'";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Stdout() const { return ReadFile(folder_ / "stdout"); }
  std::string Stderr() const { return ReadFile(folder_ / "stderr"); }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_PROGRAM_RUN_H_
