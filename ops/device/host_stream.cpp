// SPDX-License-Identifier: Apache-2.0
#include "ops/device/host_stream.h"

#include <utility>

namespace zerobox {

HostStream::HostStream(Abort& abort) : point_(abort), thread_([this] { Loop(); }) {}

HostStream::~HostStream() {
  point_.Notify([this] { stop_ = true; });
  thread_.join();
}

void HostStream::Push(std::function<void()> item) {
  point_.Notify([&] { queue_.push_back(std::move(item)); });
}

void HostStream::Loop() {
  for (;;) {
    std::function<void()> item;
    const bool more = point_.WaitUntil([&] {
      if (queue_.empty()) return stop_;
      item = std::move(queue_.front());
      queue_.pop_front();
      return true;
    });
    if (!more || item == nullptr) return;  // aborted, or stopped with nothing left to do
    item();
  }
}

}  // namespace zerobox
