// SPDX-License-Identifier: Apache-2.0
//
// CallLog: which collective call the communication stream of a GPU is in, seen from the host. A
// call may wait on the GPU for ranks that never come; the report of a failed run, and the watch
// over silent ranks, name it.
#ifndef ZEROBOX_OPS_CUDA_CALL_LOG_H_
#define ZEROBOX_OPS_CUDA_CALL_LOG_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "ops/collectives/group.h"
#include "ops/cuda/cuda_device.h"

namespace zerobox::cuda {

// Of one rank, on its worker's thread. `device` outlives it. Usually
//   device.Enqueue(StreamId::kCommunication, name, [&](cudaStream_t stream) {
//     status = log.Begin(call, stream); ...the call itself...; status = log.End(stream); ...
//   });
//   device.set_while_waiting([&] { log.Look(); });
class CallLog {
 public:
  explicit CallLog(CudaDevice& device) : device_(device) {}
  ~CallLog();
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  // Records an event of this call's on the communication stream: before its work, and behind it. A
  // call whose End never comes stays begun. Events are created until as many calls are kept as the
  // worker runs ahead, and then used again.
  absl::Status Begin(const CallInfo& call, cudaStream_t stream);
  absl::Status End(cudaStream_t stream);
  // Forgets the calls that have ended, and tells the device (SetWaitingFor) which one the stream is
  // in: Describe(call), since it was first seen there, or "". What cannot be asked is the device's
  // failure.
  void Look();

  size_t calls() const { return calls_.size(); }  // that are kept

 private:
  // Begun, and not known to have ended.
  struct Entry {
    CallInfo call;
    cudaEvent_t begin = nullptr, end = nullptr;
    bool end_recorded = false;
  };
  bool Happened(cudaEvent_t event);

  CudaDevice& device_;
  std::deque<Entry> calls_;        // oldest first
  std::vector<cudaEvent_t> free_;  // that may be recorded again
  size_t look_at_ = 256;           // this many calls
  bool said_ = false;              // the device was told of the first of calls_
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_CALL_LOG_H_
