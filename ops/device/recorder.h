// SPDX-License-Identifier: Apache-2.0
//
// Recorder: sees every op's begin and end and the life of every allocation in the device's memory
// (its host side's are not seen). Off unless a run sets one. A device calls OnBegin and OnEnd from
// the threads of its streams, and all else from its worker's; one recorder of several devices locks
// for itself.
#ifndef ZEROBOX_OPS_DEVICE_RECORDER_H_
#define ZEROBOX_OPS_DEVICE_RECORDER_H_

#include <cstdint>
#include <string_view>

#include "ops/device/buffer.h"

namespace zerobox {

enum class Category : uint8_t;
enum class Region : uint8_t;
enum class StreamId : uint8_t;
enum class Activity : uint8_t;
class Event;

class Recorder {
 public:
  virtual ~Recorder() = default;
  // The worker has put an op into a stream. `id` counts the ops of one device from 0.
  virtual void OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t id) = 0;
  virtual void OnBegin(int rank, StreamId stream, std::string_view op, int64_t id) = 0;
  virtual void OnEnd(int rank, StreamId stream, std::string_view op, int64_t id) = 0;
  // `label` is a literal.
  virtual void OnAllocate(int rank, Region region, Category category, std::string_view label,
                          const Buffer& buffer) = 0;
  virtual void OnFree(int rank, const Buffer& buffer) = 0;
  // The worker has put a record of the event, or a wait for its latest record, into a stream; or
  // itself is about to wait for it. Where there is no record yet, there is nothing to wait for.
  virtual void OnRecord(int /*rank*/, StreamId /*stream*/, const Event& /*event*/) {}
  virtual void OnWait(int /*rank*/, StreamId /*stream*/, const Event& /*event*/) {}
  virtual void OnHostWait(int /*rank*/, const Event& /*event*/) {}
  // The op that is enqueued next is a copy between the host's memory and this buffer.
  virtual void OnCopy(int /*rank*/, StreamId /*stream*/, const void* /*host*/,
                      const Buffer& /*buffer*/) {}
  virtual void OnAnnounce(int /*rank*/, Activity /*activity*/, int /*unit*/) {}
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_RECORDER_H_
