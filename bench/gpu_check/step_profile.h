// SPDX-License-Identifier: Apache-2.0
//
// How long each op of one training step takes on the GPU, from update to update: a time stamp
// before every op of the compute stream, so an op's time is that until the next begins, gaps and
// waits between them included.
#ifndef ZEROBOX_BENCH_GPU_CHECK_STEP_PROFILE_H_
#define ZEROBOX_BENCH_GPU_CHECK_STEP_PROFILE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/timer.h"
#include "ops/device/recorder.h"
#include "trainer/train.h"

namespace zerobox::gpu_check {

// For a run on one GPU, of which it is the recorder; all is called on its worker's thread.
class StepProfile final : public Recorder {
 public:
  // From the update of this step, from 1, to that of the next.
  explicit StepProfile(int64_t step) : step_(step) {}
  TrainHooks Hooks();

  struct Op {
    std::string name;
    int64_t count = 0;
    double seconds = 0;  // of all of them
  };
  // After the run: ops by name, the longest first.
  absl::StatusOr<std::vector<Op>> Take() const;

  void OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t id) override;
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}

 private:
  const int64_t step_;
  int64_t updates_ = 0;
  cudaStream_t stream_ = nullptr;
  absl::Status status_;
  std::vector<std::string> names_;
  std::vector<TimeStamp> stamps_;  // one before each op, and one behind the last
};

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_STEP_PROFILE_H_
