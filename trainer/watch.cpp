// SPDX-License-Identifier: Apache-2.0
#include "trainer/watch.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/device/thread_sanitizer.h"

namespace zerobox {
namespace {

double Seconds(TimePoint::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

// The lock orders nothing for the thread sanitizer: the watch goes from rank to rank, and what one
// did before it was looked at would seem to come before what the next one does.

void RankStatus::SetPhase(std::string phase) {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  phase_ = std::move(phase);
}

std::string RankStatus::phase() const {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  return phase_;
}

void RankStatus::SetDevice(const Device* device) {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  device_ = device;
}

void RankStatus::SetSteps(int64_t steps) {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  steps_ = steps;
}

int64_t RankStatus::steps() const {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  return steps_;
}

std::string RankStatus::Where() const {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (device_ == nullptr) return phase_;
  std::string waiting = device_->WaitingFor(StreamId::kCompute);
  const std::string collective = device_->WaitingFor(StreamId::kCommunication);
  if (!collective.empty()) absl::StrAppend(&waiting, waiting.empty() ? "" : ", ", collective);
  return waiting.empty() ? phase_ : absl::StrCat(phase_, ", waiting for ", waiting);
}

Waiting RankStatus::WaitsForOthers() const {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (device_ == nullptr) return {};
  Waiting wait = device_->CurrentWait(StreamId::kCommunication);
  if (!wait.what.empty() && !wait.own_event) return wait;
  wait = device_->CurrentWait(StreamId::kCompute);
  return wait.what == kTheOtherDevices ? wait : Waiting{};
}

TimePoint RankStatus::PausedUntil(TimePoint now) const {
  const Waiting for_others = WaitsForOthers();
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pauses_ == 0) return last_pause_;
  // Both its threads wait: that is no pause of its own.
  const Waiting worker = device_ ? device_->CurrentWait(StreamId::kCompute) : Waiting{};
  if (for_others.what.empty() || worker.what.empty()) return now;
  return std::max({last_pause_, for_others.since, worker.since});
}

RankStatus::Pause::Pause(RankStatus& status) : status_(status) {
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(status_.mutex_);
  ++status_.pauses_;
}

RankStatus::Pause::~Pause() {
  const TimePoint now = status_.clock_();
  const UnorderedScope scope;
  const std::lock_guard<std::mutex> lock(status_.mutex_);
  --status_.pauses_;
  status_.last_pause_ = now;
}

Watch::Watch(const std::vector<const RankStatus*>& ranks, double timeout_seconds,
             const WatchHooks& hooks, Abort& abort)
    : ranks_(ranks),
      timeout_(timeout_seconds),
      hooks_(hooks),
      abort_(abort),
      back_(ranks.size()),
      missing_(static_cast<int>(ranks.size())),
      last_look_(hooks.clock()) {}

void Watch::Back(int rank) {
  // Notifies under the lock: whoever sees that all are back may destroy this object.
  const std::lock_guard<std::mutex> lock(mutex_);
  back_[static_cast<size_t>(rank)] = true;
  if (--missing_ == 0) came_back_.notify_all();
}

bool Watch::IsBack(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return back_[static_cast<size_t>(rank)];
}

void Watch::UntilAllAreBack(const std::function<void()>& give_up) {
  const std::chrono::duration<double> between(hooks_.look_seconds);
  bool given_up = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!came_back_.wait_for(lock, between, [&] { return missing_ == 0; })) {
    lock.unlock();
    const TimePoint now = hooks_.clock();
    if (!abort_.failed()) {
      if (timeout_ > 0) Look(now);
    } else if (!failed_at_) {
      failed_at_ = now;
    } else if (!given_up && Seconds(now - *failed_at_) > hooks_.grace_seconds) {
      given_up = true;
      give_up();
    }
    if (hooks_.after_look) hooks_.after_look();
    lock.lock();
  }
}

void Watch::Look(TimePoint now) {
  // The process was stopped, or the machine slept: nobody could answer.
  const double longest = std::max(timeout_ / 4, 10 * hooks_.look_seconds);
  if (Seconds(now - last_look_) > longest) counted_from_ = now;
  last_look_ = now;
  for (const RankStatus* rank : ranks_) {
    counted_from_ = std::max(counted_from_, rank->PausedUntil(now));
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Waiting wait = ranks_[rank]->WaitsForOthers();
    if (wait.what.empty() || Seconds(now - std::max(wait.since, counted_from_)) <= timeout_) {
      continue;
    }
    abort_.Fail(absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank, " has waited ", timeout_, " s for ", wait.what,
        ": a device does not answer. Where it is only slow, raise --collective_timeout (0: wait "
        "for ever)")));
    return;
  }
}

}  // namespace zerobox
