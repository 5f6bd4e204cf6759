// SPDX-License-Identifier: Apache-2.0
//
// ThreadTeam: the threads of one stream's kernels (compute, or the host side's in to_host), for
// loops that are split the same way every time.
#ifndef ZEROBOX_OPS_DEVICE_THREAD_TEAM_H_
#define ZEROBOX_OPS_DEVICE_THREAD_TEAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace zerobox {

class ThreadTeam {
 public:
  // `threads` counts the caller of Run. Throws std::system_error where std::thread does.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return threads_; }
  // Thread t of n runs tasks [t tasks / n, (t + 1) tasks / n) in order; the caller is thread 0.
  // Returns when all are done. `task` may not throw. One call at a time, not from a task.
  void Run(int64_t tasks, const std::function<void(int64_t)>& task);

 private:
  void Stop();
  void Help(int thread);
  void RunShare(int thread) const;

  const int threads_;
  // Written by Run before it raises round_, read by the helpers after they have seen that.
  int64_t tasks_ = 0;
  const std::function<void(int64_t)>* task_ = nullptr;
  std::atomic<uint32_t> round_{0};
  std::atomic<uint32_t> working_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_THREAD_TEAM_H_
