// SPDX-License-Identifier: Apache-2.0
//
// WaitTimes: for how long a stream of a GPU stands still in its waits. Each is put between two
// events that take times.
#ifndef ZEROBOX_OPS_CUDA_WAIT_TIMES_H_
#define ZEROBOX_OPS_CUDA_WAIT_TIMES_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"

namespace zerobox::cuda {

// On the thread of the stream's worker.
class WaitTimes {
 public:
  WaitTimes() = default;
  ~WaitTimes();
  WaitTimes(const WaitTimes&) = delete;
  WaitTimes& operator=(const WaitTimes&) = delete;

  // Calls `wait`, which puts a wait into the stream, between the two events. They are used again
  // once their time was asked for, so that none is created after the first steps.
  template <typename Wait>
  absl::Status Measure(cudaStream_t stream, const Wait& wait) {
    absl::Status status = Begin(stream);
    if (status.ok()) status = wait();
    if (status.ok()) status = End(stream);
    return status;
  }
  int64_t waits() const { return waits_; }  // so far
  // The sum over the waits before number `end`, from 0, that were not asked for yet and are over.
  // Each is an interval on the GPU's clock, which ticks every half microsecond or so: one in which
  // nothing was waited for still takes a few of these.
  absl::StatusOr<double> Seconds(int64_t end);

 private:
  struct Pair {
    cudaEvent_t before = nullptr, after = nullptr;
  };
  absl::Status Begin(cudaStream_t stream);
  absl::Status End(cudaStream_t stream);

  std::deque<Pair> pairs_;  // of waits asked_ to waits_ - 1, and of one that has begun
  std::vector<Pair> unused_;
  int64_t asked_ = 0, waits_ = 0;
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_WAIT_TIMES_H_
