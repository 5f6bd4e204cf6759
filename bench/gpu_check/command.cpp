// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/command.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

namespace zerobox::gpu_check {

CommandResult RunCommand(const std::string& command) {
  CommandResult result;
  std::FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): that is what it is for
  if (pipe == nullptr) return result;
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    text.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  if (status >= 0 && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) result.lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

}  // namespace zerobox::gpu_check
