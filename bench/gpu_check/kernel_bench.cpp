// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/kernel_bench.h"

#include <algorithm>
#include <cmath>

#include "bench/gpu_check/timer.h"

namespace zerobox::gpu_check {

absl::StatusOr<std::unique_ptr<KernelBench>> KernelBench::Make(const Gpu& gpu, const Sizes& sizes,
                                                               Report& report) {
  auto bench = std::unique_ptr<KernelBench>(new KernelBench(gpu, sizes, report));
  RegionBytes regions{};
  regions[static_cast<size_t>(Region::kPersistent)] = 2 * sizes.copy_bytes;  // from and to
  regions[static_cast<size_t>(Region::kActivations)] = sizes.memory_bytes;
  auto device = cuda::CudaDevice::Make({.regions = regions}, bench->abort_);
  if (!device.ok()) return device.status();
  bench->device_ = *std::move(device);
  bench->ahead_ = bench->device_->Allocate(Region::kPersistent, Category::kWorkspace,
                                           DType::kBFloat16, sizes.copy_bytes, "copied");
  bench->ops().FillNormal(bench->ahead_, /*seed=*/1, /*stream=*/0, 0, 1);
  bench->flops_a_second = gpu.nominal_flops;
  const int64_t half = sizes.copy_bytes / 2;
  const Buffer from = bench->ahead_.Slice(0, half), to = bench->ahead_.Slice(half, half);
  bench->Measure("copy on the device", {.bytes = 2.0 * static_cast<double>(from.bytes())},
                 [&](int64_t) { bench->device().Copy(StreamId::kCompute, to, from); });
  return bench;
}

void KernelBench::Measure(const std::string& name, const Cost& cost,
                          const std::function<void(int64_t)>& run) {
  if (!device_->status().ok()) return;
  const int64_t half = ahead_.elements / 2;
  const auto ahead = [&] {
    for (int i = 0; i < 3; ++i) {
      device_->Copy(StreamId::kCompute, ahead_.Slice(half, half), ahead_.Slice(0, half));
    }
  };
  const absl::StatusOr<double> seconds = MedianSeconds(*device_, sizes_.launches, ahead, run);
  if (!seconds.ok()) return report_.Fail(seconds.status(), name);
  const bool memory = cost.bytes > 0;
  const double rate = (memory ? cost.bytes : cost.flops) / *seconds;
  double& bound = memory ? bytes_a_second : flops_a_second;
  if (bound == 0) bound = rate;
  report_.Measure({.name = name,
                   .time = TimeText(*seconds),
                   .measured = memory ? BandwidthText(rate) : FlopsText(rate),
                   .bound = memory ? BandwidthText(bound) : FlopsText(bound),
                   .share = rate / bound,
                   .target = cost.target});
}

BufferSets::BufferSets(KernelBench& bench, int64_t bytes_a_launch)
    : bench_(bench),
      sets_(1 + 4 * bench.gpu().cache_bytes / std::max<int64_t>(1, bytes_a_launch)) {}

BufferSets::~BufferSets() {
  for (auto buffer = all_.rbegin(); buffer != all_.rend(); ++buffer) bench_.device().Free(*buffer);
  if (uploads_.empty()) return;
  const std::unique_ptr<Event> uploaded = bench_.device().MakeEvent("uploaded");
  bench_.device().Record(*uploaded, StreamId::kCompute);
  // A failed device keeps its status; then nothing reads the uploads once its streams stop.
  if (!bench_.device().HostWait(*uploaded).ok()) bench_.device().StopStreams();
}

BufferSets::Rotating BufferSets::Make(DType dtype, int64_t elements) {
  Rotating made;
  for (int64_t i = 0; i < sets_; ++i) {
    all_.push_back(bench_.device().Allocate(Region::kActivations, Category::kWorkspace, dtype,
                                            elements, "measured"));
    made.buffers_.push_back(all_.back());
  }
  return made;
}

BufferSets::Rotating BufferSets::Random(DType dtype, int64_t elements, float stddev) {
  uint64_t stream = all_.size();
  Rotating made = Make(dtype, elements);
  for (const Buffer& buffer : made) {
    bench_.ops().FillNormal(buffer, /*seed=*/1, ++stream, 0, stddev);
  }
  return made;
}

BufferSets::Rotating BufferSets::Tokens(int64_t elements, int64_t below) {
  Rotating made = Make(DType::kInt32, elements);
  for (const Buffer& buffer : made) {
    uploads_.push_back(std::make_unique<std::vector<int32_t>>(
        RandomTokens(elements, below, /*seed=*/uploads_.size())));
    bench_.device().CopyFromHost(StreamId::kCompute, buffer, uploads_.back()->data());
  }
  return made;
}

std::vector<int32_t> RandomTokens(int64_t count, int64_t below, uint64_t seed) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  uint64_t state = seed * 2 + 1;
  for (int32_t& token : tokens) {
    // Knuth's generator of 64 bits, of which the upper ones are good.
    state = state * 6364136223846793005U + 1442695040888963407U;
    const double uniform = static_cast<double>(state >> 40) / static_cast<double>(1 << 24);
    token = static_cast<int32_t>(std::pow(static_cast<double>(below), uniform)) - 1;
  }
  return tokens;
}

}  // namespace zerobox::gpu_check
