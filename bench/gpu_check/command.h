// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_BENCH_GPU_CHECK_COMMAND_H_
#define ZEROBOX_BENCH_GPU_CHECK_COMMAND_H_

#include <string>
#include <vector>

namespace zerobox::gpu_check {

struct CommandResult {
  int exit_code = -1;              // as a shell says it; -1: it could not be started
  std::vector<std::string> lines;  // of its standard output
};
// By /bin/sh, which must find it.
CommandResult RunCommand(const std::string& command);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_COMMAND_H_
