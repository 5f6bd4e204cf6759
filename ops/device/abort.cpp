// SPDX-License-Identifier: Apache-2.0
#include "ops/device/abort.h"

#include <cassert>
#include <string>
#include <utility>

namespace zerobox {

WaitPoint::WaitPoint(Abort& abort) : abort_(abort) {
  const std::lock_guard<std::mutex> lock(abort_.mutex_);
  abort_.points_.push_back(this);
}

WaitPoint::~WaitPoint() {
  const std::lock_guard<std::mutex> lock(abort_.mutex_);
  std::erase(abort_.points_, this);
}

void WaitPoint::Notify(const std::function<void()>& change) {
  // Notifies under the lock: whoever sees the change may destroy this object.
  const std::lock_guard<std::mutex> lock(mutex_);
  change();
  if (abort_.observer_ != nullptr) abort_.observer_->OnWake(this);
  changed_.notify_all();
}

bool WaitPoint::WaitUntil(const std::function<bool()>& ready) {
  std::unique_lock<std::mutex> lock(mutex_);
  WaitObserver* const observer = abort_.observer_;
  for (;;) {
    const bool is_ready = ready();
    if (is_ready || abort_.failed()) {
      if (observer != nullptr) observer->OnReady(this);
      return is_ready;
    }
    if (observer != nullptr) observer->OnSleep(this);
    changed_.wait(lock);
  }
}

void Abort::Fail(const absl::Status& error) {
  assert(!error.ok());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed()) return;
  code_ = error.code();
  message_ = std::string(error.message());
  failed_.store(true, std::memory_order_release);
  for (WaitPoint* point : points_) {
    // Taking the lock puts this behind a waiter that has looked at failed_ but does not wait yet.
    const std::lock_guard<std::mutex> point_lock(point->mutex_);
    if (observer_ != nullptr) observer_->OnWake(point);
    point->changed_.notify_all();
  }
}

absl::Status Abort::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return absl::Status(code_, message_);
}

}  // namespace zerobox
