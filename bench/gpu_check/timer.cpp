// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/timer.h"

#include <algorithm>
#include <utility>

#include "ops/cuda/status.h"

namespace zerobox::gpu_check {
namespace {

constexpr int64_t kWarmUp = 3;

void Stamp(cuda::CudaDevice& device, TimeStamp& stamp) {
  device.Enqueue(StreamId::kCompute, "time_stamp",
                 [&](cudaStream_t stream) { return stamp.Record(stream); });
}

}  // namespace

absl::StatusOr<TimeStamp> TimeStamp::Make() {
  cudaEvent_t event = nullptr;
  absl::Status status = cuda::ToStatus(cudaEventCreateWithFlags(&event, cudaEventDefault),
                                       "cudaEventCreateWithFlags");
  if (!status.ok()) return status;
  return TimeStamp(event);
}

TimeStamp::TimeStamp(TimeStamp&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

TimeStamp::~TimeStamp() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}

absl::Status TimeStamp::Record(cudaStream_t stream) {
  return cuda::ToStatus(cudaEventRecord(event_, stream), "cudaEventRecord");
}

absl::StatusOr<double> TimeStamp::SecondsSince(const TimeStamp& start) const {
  float milliseconds = 0;
  absl::Status status = cuda::ToStatus(cudaEventElapsedTime(&milliseconds, start.event_, event_),
                                       "cudaEventElapsedTime");
  if (!status.ok()) return status;
  return 1e-3 * static_cast<double>(milliseconds);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::StatusOr<double> MedianSeconds(cuda::CudaDevice& device, int launches,
                                     const std::function<void()>& ahead,
                                     const std::function<void(int64_t)>& launch) {
  std::vector<TimeStamp> stamps;
  for (int i = 0; i <= launches; ++i) {
    absl::StatusOr<TimeStamp> stamp = TimeStamp::Make();
    if (!stamp.ok()) return stamp.status();
    stamps.push_back(*std::move(stamp));
  }
  for (int64_t i = 0; i < kWarmUp; ++i) launch(i);
  ahead();
  Stamp(device, stamps[0]);
  for (int64_t i = 0; i < launches; ++i) {
    launch(i);
    Stamp(device, stamps[static_cast<size_t>(i) + 1]);
  }
  const std::unique_ptr<Event> done = device.MakeEvent("measured");
  device.Record(*done, StreamId::kCompute);
  if (absl::Status status = device.HostWait(*done); !status.ok()) return status;
  std::vector<double> times;
  for (size_t i = 1; i < stamps.size(); ++i) {
    const absl::StatusOr<double> seconds = stamps[i].SecondsSince(stamps[i - 1]);
    if (!seconds.ok()) return seconds.status();
    times.push_back(*seconds);
  }
  return Median(std::move(times));
}

}  // namespace zerobox::gpu_check
