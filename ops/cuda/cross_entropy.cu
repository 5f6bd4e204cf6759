// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy of the softmax, in nats, over the V logits z of a row with target y:
//   loss = -log softmax(z)[y] = log sum_i e^(z_i - max z) + max z - z_y
//   dz_i = scale (softmax(z)_i - [i = y]),  written over z.
//
// Shapes: logits (rows, V), any V: rows need not begin on 16 bytes. Mapping: a block of 1024
// threads a row (of 128 where V is so small that they read all of it at once, as with bytes for
// tokens), in packs of 8 logits that are aligned wherever the row begins; the packs at its ends are
// read element by element. First pass: each thread keeps its largest logit and the sum of
// exponentials relative to it, which it rescales once a pack when a larger one comes
// (arXiv:1805.02867, section 3); then the block combines the threads'. Second pass, backward alone:
// every thread reads again the packs that it read before, and overwrites them.
//
// What bounds it: memory. Forward 2 bytes a logit in bf16; backward 4, if what the second pass
// reads is still in the L2 cache. So few rows must be in flight: with 1024 threads and at most 32
// registers a thread there are 2 blocks a multiprocessor, 264 rows of GPT-2 or 27 MB on an H100,
// whose cache holds 50. Smaller blocks would be more rows. Rows are taken from the last to the
// first, because the matrix product before wrote the last ones last. To expect: 85% of a copy's
// bandwidth.
//
// A row's bits depend on where it begins within 16 bytes, as that decides which thread adds what.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

constexpr int kManyThreads = 1024;
constexpr int kFewThreads = 128;
// Of one multiprocessor; with 2048 each has at most 32 registers. Some generations hold fewer.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
[[maybe_unused]] constexpr int kResidentThreads = 1536;
#else
[[maybe_unused]] constexpr int kResidentThreads = 2048;
#endif

// The packs of a row. Pack i holds elements Start(i) .. Start(i) + 7, of which some at the ends may
// be outside [0, size).
template <typename T>
struct RowPacks {
  T* row;
  int size;
  int before;  // elements between the last address of 16 bytes and the row

  __device__ RowPacks(T* row, int size)
      : row(row),
        size(size),
        before(static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T))) {}
  __device__ __forceinline__ int Start(int i) const { return i * kPack - before; }
  __device__ __forceinline__ bool Whole(int start) const {
    return start >= 0 && start + kPack <= size;
  }
  // -inf outside.
  __device__ __forceinline__ void Load(float (&values)[kPack], int start) const {
    if (Whole(start)) {
      Read(values, row + start);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const int i = start + k;
        values[k] = i >= 0 && i < size ? gpu::ToFloat(row[i]) : -INFINITY;
      }
    }
  }
  __device__ __forceinline__ void Store(const float (&values)[kPack], int start) const {
    if (Whole(start)) {
      Write(row + start, values);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const int i = start + k;
        if (i >= 0 && i < size) row[i] = gpu::FromFloat<T>(values[k]);
      }
    }
  }
};

// What is finite to subtract from logits of which m is the largest.
__device__ __forceinline__ float Finite(float m) { return m == -INFINITY ? 0.0f : m; }
// e^(z - m). The difference comes first: z log2(e) - m log2(e) would round both.
__device__ __forceinline__ float Exponential(float z, float m) {
  return gpu::Exp2Approx((z - m) * gpu::kLog2E);
}

struct Statistics {
  float maximum;  // 0 where all are -inf
  float sum;      // of the exponentials relative to it
};

// A NaN does not show in the maximum, but its exponential is one.
template <int kThreads, typename T>
__device__ __forceinline__ Statistics RowStatistics(const RowPacks<T>& packs) {
  float maximum = -INFINITY, sum = 0;
#pragma unroll 2
  for (int start = packs.Start(static_cast<int>(threadIdx.x)); start < packs.size;
       start += kThreads * kPack) {
    float z[kPack];
    packs.Load(z, start);
    float m = maximum;
#pragma unroll
    for (int k = 0; k < kPack; ++k) m = fmaxf(m, z[k]);
    sum *= Exponential(maximum, Finite(m));
    maximum = m;
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum += Exponential(z[k], Finite(m));
  }
  const float m = Finite(gpu::BlockReduce<kThreads>(maximum, gpu::Max(), -INFINITY));
  return {m, gpu::BlockReduce<kThreads>(sum * Exponential(Finite(maximum), m), gpu::Sum(), 0.0f)};
}

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, kResidentThreads / kThreads)
    ForwardKernel(float* __restrict__ losses, const T* __restrict__ logits,
                  const int32_t* __restrict__ targets, int vocabulary) {
  const int64_t row = gridDim.x - 1 - blockIdx.x;
  const int target = targets[row];
  if (target < 0) {  // the whole block
    if (threadIdx.x == 0) losses[row] = 0;
    return;
  }
  const T* const z = logits + row * vocabulary;
  const Statistics statistics = RowStatistics<kThreads>(RowPacks<const T>(z, vocabulary));
  if (threadIdx.x == 0) {
    losses[row] = logf(statistics.sum) + (statistics.maximum - gpu::ToFloat(z[target]));
  }
}

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, kResidentThreads / kThreads)
    BackwardKernel(T* __restrict__ logits, const int32_t* __restrict__ targets, int vocabulary,
                   float scale) {
  const int64_t row = gridDim.x - 1 - blockIdx.x;
  const int target = targets[row];
  const RowPacks<T> packs(logits + row * vocabulary, vocabulary);
  float maximum = 0, factor = 0;
  if (target >= 0) {
    const Statistics statistics = RowStatistics<kThreads>(packs);
    maximum = statistics.maximum;
    factor = scale / statistics.sum;
  }
#pragma unroll 1
  for (int start = packs.Start(static_cast<int>(threadIdx.x)); start < vocabulary;
       start += kThreads * kPack) {
    float z[kPack] = {};
    if (target >= 0) {
      packs.Load(z, start);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float of_target = start + k == target ? scale : 0.0f;
        z[k] = fmaf(Exponential(z[k], maximum), factor, -of_target);
      }
    }
    packs.Store(z, start);
  }
}

// Calls launch.operator()<threads of a block>(), for rows of V logits that may begin anywhere.
template <typename Launch>
cudaError_t WithThreads(int64_t vocabulary, const Launch& launch) {
  if (vocabulary <= (kFewThreads - 1) * kPack) return launch.template operator()<kFewThreads>();
  return launch.template operator()<kManyThreads>();
}

}  // namespace

template <typename T>
cudaError_t CrossEntropyForward(cudaStream_t stream, float* losses, const T* logits,
                                const int32_t* targets, int64_t rows, int64_t vocabulary) {
  if (rows == 0) return cudaSuccess;
  return WithThreads(vocabulary, [&]<int kThreads>() {
    return gpu::Launch(stream, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0,
                       ForwardKernel<T, kThreads>, losses, logits, targets,
                       static_cast<int>(vocabulary));
  });
}

template <typename T>
cudaError_t CrossEntropyBackward(cudaStream_t stream, T* logits, const int32_t* targets,
                                 int64_t rows, int64_t vocabulary, float scale) {
  if (rows == 0) return cudaSuccess;
  return WithThreads(vocabulary, [&]<int kThreads>() {
    return gpu::Launch(stream, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0,
                       BackwardKernel<T, kThreads>, logits, targets, static_cast<int>(vocabulary),
                       scale);
  });
}

template cudaError_t CrossEntropyForward(cudaStream_t, float*, const float*, const int32_t*,
                                         int64_t, int64_t);
template cudaError_t CrossEntropyForward(cudaStream_t, float*, const BFloat16*, const int32_t*,
                                         int64_t, int64_t);
template cudaError_t CrossEntropyBackward(cudaStream_t, float*, const int32_t*, int64_t, int64_t,
                                          float);
template cudaError_t CrossEntropyBackward(cudaStream_t, BFloat16*, const int32_t*, int64_t, int64_t,
                                          float);

}  // namespace zerobox::cuda
