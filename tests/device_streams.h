// SPDX-License-Identifier: Apache-2.0
//
// A host device, and what happened on its streams.
#ifndef ZEROBOX_TESTS_DEVICE_STREAMS_H_
#define ZEROBOX_TESTS_DEVICE_STREAMS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/device/host_device.h"

namespace zerobox {

inline constexpr auto kCompute = StreamId::kCompute;
inline constexpr auto kCommunication = StreamId::kCommunication;
inline constexpr auto kToHost = StreamId::kToHost;
inline constexpr auto kFromHost = StreamId::kFromHost;
inline constexpr StreamId kAllStreams[] = {kCompute, kCommunication, kToHost, kFromHost};
inline constexpr StreamId kThreads[] = {kCommunication, kToHost, kFromHost};

inline std::unique_ptr<HostDevice> MakeDevice(Abort& abort, HostDeviceOptions options = {}) {
  if (options.regions == RegionBytes{}) options.regions = {4096, 0, 0, 4096};
  absl::StatusOr<std::unique_ptr<HostDevice>> device = HostDevice::Make(options, abort);
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

inline Buffer Floats(Device& device, int64_t elements) {
  return device.Allocate(Region::kTransient, Category::kWorkspace, DType::kFloat32, elements,
                         "test");
}

// What happened, in order.
class Log {
 public:
  std::function<absl::Status()> Note(const std::string& what) {
    return [this, what] {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(what);
      return absl::OkStatus();
    };
  }
  std::vector<std::string> lines() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

inline absl::Status WaitForAll(HostDevice& device) {
  for (const StreamId stream : kAllStreams) {
    const std::unique_ptr<Event> end = device.MakeEvent("end");
    device.Record(*end, stream);
    if (absl::Status status = device.HostWait(*end); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Until the thread of `stream` has arrived at the wait for `what`.
inline void AwaitArrival(const HostDevice& device, StreamId stream, const std::string& what) {
  while (device.WaitingFor(stream) != what) std::this_thread::yield();
}

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_DEVICE_STREAMS_H_
