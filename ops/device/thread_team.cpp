// SPDX-License-Identifier: Apache-2.0
#include "ops/device/thread_team.h"

#include <chrono>

namespace zerobox {
namespace {

// Waits until `value` is not `old`: loops follow each other closely, so it spins for about the time
// that falling asleep and waking take, then sleeps.
void WaitWhile(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(10);
  do {
    if (value.load(std::memory_order_acquire) != old) return;
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) : threads_(threads) {
  try {
    for (int t = 1; t < threads_; ++t) helpers_.emplace_back([this, t] { Help(t); });
  } catch (...) {
    Stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() { Stop(); }

void ThreadTeam::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
}

void ThreadTeam::Run(int64_t tasks, const std::function<void(int64_t)>& task) {
  if (threads_ == 1 || tasks <= 1) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  tasks_ = tasks;
  task_ = &task;
  working_.store(static_cast<uint32_t>(threads_ - 1), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  RunShare(0);
  for (uint32_t left = working_.load(std::memory_order_acquire); left != 0;
       left = working_.load(std::memory_order_acquire)) {
    WaitWhile(working_, left);
  }
}

void ThreadTeam::Help(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    WaitWhile(round_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShare(thread);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

void ThreadTeam::RunShare(int thread) const {
  const int64_t begin = thread * tasks_ / threads_;
  const int64_t end = (thread + 1) * tasks_ / threads_;
  for (int64_t i = begin; i < end; ++i) (*task_)(i);
}

}  // namespace zerobox
