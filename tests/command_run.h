// SPDX-License-Identifier: Apache-2.0
//
// A command, called in this process on a small text and a small model.
#ifndef ZEROBOX_TESTS_COMMAND_RUN_H_
#define ZEROBOX_TESTS_COMMAND_RUN_H_

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process.h"

namespace zerobox {

class CommandRun : public testing::Test {
 protected:
  CommandRun() : folder_(temporary_.path()) {
    std::ofstream book(folder_ / "book.txt");
    for (int i = 0; i < 20000; ++i) book << static_cast<char>('a' + i * i % 23);
  }

  // `flags` behind those of the small model.
  std::vector<std::string> Flags(std::vector<std::string> flags) const {
    const std::vector<std::string> small = {"--data=" + (folder_ / "book.txt").string(),
                                            "--out=" + (folder_ / "out").string(),
                                            "--n_layer=2",
                                            "--n_head=2",
                                            "--n_embd=16",
                                            "--seq_len=16",
                                            "--eval_interval=2",
                                            "--eval_batches=1",
                                            "--threads=2",
                                            "--device_memory=64MiB"};
    flags.insert(flags.begin(), small.begin(), small.end());
    return flags;
  }

  // The command's exit code; what was printed is in out_ and err_.
  int Call(const std::function<int()>& command) {
    const absl::FlagSaver saver;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = command();
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }

  std::string Contents(const std::string& name) const {
    return ReadFile((folder_ / "out" / name).string());
  }
  nlohmann::ordered_json Parsed(const std::string& name) const {
    return nlohmann::ordered_json::parse(Contents(name));
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_;
  std::string out_, err_;
};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_COMMAND_RUN_H_
