// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/call_log.h"

#include <algorithm>

#include "ops/cuda/status.h"

namespace zerobox::cuda {

CallLog::~CallLog() {
  for (const Entry& entry : calls_) {
    for (const cudaEvent_t event : {entry.begin, entry.end}) {
      if (event != nullptr) free_.push_back(event);
    }
  }
  for (const cudaEvent_t event : free_) {
    if (cudaEventDestroy(event) != cudaSuccess) (void)cudaGetLastError();
  }
}

absl::Status CallLog::Begin(const CallInfo& call, cudaStream_t stream) {
  // A worker that never has to wait never looks. Not at every call: a question costs a microsecond.
  if (calls_.size() >= look_at_) {
    Look();
    look_at_ = std::max(look_at_, 2 * calls_.size());
  }
  Entry& entry = calls_.emplace_back(Entry{.call = call});
  for (cudaEvent_t* event : {&entry.begin, &entry.end}) {
    if (!free_.empty()) {
      *event = free_.back();
      free_.pop_back();
      continue;
    }
    absl::Status status = ToStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags");
    if (!status.ok()) return status;
  }
  return ToStatus(cudaEventRecord(entry.begin, stream), "cudaEventRecord");
}

absl::Status CallLog::End(cudaStream_t stream) {
  Entry& entry = calls_.back();
  absl::Status status = ToStatus(cudaEventRecord(entry.end, stream), "cudaEventRecord");
  entry.end_recorded = status.ok();  // one that never was has happened, for CUDA
  return status;
}

void CallLog::Look() {
  while (!calls_.empty() && (said_ || Happened(calls_.front().begin))) {
    const Entry& front = calls_.front();
    if (!front.end_recorded || !Happened(front.end)) {
      if (!said_) device_.SetWaitingFor(StreamId::kCommunication, Describe(front.call));
      said_ = true;
      return;
    }
    free_.push_back(front.begin);
    free_.push_back(front.end);
    calls_.pop_front();
    if (said_) device_.SetWaitingFor(StreamId::kCommunication, "");
    said_ = false;
  }
}

bool CallLog::Happened(cudaEvent_t event) {
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) (void)cudaGetLastError();
  if (error == cudaSuccess || error == cudaErrorNotReady) return error == cudaSuccess;
  device_.Fail(ToStatus(error, "cudaEventQuery"));
  return false;
}

}  // namespace zerobox::cuda
