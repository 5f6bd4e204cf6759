// SPDX-License-Identifier: Apache-2.0
//
// How long the GPU takes for what is enqueued on the compute stream.
#ifndef ZEROBOX_BENCH_GPU_CHECK_TIMER_H_
#define ZEROBOX_BENCH_GPU_CHECK_TIMER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/cuda/cuda_device.h"

namespace zerobox::gpu_check {

// An event that takes the time. Moves; the GPU of the calling thread is its own.
class TimeStamp {
 public:
  static absl::StatusOr<TimeStamp> Make();
  ~TimeStamp();
  TimeStamp(TimeStamp&& other) noexcept;
  TimeStamp& operator=(TimeStamp&&) = delete;

  absl::Status Record(cudaStream_t stream);
  // Once both have happened.
  absl::StatusOr<double> SecondsSince(const TimeStamp& start) const;

 private:
  explicit TimeStamp(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_;
};

double Median(std::vector<double> values);

// The median of the times of launch(i), i in [0, launches), between two stamps each, after three to
// warm up (i in [0, 3)). launch enqueues on the compute stream. Before them the GPU gets `ahead` to
// do, so that it does not wait for the host between them.
absl::StatusOr<double> MedianSeconds(cuda::CudaDevice& device, int launches,
                                     const std::function<void()>& ahead,
                                     const std::function<void(int64_t)>& launch);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_TIMER_H_
