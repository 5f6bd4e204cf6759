// SPDX-License-Identifier: Apache-2.0
#include "ops/device/host_stream.h"

#include <utility>

#include "ops/device/thread_sanitizer.h"

namespace zerobox {

HostStream::HostStream(Abort& abort) : point_(abort), thread_([this] { Loop(); }) {}

HostStream::~HostStream() {
  point_.Notify([this] { stop_ = true; });
  thread_.join();
}

void HostStream::Push(std::function<void()> item) {
  Item next = std::make_unique<std::function<void()>>(std::move(item));
  Publish(next.get());
  const UnorderedScope scope;
  point_.Notify([&] { queue_.push_back(std::move(next)); });
}

void HostStream::Loop() {
  while (Item item = Next()) {
    Follow(item.get());
    (*item)();
    const UnorderedScope scope;
    item.reset();
  }
}

HostStream::Item HostStream::Next() {
  const UnorderedScope scope;
  Item item;
  const bool more = point_.WaitUntil([&] {
    if (queue_.empty()) return stop_;
    item = std::move(queue_.front());
    queue_.pop_front();
    return true;
  });
  return more ? std::move(item) : nullptr;
}

}  // namespace zerobox
