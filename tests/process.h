// SPDX-License-Identifier: Apache-2.0
//
// Programs run by tests.
#ifndef ZEROBOX_TESTS_PROCESS_H_
#define ZEROBOX_TESTS_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace zerobox {

// A folder of its own below the system's temporary one, removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);  // "" when there is none
void WriteFile(const std::string& path, const std::string& text);

// The program of the same build as this test: ZEROBOX_PROGRAM, or where the build puts it.
std::string ProgramPath();

// One child process. Killed if it still runs when this is destroyed.
class Process {
 public:
  // `environment` ("NAME=value") is added to this process's. `in_child` runs before the program
  // starts.
  explicit Process(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {},
                   const std::function<void()>& in_child = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool Running();
  // Waits for its end: the exit code, or 1000 + the signal that killed it.
  int Wait();
  // What it has written so far to stdout and stderr together.
  std::string output() const;

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_PROCESS_H_
