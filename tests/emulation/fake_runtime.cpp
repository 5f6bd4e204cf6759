// SPDX-License-Identifier: Apache-2.0
//
// The runtime's functions, against the toolkit's own header.
#include "tests/emulation/fake_runtime.h"

#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/emulation/fake_machine.h"

namespace zerobox::fake_cuda {
namespace {

// Runs body(machine) under the lock, unless the call is to fail. `device`: the calling thread's, or
// the one that it becomes.
template <typename Body>
cudaError_t Call(const char* function, const Body& body, std::optional<int> device = {}) {
  if (Machine::runs_work()) {
    Report(std::string(function) + " was called by a host function, which CUDA forbids");
    return cudaErrorNotPermitted;
  }
  Machine& machine = Machine::Get();
  const std::lock_guard<std::mutex> lock(machine.mutex());
  HostThread& thread = Machine::Get().thread();
  cudaError_t error = machine.CountCall(function, device.value_or(thread.device));
  if (error == cudaSuccess) error = machine.broken(thread.device);
  if (error == cudaSuccess) error = body(machine);
  if (error != cudaErrorNotReady) thread.Acts();
  if (error != cudaSuccess) thread.last_error = error;
  return error;
}

// Whether `what`, a stream or a record of an event, is ready; asked under the lock.
template <typename Ready>
cudaError_t Query(Machine& machine, const void* what, const Ready& ready, const Clock& clock) {
  if (!ready() && !machine.Poll(what, ready)) return cudaErrorLaunchTimeout;
  const cudaError_t broken = machine.broken(Machine::Get().thread().device);
  if (broken != cudaSuccess) return broken;  // by what was run meanwhile
  if (!ready()) return cudaErrorNotReady;
  Join(Machine::Get().thread().clock, clock);
  return cudaSuccess;
}

void CheckTiming(const Machine& machine, const CUevent_st& event, const char* who) {
  if (!event.timing || machine.options().timing) return;
  Report(std::string(who) + " for an event that takes times");
}

cudaError_t Allocate(Machine& machine, void** data, size_t bytes, bool pinned) {
  const int device = Machine::Get().thread().device;
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  const int64_t free = machine.options().device_bytes - machine.memory().LiveBytes(device);
  if (!pinned && static_cast<int64_t>(bytes) > free) return cudaErrorMemoryAllocation;
  *data = machine.memory().Allocate(bytes, device, pinned);
  return cudaSuccess;
}

cudaError_t Free(Machine& machine, void* data, bool pinned) {
  if (data == nullptr) return cudaSuccess;
  const Memory::Allocation* allocation = machine.memory().Find(data, 1);
  if (allocation == nullptr || allocation->pinned != pinned) return cudaErrorInvalidValue;
  if (!machine.Idle(allocation->device)) {
    Report("memory is freed while work is queued on device " + std::to_string(allocation->device));
  }
  return machine.memory().Free(data) ? cudaSuccess : cudaErrorInvalidValue;
}

bool RightDirection(const Memory& memory, const void* to, const void* from, size_t bytes,
                    cudaMemcpyKind kind) {
  const Memory::Allocation* target = memory.Find(to, bytes);
  const Memory::Allocation* source = memory.Find(from, bytes);
  if (target == nullptr || source == nullptr) {
    Report("cudaMemcpyAsync with memory that is pageable, or ends too early");
    return false;
  }
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return source->pinned && !target->pinned;
    case cudaMemcpyDeviceToHost:
      return !source->pinned && target->pinned;
    case cudaMemcpyDeviceToDevice:
      return !source->pinned && !target->pinned;
    default:
      return false;
  }
}

}  // namespace

const char* Name(Policy policy) {
  switch (policy) {
    case Policy::kCommunicationFirst:
      return "communication first";
    case Policy::kComputeFirst:
      return "compute first";
    case Policy::kRandom:
      return "random";
  }
  return "";
}

void Reset(const Options& options) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().Reset(options);
  TakeReports();
}

cudaError_t Enqueue(cudaStream_t stream, std::string name, std::vector<Access> accesses,
                    std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  return Machine::Get().Push(stream, {.kind = Operation::Kind::kWork,
                                      .name = std::move(name),
                                      .accesses = std::move(accesses),
                                      .work = std::move(work),
                                      .record = nullptr,
                                      .meeting = nullptr,
                                      .host = {}});
}

void Touch(const Access& access) { Machine::Get().Touch(access); }

void HostAccess(const Access& access) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().Touch(access);
}

void NameMemory(std::function<std::string(const void*)> name) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().memory().set_name(std::move(name));
}

void FailCall(const std::string& function, int nth, cudaError_t error, int device) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().FailCall(function, nth, error, device);
}

void FailWork(int nth, cudaError_t error) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().FailWork(nth, error);
}

void Hold(bool hold) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Machine::Get().Hold(hold);
}

cudaError_t Injected(const char* function) {
  return Call(function, [](Machine&) { return cudaSuccess; });
}

Idle::Idle() { Machine::Get().OnSleep(&point_); }
Idle::~Idle() { Machine::Get().OnReady(&point_); }

std::map<std::string, int> Calls(int device) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  return Machine::Get().calls(device);
}

int64_t OperationsRun() {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  return Machine::Get().operations_run();
}

Live LiveNow() {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  Live live = Machine::Get().memory().live();
  live.streams = Machine::Get().live_streams();
  live.events = Machine::Get().live_events;
  return live;
}

}  // namespace zerobox::fake_cuda

using zerobox::fake_cuda::Call;
using zerobox::fake_cuda::Machine;
using zerobox::fake_cuda::Operation;
using zerobox::fake_cuda::Report;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return Call("cudaGetDeviceCount", [&](Machine& machine) {
    *count = machine.options().devices;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaSetDevice(int device) {
  const auto set = [&](Machine& machine) {
    if (device < 0 || device >= machine.options().devices) return cudaErrorInvalidDevice;
    Machine::Get().thread().device = device;
    return machine.broken(device);
  };
  return Call("cudaSetDevice", set, device);
}

cudaError_t cudaGetDevice(int* device) {
  return Call("cudaGetDevice", [&](Machine&) {
    *device = Machine::Get().thread().device;
    return cudaSuccess;
  });
}

// The Hopper generation's, but small: a grid that fills it is soon run.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return Call("cudaDeviceGetAttribute", [&](Machine&) {
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 * 1024;
        return cudaSuccess;
      default:
        Report("cudaDeviceGetAttribute: attribute " + std::to_string(attribute) + " is not known");
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  return Call("cudaGetDeviceProperties", [&](Machine& machine) {
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "no GPU (the emulator)");
    properties->totalGlobalMem = static_cast<size_t>(machine.options().device_bytes);
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 4096;
    return cudaSuccess;
  });
}

// 0-1 and 2-3 are linked by NVLink, 0-2 and 1-3 over PCIe, and the others not at all.
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int a, int b) {
  return Call("cudaDeviceGetP2PAttribute", [&](Machine&) {
    const int distance = a ^ b;
    *value = attribute == cudaDevP2PAttrNativeAtomicSupported ? distance == 1 : distance != 3;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return Call("cudaDeviceGetPCIBusId", [&](Machine&) {
    std::snprintf(id, static_cast<size_t>(length), "ffff:%02x:00.0", device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Call("cudaDeviceGetStreamPriorityRange", [&](Machine&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call("cudaMemGetInfo", [&](Machine& machine) {
    *total = static_cast<size_t>(machine.options().device_bytes);
    *free =
        *total - static_cast<size_t>(machine.memory().LiveBytes(Machine::Get().thread().device));
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return Call("cudaMalloc", [&](Machine& machine) {
    return zerobox::fake_cuda::Allocate(machine, data, bytes, /*pinned=*/false);
  });
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return Call("cudaHostAlloc", [&](Machine& machine) {
    return zerobox::fake_cuda::Allocate(machine, data, bytes, /*pinned=*/true);
  });
}

cudaError_t cudaFree(void* data) {
  return Call("cudaFree",
              [&](Machine& machine) { return zerobox::fake_cuda::Free(machine, data, false); });
}

cudaError_t cudaFreeHost(void* data) {
  return Call("cudaFreeHost",
              [&](Machine& machine) { return zerobox::fake_cuda::Free(machine, data, true); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return Call("cudaStreamCreateWithPriority", [&](Machine& machine) {
    if (flags != cudaStreamNonBlocking) Report("a stream is created that is not non-blocking");
    return machine.CreateStream(Machine::Get().thread().device, stream);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call("cudaStreamQuery", [&](Machine& machine) {
    const auto ready = [stream] { return stream->queue.empty(); };
    return zerobox::fake_cuda::Query(machine, stream, ready, stream->clock);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call("cudaStreamSynchronize", [&](Machine& machine) -> cudaError_t {
    const auto ready = [stream] { return stream->queue.empty(); };
    // Only used by threads that nobody else waits for: it holds the lock.
    while (!ready()) {
      if (!machine.Poll(stream, ready)) return cudaErrorLaunchTimeout;
    }
    zerobox::fake_cuda::Join(Machine::Get().thread().clock, stream->clock);
    return machine.broken(stream->device);
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call("cudaStreamDestroy", [&](Machine& machine) {
    machine.DestroyStream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Call("cudaEventCreateWithFlags", [&](Machine& machine) {
    *event = new CUevent_st{.device = Machine::Get().thread().device,
                            .timing = (flags & cudaEventDisableTiming) == 0,
                            .latest = nullptr};
    ++machine.live_events;
    return cudaSuccess;
  });
}

// Where it fails the event is gone too, with the device that is broken.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = Call("cudaEventDestroy", [&](Machine& machine) {
    --machine.live_events;
    return cudaSuccess;
  });
  delete event;
  return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call("cudaEventRecord", [&](Machine& machine) {
    auto record = std::make_shared<zerobox::fake_cuda::EventRecord>();
    const cudaError_t error = machine.Push(stream, {.kind = Operation::Kind::kRecord,
                                                    .name = "cudaEventRecord",
                                                    .accesses = {},
                                                    .work = nullptr,
                                                    .record = record,
                                                    .meeting = nullptr,
                                                    .host = {}});
    if (error == cudaSuccess) event->latest = std::move(record);
    return error;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Call("cudaStreamWaitEvent", [&](Machine& machine) {
    if (event->latest == nullptr) {
      Report("cudaStreamWaitEvent on an event that was never recorded: CUDA does not wait for it");
      return cudaSuccess;
    }
    zerobox::fake_cuda::CheckTiming(machine, *event, "a stream waits");
    return machine.Push(stream, {.kind = Operation::Kind::kWait,
                                 .name = "cudaStreamWaitEvent",
                                 .accesses = {},
                                 .work = nullptr,
                                 .record = event->latest,
                                 .meeting = nullptr,
                                 .host = {}});
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call("cudaEventQuery", [&](Machine& machine) {
    const std::shared_ptr<zerobox::fake_cuda::EventRecord> record = event->latest;
    if (record == nullptr) return cudaSuccess;
    zerobox::fake_cuda::CheckTiming(machine, *event, "the host waits");
    return zerobox::fake_cuda::Query(
        machine, record.get(), [record] { return record->done; }, record->clock);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Call("cudaEventElapsedTime", [&](Machine&) {
    if (!start->timing || !end->timing || start->latest == nullptr || end->latest == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!start->latest->done || !end->latest->done) return cudaErrorNotReady;
    *milliseconds =
        std::chrono::duration<float, std::milli>(end->latest->when - start->latest->when).count();
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", [&](Machine& machine) {
    if (bytes == 0) return cudaSuccess;
    if (!zerobox::fake_cuda::RightDirection(machine.memory(), to, from, bytes, kind)) {
      return cudaErrorInvalidMemcpyDirection;
    }
    return machine.Push(stream, {.kind = Operation::Kind::kWork,
                                 .name = "cudaMemcpyAsync",
                                 .accesses = {{from, bytes, false}, {to, bytes, true}},
                                 .work = [=] { std::memmove(to, from, bytes); },
                                 .record = nullptr,
                                 .meeting = nullptr,
                                 .host = {}});
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return Call("cudaMemsetAsync", [&](Machine& machine) {
    return machine.Push(stream, {.kind = Operation::Kind::kWork,
                                 .name = "cudaMemsetAsync",
                                 .accesses = {{data, bytes, true}},
                                 .work = [=] { std::memset(data, value, bytes); },
                                 .record = nullptr,
                                 .meeting = nullptr,
                                 .host = {}});
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return Call("cudaLaunchHostFunc", [&](Machine& machine) {
    return machine.Push(stream, {.kind = Operation::Kind::kWork,
                                 .name = "a host function",
                                 .accesses = {},
                                 .work = [=] { function(argument); },
                                 .record = nullptr,
                                 .meeting = nullptr,
                                 .host = {}});
  });
}

// Not counted, and a thread that asks between two queries still waits.
cudaError_t cudaGetLastError() {
  return std::exchange(Machine::Get().thread().last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() { return Machine::Get().thread().last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorLaunchTimeout:
      return "cudaErrorLaunchTimeout";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "unknown error";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  return Call("cudaDriverGetVersion", [&](Machine&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return Call("cudaRuntimeGetVersion", [&](Machine&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

}  // extern "C"
