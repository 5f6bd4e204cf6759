// SPDX-License-Identifier: Apache-2.0
#include "tests/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace zerobox {
namespace {

int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status); }

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "zerobox.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) std::abort();
  path_ = path;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ProgramPath() {
  if (const char* program = std::getenv("ZEROBOX_PROGRAM")) return program;
  const std::filesystem::path test = std::filesystem::read_symlink("/proc/self/exe");
  return (test.parent_path().parent_path() / "zerobox").string();
}

Process::Process(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment,
                 const std::function<void()>& in_child) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string out = folder_.path() + "/out";
  pid_ = fork();
  if (pid_ != 0) return;
  const int fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
  if (in_child) in_child();
  execv(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (!Running()) return;
  kill(pid_, SIGKILL);
  Wait();
}

bool Process::Running() {
  int status = 0;
  if (ended_ || pid_ < 0 || waitpid(pid_, &status, WNOHANG) == 0) return !ended_ && pid_ > 0;
  ended_ = true;
  code_ = CodeOf(status);
  return false;
}

int Process::Wait() {
  int status = 0;
  if (ended_ || pid_ < 0) return code_;
  waitpid(pid_, &status, 0);
  ended_ = true;
  return code_ = CodeOf(status);
}

std::string Process::output() const { return ReadFile(folder_.path() + "/out"); }

}  // namespace zerobox
