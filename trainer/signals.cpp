// SPDX-License-Identifier: Apache-2.0
#include "trainer/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace zerobox {
namespace {

std::atomic<int> stop_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

extern "C" void HandleStopSignal(int signal) {
  if (stop_signal.exchange(signal) != 0) _exit(128 + signal);
  const int error = errno;  // of the call that the signal came into
  constexpr char kText[] = "\nzerobox: stopping in order; a second signal stops at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  errno = error;
}

}  // namespace

void TurnWriteSignalsIntoErrors() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

void CatchStopSignals() {
  struct sigaction action = {};
  action.sa_handler = HandleStopSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    // Started by nohup, the program outlives its terminal.
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
}

int StopSignal() { return stop_signal.load(); }

}  // namespace zerobox
