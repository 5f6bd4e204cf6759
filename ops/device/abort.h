// SPDX-License-Identifier: Apache-2.0
//
// Abort: how the devices of one run stop together. When one fails, every wait of every other ends.
#ifndef ZEROBOX_OPS_DEVICE_ABORT_H_
#define ZEROBOX_OPS_DEVICE_ABORT_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace zerobox {

class Abort;
class WaitPoint;

// For tests: told, under the point's lock, when a thread is about to sleep at a point, when all who
// sleep there are woken, and when a thread's wait is over. May not use the run.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual void OnSleep(const WaitPoint* point) = 0;
  virtual void OnWake(const WaitPoint* point) = 0;
  virtual void OnReady(const WaitPoint* point) = 0;
};

// A mutex and condition variable whose waits end when the run is aborted. Whoever waits for another
// rank's or stream's turn waits here, so nothing can block for ever; elsewhere a thread waits only
// for work that other threads are doing at that moment.
class WaitPoint {
 public:
  explicit WaitPoint(Abort& abort);
  ~WaitPoint();
  WaitPoint(const WaitPoint&) = delete;
  WaitPoint& operator=(const WaitPoint&) = delete;

  // Runs `change` under the lock and wakes all waiters. `change` and `ready` may not call Fail.
  void Notify(const std::function<void()>& change);
  // Waits until `ready` (called under the lock) holds; false when the run was aborted before.
  bool WaitUntil(const std::function<bool()>& ready);

 private:
  friend class Abort;
  Abort& abort_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// One per run; outlives every WaitPoint. Thread-safe.
class Abort {
 public:
  // Keeps the first error (later ones are dropped) and wakes every WaitPoint.
  void Fail(const absl::Status& error);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // OK until Fail; then the first error.
  absl::Status status() const;
  // Every Abort made from now on tells it.
  static void ObserveAll(WaitObserver* observer) { observer_of_all = observer; }

 private:
  friend class WaitPoint;
  std::atomic<bool> failed_{false};
  // Locked before any WaitPoint's mutex, never after.
  mutable std::mutex mutex_;
  // The first error in parts: every status() makes a new absl::Status, so that threads share no
  // reference count, which the thread sanitizer could not follow into an uninstrumented library.
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::string message_;
  std::vector<WaitPoint*> points_;
  static inline std::atomic<WaitObserver*> observer_of_all{nullptr};
  WaitObserver* const observer_ = observer_of_all;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_ABORT_H_
