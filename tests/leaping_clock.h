// SPDX-License-Identifier: Apache-2.0
//
// A clock for the watch over a run, so that no test waits for time to pass.
#ifndef ZEROBOX_TESTS_LEAPING_CLOCK_H_
#define ZEROBOX_TESTS_LEAPING_CLOCK_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "trainer/watch.h"

namespace zerobox {

// Once it is told to, it leaps ahead with every look of the watch.
class LeapingClock {
 public:
  static constexpr int kEveryLook = 1 << 30;

  // With the next `leaps` looks. Counts looks from 0 again.
  void Start(int seconds_a_leap, int leaps = kEveryLook) {
    const std::lock_guard<std::mutex> lock(mutex_);
    leap_ = std::chrono::seconds(seconds_a_leap);
    leaps_left_ = leaps;
    looks_ = 0;
  }
  void Stop() { Start(0, 0); }
  // Until the watch has looked so often since Start.
  void AwaitLooks(int looks) {
    std::unique_lock<std::mutex> lock(mutex_);
    looked_.wait(lock, [&] { return looks_ >= looks; });
  }
  // For a run, with short pauses between looks. `after_look` is called with the number of looks
  // since Start.
  WatchHooks Hooks(const std::function<void(int)>& after_look = {}) {
    WatchHooks hooks;
    hooks.look_seconds = 0.001;
    hooks.clock = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      return std::chrono::steady_clock::now() + ahead_;
    };
    hooks.after_look = [this, after_look] {
      const int looks = Looked();
      if (after_look) after_look(looks);
    };
    return hooks;
  }

 private:
  int Looked() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (leaps_left_ > 0) {
      --leaps_left_;
      ahead_ += leap_;
    }
    looked_.notify_all();
    return ++looks_;
  }

  std::mutex mutex_;
  std::condition_variable looked_;
  std::chrono::seconds ahead_{0}, leap_{0};
  int leaps_left_ = 0;
  int looks_ = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_LEAPING_CLOCK_H_
