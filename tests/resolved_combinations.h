// SPDX-License-Identifier: Apache-2.0
//
// The runs of `zerobox compare` with such flags.
#ifndef ZEROBOX_TESTS_RESOLVED_COMBINATIONS_H_
#define ZEROBOX_TESTS_RESOLVED_COMBINATIONS_H_

#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/status/statusor.h"
#include "trainer/combinations.h"
#include "trainer/command_line.h"

namespace zerobox {

// Beside the flags of a corpus that is never opened, for host devices.
inline absl::StatusOr<std::vector<Combination>> ResolvedCombinations(
    std::vector<std::string> arguments) {
  const absl::FlagSaver saver;
  arguments.insert(arguments.begin(), {"--data=book.txt", "--device=host"});
  const absl::StatusOr<CommandLine> line = ParseArguments(kCompareCommand, arguments);
  if (!line.ok()) return line.status();
  return ResolveCombinations(*line, {.cores = 2, .available_memory = 1000000});
}

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_RESOLVED_COMBINATIONS_H_
