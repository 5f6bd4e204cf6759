// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "trainer/commands.h"
#include "trainer/signals.h"

int main(int argc, char** argv) {
  zerobox::TurnWriteSignalsIntoErrors();
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return zerobox::RunProgram(arguments);
}
