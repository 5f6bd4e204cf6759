// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/step_profile.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/cuda/cuda_device.h"

namespace zerobox::gpu_check {
namespace {

constexpr std::string_view kFirstOfUpdate = "prepare_step";  // one a step, on the GPU

}  // namespace

TrainHooks StepProfile::Hooks() {
  TrainHooks hooks;
  hooks.recorder = this;
  hooks.after_setup = [this](int, Device& device) {
    static_cast<cuda::CudaDevice&>(device).Enqueue(StreamId::kCompute, "profile",
                                                   [this](cudaStream_t stream) {
                                                     stream_ = stream;
                                                     return absl::OkStatus();
                                                   });
  };
  return hooks;
}

void StepProfile::OnEnqueue(int, StreamId stream, std::string_view op, int64_t) {
  if (stream != StreamId::kCompute || !status_.ok()) return;
  const bool update = op == kFirstOfUpdate;
  updates_ += update;
  const bool inside = updates_ == step_;
  const bool end = update && updates_ == step_ + 1;
  if (!inside && !end) return;
  absl::StatusOr<TimeStamp> stamp = TimeStamp::Make();
  status_ = stamp.status();
  if (status_.ok()) status_ = stamp->Record(stream_);
  if (!status_.ok()) return;
  stamps_.push_back(*std::move(stamp));
  if (inside) names_.emplace_back(op);
}

absl::StatusOr<std::vector<StepProfile::Op>> StepProfile::Take() const {
  if (!status_.ok()) return status_;
  if (names_.empty() || stamps_.size() != names_.size() + 1) {
    return absl::InternalError("the profiled step did not end");
  }
  std::map<std::string, Op> by_name;
  for (size_t i = 0; i < names_.size(); ++i) {
    const absl::StatusOr<double> seconds = stamps_[i + 1].SecondsSince(stamps_[i]);
    if (!seconds.ok()) return seconds.status();
    Op& op = by_name[names_[i]];
    op.name = names_[i];
    ++op.count;
    op.seconds += *seconds;
  }
  std::vector<Op> ops;
  for (auto& [name, op] : by_name) ops.push_back(std::move(op));
  std::sort(ops.begin(), ops.end(), [](const Op& a, const Op& b) { return a.seconds > b.seconds; });
  return ops;
}

}  // namespace zerobox::gpu_check
