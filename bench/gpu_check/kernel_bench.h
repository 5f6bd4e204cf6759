// SPDX-License-Identifier: Apache-2.0
//
// What the measurements of single kernels share: the device, buffers that no cache holds, and the
// bounds.
#ifndef ZEROBOX_BENCH_GPU_CHECK_KERNEL_BENCH_H_
#define ZEROBOX_BENCH_GPU_CHECK_KERNEL_BENCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/check.h"
#include "ops/cuda/cuda_device.h"
#include "ops/ops.h"

namespace zerobox::gpu_check {

class KernelBench {
 public:
  static absl::StatusOr<std::unique_ptr<KernelBench>> Make(const Gpu& gpu, const Sizes& sizes,
                                                           Report& report);

  cuda::CudaDevice& device() { return *device_; }
  Ops& ops() { return device_->ops(); }
  const Gpu& gpu() const { return gpu_; }

  // What a launch has to do at least: bytes through memory, or operations. A row's bound is that of
  // the one that is given.
  struct Cost {
    double bytes = 0;
    double flops = 0;
    double target = 0;  // share of the bound
  };
  // Measures run(i), for i from 0, and adds a row. Once the device has failed it does nothing.
  void Measure(const std::string& name, const Cost& cost, const std::function<void(int64_t)>& run);

  // Bounds. The first measurement of each becomes it: that of a copy and, where the GPU's nominal
  // peak is not known, of a large matrix product.
  double bytes_a_second = 0;
  double flops_a_second = 0;

 private:
  KernelBench(const Gpu& gpu, const Sizes& sizes, Report& report)
      : gpu_(gpu), sizes_(sizes), report_(report) {}

  const Gpu gpu_;
  const Sizes& sizes_;
  Report& report_;
  Abort abort_;
  std::unique_ptr<cuda::CudaDevice> device_;
  Buffer ahead_;
};

// Buffers for the launches of one kernel: several sets, in rotation, so that more than four times
// what the L2 cache holds has gone through it before a set's turn comes again. Freed together.
class BufferSets {
 public:
  // A launch touches about `bytes_a_launch`.
  BufferSets(KernelBench& bench, int64_t bytes_a_launch);
  ~BufferSets();
  BufferSets(const BufferSets&) = delete;
  BufferSets& operator=(const BufferSets&) = delete;

  // One buffer a set.
  class Rotating {
   public:
    Buffer operator[](int64_t launch) const {
      return buffers_[static_cast<size_t>(launch) % buffers_.size()];
    }
    auto begin() const { return buffers_.begin(); }
    auto end() const { return buffers_.end(); }

   private:
    friend class BufferSets;
    std::vector<Buffer> buffers_;
  };
  Rotating Make(DType dtype, int64_t elements);  // not filled
  // Normal numbers, all different.
  Rotating Random(DType dtype, int64_t elements, float stddev = 1);
  // Numbers of [0, below), small ones more often, as a text's tokens are.
  Rotating Tokens(int64_t elements, int64_t below);
  int64_t size() const { return sets_; }

 private:
  KernelBench& bench_;
  const int64_t sets_;
  std::vector<Buffer> all_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> uploads_;
};

// Tokens as BufferSets::Tokens has them: the logarithm is uniform.
std::vector<int32_t> RandomTokens(int64_t count, int64_t below, uint64_t seed);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_KERNEL_BENCH_H_
