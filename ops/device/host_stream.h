// SPDX-License-Identifier: Apache-2.0
//
// HostStream: a thread with an in-order queue.
#ifndef ZEROBOX_OPS_DEVICE_HOST_STREAM_H_
#define ZEROBOX_OPS_DEVICE_HOST_STREAM_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "ops/device/abort.h"

namespace zerobox {

class HostStream {
 public:
  // Throws std::system_error where std::thread does.
  explicit HostStream(Abort& abort);
  // Waits until the queue is empty: soon after an abort, which ends the waits of all items.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // `item` runs after all items pushed before. After an abort it may never run.
  void Push(std::function<void()> item);

 private:
  using Item = std::unique_ptr<std::function<void()>>;  // its address is the thread sanitizer's key
  void Loop();
  Item Next();  // null: aborted, or stopped with nothing left to do
  WaitPoint point_;
  std::deque<Item> queue_;  // guarded by point_
  bool stop_ = false;       // guarded by point_
  std::thread thread_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_HOST_STREAM_H_
