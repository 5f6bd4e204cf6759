// SPDX-License-Identifier: Apache-2.0
//
// TimeMarks: points in the streams of one device whose times can be asked for later.
#ifndef ZEROBOX_OPS_DEVICE_TIME_MARKS_H_
#define ZEROBOX_OPS_DEVICE_TIME_MARKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace zerobox {

enum class StreamId : uint8_t;

// Used by the device's worker, like the device. Its memory stays for the next series, so that
// nothing is allocated after the first ones. Outlives the device's streams.
class TimeMarks {
 public:
  virtual ~TimeMarks() = default;
  // Begins a new series; nothing of the last one is still to come.
  virtual void Begin() = 0;
  // Enqueues the next mark and returns its number, from 0: its time is when all that was enqueued
  // on the stream before it is done.
  virtual int Mark(StreamId stream) = 0;
  // By number, in nanoseconds of std::chrono::steady_clock: the devices of a process share it. All
  // marks are known to be over: an event recorded behind them was waited for.
  virtual absl::StatusOr<std::vector<int64_t>> Times() = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_TIME_MARKS_H_
