// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "trainer/commands.h"
#include "trainer/signals.h"

namespace {

// Where a standard stream is closed, a file of the run would take its number and its text.
void OpenStandardStreams() {
  int descriptor = open("/dev/null", O_RDWR);
  while (descriptor >= 0 && descriptor <= 2) descriptor = open("/dev/null", O_RDWR);
  if (descriptor > 2) close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardStreams();
  zerobox::TurnWriteSignalsIntoErrors();
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return zerobox::RunProgram(arguments);
}
