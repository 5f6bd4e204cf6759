// SPDX-License-Identifier: Apache-2.0
//
// The residual connection with dropout on its branch (arXiv:1706.03762, section 5.4):
//   out = x + r branch,  dbranch = r dout,  r = 1 / (1 - p) with probability 1 - p, else 0.
// The mask is drawn again in backward instead of stored: nothing is cheaper to keep than a number
// that can be computed anywhere (ops/philox.h).
//
// Shapes: (B, T, C); a row of elementwise.cuh is a sample, of T C elements, so the place of an
// element in the sample, which is the counter, is the column. 8 elements a thread take two Philox
// blocks. What bounds it: memory, 6 bytes an element forward in bf16, 4 backward; the 140 integer
// instructions a thread hide behind that. To expect: 90% of a copy's bandwidth, also with dropout.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/random.cuh"

namespace zerobox::cuda {
namespace {

template <typename T, bool kDropout, bool kResidual>
struct AddBranch {
  T* out;  // may be x or branch
  const T* x;
  const T* branch;
  int64_t sample_size;
  DropoutDraw dropout;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t sample, int64_t element) const {
    const int64_t i = sample * sample_size + element;
    float values[kCount];
    Read(values, branch + i);
    if constexpr (kDropout) {
      dropout.Apply(values, dropout.samples[sample], static_cast<uint64_t>(element));
    }
    if constexpr (kResidual) {
      float sums[kCount];
      Read(sums, x + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = sums[k] + values[k];
    }
    Write(out + i, values);
  }
};

}  // namespace

template <typename T>
cudaError_t ResidualForward(cudaStream_t stream, T* out, const T* x, const T* branch,
                            SequenceShape shape, const DropoutMask& dropout) {
  const bool aligned = gpu::AreAligned(out, x, branch);
  if (!(dropout.p > 0)) {
    return LaunchElements(stream, 1, shape.elements(), aligned,
                          AddBranch<T, false, true>{out, x, branch, 0, {}});
  }
  const int64_t sample_size = shape.positions * shape.channels;
  return LaunchElements(
      stream, shape.batch, sample_size, aligned,
      AddBranch<T, true, true>{out, x, branch, sample_size, DropoutDraw(dropout)});
}

template <typename T>
cudaError_t DropoutBackward(cudaStream_t stream, T* dbranch, const T* dout, SequenceShape shape,
                            const DropoutMask& dropout) {
  const bool aligned = gpu::AreAligned(dbranch, dout);
  if (!(dropout.p > 0)) {
    if (dbranch == dout) return cudaSuccess;
    return LaunchElements(stream, 1, shape.elements(), aligned,
                          AddBranch<T, false, false>{dbranch, nullptr, dout, 0, {}});
  }
  const int64_t sample_size = shape.positions * shape.channels;
  return LaunchElements(
      stream, shape.batch, sample_size, aligned,
      AddBranch<T, true, false>{dbranch, nullptr, dout, sample_size, DropoutDraw(dropout)});
}

#define ZEROBOX_INSTANCES(T)                                                                \
  template cudaError_t ResidualForward(cudaStream_t, T*, const T*, const T*, SequenceShape, \
                                       const DropoutMask&);                                 \
  template cudaError_t DropoutBackward(cudaStream_t, T*, const T*, SequenceShape,           \
                                       const DropoutMask&);
ZEROBOX_INSTANCES(float)
ZEROBOX_INSTANCES(BFloat16)
#undef ZEROBOX_INSTANCES

}  // namespace zerobox::cuda
