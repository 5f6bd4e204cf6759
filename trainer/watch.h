// SPDX-License-Identifier: Apache-2.0
//
// The watch over a run, on the thread that called Train. It ends a run in which a rank waits too
// long for the others, and says when the workers of a failed run do not come back.
#ifndef ZEROBOX_TRAINER_WATCH_H_
#define ZEROBOX_TRAINER_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/device/abort.h"
#include "ops/device/device.h"

namespace zerobox {

using TimePoint = std::chrono::steady_clock::time_point;

// How the watch goes about it; tests change it.
struct WatchHooks {
  double look_seconds = 0.05;  // between two looks
  double grace_seconds = 30;   // that workers have to come back in after a failure
  std::function<TimePoint()> clock = [] { return std::chrono::steady_clock::now(); };
  std::function<void()> after_look;
};

// At a barrier a worker sets this as what its compute stream waits for.
inline constexpr std::string_view kTheOtherDevices = "the other devices";

// What a worker lets others know of itself while it runs. Thread-safe.
class RankStatus {
 public:
  explicit RankStatus(const std::function<TimePoint()>& clock) : clock_(clock) {}
  RankStatus(const RankStatus&) = delete;
  RankStatus& operator=(const RankStatus&) = delete;

  void SetPhase(std::string phase);
  std::string phase() const;
  // `device` outlives every later call.
  void SetDevice(const Device* device);
  void SetSteps(int64_t steps);  // whose metrics are posted
  int64_t steps() const;

  // The phase, and what the worker and its communication stream wait for.
  std::string Where() const;
  // For other ranks: in a collective, or at a barrier; "" when it does not.
  Waiting WaitsForOthers() const;

  // While one lives, the rank is about something that may take as long as it likes: it evaluates
  // or writes. The time that others wait meanwhile does not count; unless this rank waits too.
  class Pause {
   public:
    explicit Pause(RankStatus& status);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    RankStatus& status_;
  };
  // Until when, at `now`, its pauses have lasted; long ago if there was none.
  TimePoint PausedUntil(TimePoint now) const;

 private:
  const std::function<TimePoint()>& clock_;
  mutable std::mutex mutex_;
  std::string phase_ = "set-up";
  const Device* device_ = nullptr;
  int64_t steps_ = 0;
  int pauses_ = 0;          // that go on now
  TimePoint last_pause_{};  // its end
};

class Watch {
 public:
  // `timeout_seconds`: how long a rank may wait for others, 0: for ever. All outlive the watch.
  Watch(const std::vector<const RankStatus*>& ranks, double timeout_seconds,
        const WatchHooks& hooks, Abort& abort);

  // A worker's last act. Also of one that never began.
  void Back(int rank);
  bool IsBack(int rank);

  // Returns when all are back. Fails the run with DeadlineExceeded, naming rank and call, when one
  // waits too long. Calls `give_up`, once, when the run has failed and some are not back in time.
  void UntilAllAreBack(const std::function<void()>& give_up);

 private:
  void Look(TimePoint now);

  const std::vector<const RankStatus*> ranks_;
  const double timeout_;
  const WatchHooks& hooks_;
  Abort& abort_;
  std::mutex mutex_;
  std::condition_variable came_back_;
  std::vector<bool> back_;  // guarded by mutex_
  int missing_;             // guarded by mutex_
  TimePoint last_look_;
  TimePoint counted_from_{};            // nothing before this counts
  std::optional<TimePoint> failed_at_;  // when the watch saw that the run has failed
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_WATCH_H_
