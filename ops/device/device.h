// SPDX-License-Identifier: Apache-2.0
//
// Device: memory of a fixed capacity, four in-order streams of work, and named events between them.
//
// Enqueueing never blocks on the work and returns no error: a device keeps its first failure, skips
// the work that comes after it, and HostWait returns the failure. So the model and the ZeRO stages
// read like the paper. All calls come from the one worker thread that owns the device.
#ifndef ZEROBOX_OPS_DEVICE_DEVICE_H_
#define ZEROBOX_OPS_DEVICE_DEVICE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "ops/device/buffer.h"
#include "ops/device/memory.h"
#include "ops/device/time_marks.h"

namespace zerobox {

class Ops;

enum class StreamId : uint8_t { kCompute, kCommunication, kToHost, kFromHost };
inline constexpr int kStreams = 4;
std::string_view Name(StreamId stream);

// A point in one stream that other streams, and the host, can wait for. Each edge between two
// streams is one event, named after what it protects.
class Event {
 public:
  explicit Event(std::string_view name) : name_(name) {}
  virtual ~Event() = default;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// Bytes that CopyToHost and CopyFromHost copied.
struct CopiedBytes {
  int64_t to_host = 0;
  int64_t from_host = 0;
  friend bool operator==(const CopiedBytes&, const CopiedBytes&) = default;
  friend CopiedBytes operator-(const CopiedBytes& a, const CopiedBytes& b) {
    return {a.to_host - b.to_host, a.from_host - b.from_host};
  }
};

// What a thread or stream waits for: an event's name, or what was set with SetWaitingFor; "" when
// it does not wait.
struct Waiting {
  std::string what;
  std::chrono::steady_clock::time_point since{};
  bool own_event = false;  // of the same device: no other rank is waited for
};

// What a worker enqueues for.
enum class Activity : uint8_t { kNone, kForward, kRecompute, kBackward, kNorm, kUpdate };

class Device {
 public:
  virtual ~Device() = default;

  virtual std::unique_ptr<Event> MakeEvent(std::string_view name) = 0;
  // The event happens when all that is in the stream now is done.
  virtual void Record(Event& event, StreamId stream) = 0;
  // What is enqueued on the stream after this starts after the latest Record before this call;
  // nothing to wait for if there was none.
  virtual void Wait(StreamId stream, const Event& event) = 0;
  // Waits for the latest Record, or the run's abort, whichever comes first. Returns the device's
  // first failure, or the run's.
  virtual absl::Status HostWait(const Event& event) = 0;

  // Copies within the device, enqueued on `stream`; same dtype and number of elements.
  virtual void Copy(StreamId stream, Buffer to, Buffer from) = 0;
  virtual void Zero(StreamId stream, Buffer buffer) = 0;
  // Between device and host memory. The host memory must stay, and be left alone, until an event
  // recorded behind it has happened; in a failed run, until the device is gone. Bytes are counted.
  virtual void CopyToHost(StreamId stream, void* to, Buffer from) = 0;
  virtual void CopyFromHost(StreamId stream, Buffer to, const void* from) = 0;
  // Exact once the copies are known to be done.
  virtual CopiedBytes copied() const = 0;

  // The kernels, enqueued on the compute stream of this device.
  virtual Ops& ops() = 0;
  virtual MemoryPool& memory() = 0;
  // The host side: memory of the machine outside the device's capacity, for what is offloaded, and
  // kernels that the host's threads run over it. They are enqueued on kToHost, in order with the
  // copies that bring their operands.
  virtual Ops& host_ops() = 0;
  virtual MemoryPool& host_memory() = 0;

  // Memory from the pool; what fails (a full region) becomes the device's failure, and the returned
  // buffer may then not be followed, which nothing does because the device skips all work.
  Buffer Allocate(Region region, Category category, DType dtype, int64_t elements,
                  std::string_view label);
  void Free(const Buffer& buffer) { memory().Free(buffer); }
  // The same on the host side, for the whole run.
  Buffer AllocateOnHost(Category category, DType dtype, int64_t elements, std::string_view label);

  // For whoever records the run: what is enqueued from now on is for this, and of this unit of
  // parameters (-1: none).
  virtual void Announce(Activity, int /*unit*/ = -1) {}
  // Null where nothing takes time.
  virtual std::unique_ptr<TimeMarks> MakeTimeMarks() { return nullptr; }

  // How many steps a worker enqueues beyond the one whose results it waits for: 1 where the device
  // would else have nothing to do until the worker has seen them, 0 where the worker's own thread
  // computes.
  virtual int steps_ahead() const { return 0; }
  // Stores when the stream comes here, before an event that is recorded in it afterwards. Only
  // where steps_ahead() is above 0: elsewhere the worker itself sees a step's end when it comes.
  virtual void StoreTime(StreamId /*stream*/, std::chrono::steady_clock::time_point* /*time*/) {}

  // Keeps `error` if it is the first.
  virtual void Fail(absl::Status error) = 0;
  // The device's first failure, or the run's.
  virtual absl::Status status() const = 0;

  // Waits until its streams have done what they have, of which an abort skips what it can; nothing
  // may be enqueued afterwards. The memory stays for other ranks that may still read it.
  virtual void StopStreams() {}
  // What a stream is waiting for now; for kCompute, the worker's thread too. Once the run has
  // failed it stays what it was then. For the report of a failed run, for the watch over silent
  // ranks, and for tests that must know that a thread has arrived at a wait. Thread-safe.
  virtual Waiting CurrentWait(StreamId) const { return {}; }
  std::string WaitingFor(StreamId stream) const { return CurrentWait(stream).what; }
  virtual void SetWaitingFor(StreamId, std::string_view) {}

  // The compute stream's waits for events of the communication stream, so far enqueued.
  virtual int64_t communication_waits() const { return 0; }
  // For how long it stood still in them: communication that computing does not hide. Of those
  // before number `end`, from 0, that were not asked for yet; all are known to be done.
  virtual double SecondsExposed(int64_t /*end*/) { return 0; }
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_DEVICE_H_
