// SPDX-License-Identifier: Apache-2.0
//
// HostStream: a thread with an in-order queue.
#ifndef ZEROBOX_OPS_DEVICE_HOST_STREAM_H_
#define ZEROBOX_OPS_DEVICE_HOST_STREAM_H_

#include <deque>
#include <functional>
#include <thread>

#include "ops/device/abort.h"

namespace zerobox {

class HostStream {
 public:
  // Throws std::system_error where std::thread does.
  explicit HostStream(Abort& abort);
  // Waits until the queue is empty; after an abort, for the item that runs now only.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // `item` runs after all items pushed before. After an abort it may never run.
  void Push(std::function<void()> item);

 private:
  void Loop();
  WaitPoint point_;
  std::deque<std::function<void()>> queue_;  // guarded by point_
  bool stop_ = false;                        // guarded by point_
  std::thread thread_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_HOST_STREAM_H_
