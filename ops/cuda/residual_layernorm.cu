// SPDX-License-Identifier: Apache-2.0
//
// The residual connection and the layer normalization behind it, in one kernel:
//   sum = x + r branch,  out = LayerNorm(sum)
// with residual.cu's dropout mask r and layernorm.cu's formulas, and the bits that the two kernels
// would give: the sum is rounded as it is stored, and the statistics are those of the rounded one,
// which is also what backward reads.
//
// What bounds it: memory. It reads x and branch and writes sum and out, 8 bytes an element in bf16;
// two kernels would read the sum again, 10 bytes. To expect: 90% of a copy's bandwidth. Mapping: a
// warp a row, which stays in registers from the sum on (layernorm.cuh). With dropout, two Philox
// blocks for 8 elements hide behind the accesses.
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/layernorm.cuh"
#include "ops/cuda/random.cuh"

namespace zerobox::cuda {
namespace {

using namespace layernorm;  // NOLINT(google-build-using-namespace): of our own header

struct Shape {
  uint32_t rows;       // B T
  uint32_t positions;  // T
  int channels;        // C
};

// The elements of a row and its dropout mask: where the row is in its sample.
template <bool kDropout>
struct MaskOfRow {
  const DropoutDraw& draw;
  int64_t sample = 0;
  uint64_t first = 0;

  __device__ __forceinline__ MaskOfRow(const DropoutDraw& draw, const Shape& shape, uint32_t row)
      : draw(draw) {
    if constexpr (kDropout) {
      sample = draw.samples[row / shape.positions];
      first = static_cast<uint64_t>(row % shape.positions) * static_cast<uint64_t>(shape.channels);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void Apply(float (&values)[kCount], int channel) const {
    if constexpr (kDropout) draw.Apply(values, sample, first + static_cast<uint64_t>(channel));
  }
};

// As many as the registers hold: a lane's packs of x and branch are all loaded before the first
// sum.
template <typename T, int kPacks>
[[maybe_unused]] constexpr int kBlocksPerMultiprocessor = kPacks * sizeof(T) <= 16 ? 2 : 1;

// `sum` may be x or branch: a lane has read what it writes.
template <typename T, bool kDropout, int kPacks>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<T, kPacks>)
    PackedKernel(T* sum, T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                 const T* x, const T* branch, const T* __restrict__ weight,
                 const T* __restrict__ bias, Shape shape,
                 const __grid_constant__ DropoutDraw dropout) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) return;  // the whole warp, and nothing below waits for other warps
  const int64_t begin = row * shape.channels;
  gpu::Pack<T, kPack> x_packs[kPacks], branch_packs[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int channel = ChannelOf(p);
    if (channel >= shape.channels) continue;
    x_packs[p] = gpu::Load<kPack>(x + begin + channel);
    branch_packs[p] = gpu::Load<kPack>(branch + begin + channel);
  }
  const MaskOfRow<kDropout> mask(dropout, shape, static_cast<uint32_t>(row));
  float values[kPacks][kPack];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int channel = ChannelOf(p);
    if (channel >= shape.channels) continue;
    float of_branch[kPack];
    gpu::Unpack(of_branch, branch_packs[p]);
    gpu::Unpack(values[p], x_packs[p]);
    mask.Apply(of_branch, channel);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[p][i] += of_branch[i];
    const auto rounded = gpu::PackFloats<T>(values[p]);
    gpu::Store<kPack>(sum + begin + channel, rounded);
    gpu::Unpack(values[p], rounded);
  }
  Normalize(out + begin, mean + row, rstd + row, values, weight, bias, shape.channels);
}

template <typename T, bool kDropout>
__global__ void __launch_bounds__(kThreads)
    PlainKernel(T* sum, T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                const T* x, const T* branch, const T* __restrict__ weight,
                const T* __restrict__ bias, Shape shape,
                const __grid_constant__ DropoutDraw dropout) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) return;
  const MaskOfRow<kDropout> mask(dropout, shape, static_cast<uint32_t>(row));
  const int64_t begin = row * shape.channels;
  for (int c = gpu::Lane(); c < shape.channels; c += gpu::kLanes) {
    float value[1] = {gpu::ToFloat(branch[begin + c])};
    mask.Apply(value, c);
    sum[begin + c] = gpu::FromFloat<T>(gpu::ToFloat(x[begin + c]) + value[0]);
  }
  // A lane reads the sums that it has written.
  NormalizePlainly(out + begin, mean + row, rstd + row, static_cast<const T*>(sum + begin), weight,
                   bias, shape.channels);
}

}  // namespace

template <typename T>
cudaError_t ResidualLayerNormForward(cudaStream_t stream, T* sum, T* out, float* mean, float* rstd,
                                     const T* x, const T* branch, const T* weight, const T* bias,
                                     SequenceShape shape, const DropoutMask& dropout) {
  if (shape.elements() == 0) return cudaSuccess;
  const int packs = PacksFor(shape.channels);
  const Shape sizes = {.rows = static_cast<uint32_t>(shape.rows()),
                       .positions = static_cast<uint32_t>(shape.positions),
                       .channels = static_cast<int>(shape.channels)};
  const bool drops = dropout.p > 0;
  const DropoutDraw draw = drops ? DropoutDraw(dropout) : DropoutDraw();
  const auto launch = [&](auto kernel) {
    return gpu::Launch(stream, GridOfRows(shape.rows()), dim3(kThreads), 0, kernel, sum, out, mean,
                       rstd, x, branch, weight, bias, sizes, draw);
  };
  if (packs == 0 || !gpu::AreAligned(sum, out, x, branch, weight, bias)) {
    return launch(drops ? PlainKernel<T, true> : PlainKernel<T, false>);
  }
  return WithPacks(packs, [&](auto instance) {
    return launch(drops ? PackedKernel<T, true, instance()> : PackedKernel<T, false, instance()>);
  });
}

#define ZEROBOX_INSTANCES(T)                                                                    \
  template cudaError_t ResidualLayerNormForward(cudaStream_t, T*, T*, float*, float*, const T*, \
                                                const T*, const T*, const T*, SequenceShape,    \
                                                const DropoutMask&);
ZEROBOX_INSTANCES(float)
ZEROBOX_INSTANCES(BFloat16)
#undef ZEROBOX_INSTANCES

}  // namespace zerobox::cuda
