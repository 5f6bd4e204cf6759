// SPDX-License-Identifier: Apache-2.0
//
// The time marks of a GPU: events that take times.
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/status.h"
#include "ops/device/recorder.h"

namespace zerobox::cuda {

// A GPU's events know only the time between them. So a series begins with a host function, which
// looks at the clock, and the event behind it, some microseconds later: that is what a series costs
// the compute stream. Events are compared within a series, because their distance is a float of
// milliseconds.
class CudaDevice::CudaTimeMarks final : public TimeMarks {
 public:
  explicit CudaTimeMarks(CudaDevice& device) : device_(device) {}
  ~CudaTimeMarks() override {
    for (const cudaEvent_t event : events_) {
      if (cudaEventDestroy(event) != cudaSuccess) (void)cudaGetLastError();
    }
  }

  void Begin() override {
    used_ = 0;
    device_.EnqueueOnHost(StreamId::kCompute, "clock", [this] {
      begin_ns_ = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
      return absl::OkStatus();
    });
    (void)Record(StreamId::kCompute);
  }
  int Mark(StreamId stream) override { return Record(stream) - 1; }
  absl::StatusOr<std::vector<int64_t>> Times() override {
    std::vector<int64_t> times;
    for (int i = 1; i < used_; ++i) {
      float milliseconds = 0;
      absl::Status status =
          ToStatus(cudaEventElapsedTime(&milliseconds, events_[0], events_[static_cast<size_t>(i)]),
                   "cudaEventElapsedTime");
      if (!status.ok()) {
        Fail(status);
        return device_.status();
      }
      times.push_back(begin_ns_ + static_cast<int64_t>(double{milliseconds} * 1e6));
    }
    return times;
  }

 private:
  int Record(StreamId stream) {
    const int number = used_++;
    if (device_.abort_.failed()) return number;
    absl::Status status;
    if (number == std::ssize(events_)) {
      cudaEvent_t event = nullptr;
      status =
          ToStatus(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
      if (status.ok()) events_.push_back(event);
    }
    if (status.ok()) {
      status =
          ToStatus(cudaEventRecord(events_[static_cast<size_t>(number)], device_.Of(stream).handle),
                   "cudaEventRecord");
    }
    if (!status.ok()) Fail(status);
    return number;
  }
  void Fail(const absl::Status& status) {
    device_.Fail(absl::Status(status.code(), absl::StrCat(status.message(), ", of a time mark")));
  }

  CudaDevice& device_;
  std::vector<cudaEvent_t> events_;  // the first is the series' begin
  int used_ = 0;
  int64_t begin_ns_ = 0;
};

std::unique_ptr<TimeMarks> CudaDevice::MakeTimeMarks() {
  return std::make_unique<CudaTimeMarks>(*this);
}

void CudaDevice::Announce(Activity activity, int unit) {
  if (options_.recorder != nullptr) options_.recorder->OnAnnounce(rank(), activity, unit);
}

}  // namespace zerobox::cuda
