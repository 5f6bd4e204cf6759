// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/wait_times.h"

#include "ops/cuda/status.h"

namespace zerobox::cuda {

WaitTimes::~WaitTimes() {
  unused_.insert(unused_.end(), pairs_.begin(), pairs_.end());
  for (const Pair& pair : unused_) {
    for (const cudaEvent_t event : {pair.before, pair.after}) {
      if (event != nullptr && cudaEventDestroy(event) != cudaSuccess) (void)cudaGetLastError();
    }
  }
}

absl::Status WaitTimes::Begin(cudaStream_t stream) {
  Pair& pair = pairs_.emplace_back();
  if (!unused_.empty()) {
    pair = unused_.back();
    unused_.pop_back();
  } else {
    for (cudaEvent_t* event : {&pair.before, &pair.after}) {
      absl::Status status =
          ToStatus(cudaEventCreateWithFlags(event, cudaEventDefault), "cudaEventCreateWithFlags");
      if (!status.ok()) return status;
    }
  }
  return ToStatus(cudaEventRecord(pair.before, stream), "cudaEventRecord");
}

absl::Status WaitTimes::End(cudaStream_t stream) {
  absl::Status status = ToStatus(cudaEventRecord(pairs_.back().after, stream), "cudaEventRecord");
  if (status.ok()) ++waits_;
  return status;
}

absl::StatusOr<double> WaitTimes::Seconds(int64_t end) {
  double milliseconds = 0;
  for (; asked_ < end && asked_ < waits_; ++asked_) {
    float elapsed = 0;
    absl::Status status =
        ToStatus(cudaEventElapsedTime(&elapsed, pairs_.front().before, pairs_.front().after),
                 "cudaEventElapsedTime");
    if (!status.ok()) return status;
    milliseconds += elapsed;
    unused_.push_back(pairs_.front());
    pairs_.pop_front();
  }
  return milliseconds / 1000;
}

}  // namespace zerobox::cuda
