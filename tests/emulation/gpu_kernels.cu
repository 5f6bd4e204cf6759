// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/gpu.cuh"
#include "tests/emulation/gpu_kernels.h"

namespace zerobox::gpu_kernels {
namespace {

constexpr int kReduceThreads = 96;

__global__ void __launch_bounds__(kReduceThreads)
    ReduceRowsKernel(float* sums, float* maxima, const float* x, int columns) {
  const float* row = x + static_cast<size_t>(blockIdx.x) * columns;
  float sum = 0, most = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += kReduceThreads) {
    sum += row[i];
    most = fmaxf(most, row[i]);
  }
  sum = gpu::BlockReduce<kReduceThreads>(sum, gpu::Sum(), 0.0f);
  most = gpu::BlockReduce<kReduceThreads>(most, gpu::Max(), -INFINITY);
  if (threadIdx.x == kReduceThreads - 1) {
    sums[blockIdx.x] = sum;
    maxima[blockIdx.x] = most;
  }
}

__global__ void ShufflesKernel(int* out) {
  const int lane = gpu::Lane();
  const int odd = lane % 2;
  int* mine = out + 32 * lane;
  mine[0] = gpu::WarpReduce<4>(lane, gpu::Sum());
  mine[1] = gpu::ShuffleXor(lane, 5);
  mine[2] = gpu::ShuffleFrom(lane, 7);
  mine[3] = static_cast<int>(__ballot_sync(gpu::kAllLanes, odd));
  mine[4] = __any_sync(gpu::kAllLanes, odd);
  mine[5] = __all_sync(gpu::kAllLanes, odd);
}

constexpr int kCopyThreads = 32, kTile = 8 * kCopyThreads;

// The idiom of our pipelines: one barrier a tile, behind which the next tile's copy begins.
__global__ void __launch_bounds__(kCopyThreads)
    CopyAsyncKernel(BFloat16* to, const BFloat16* from, int n, int valid) {
  SHARED_ARRAY(BFloat16, tiles, [2][kTile]);
  const int tile_count = static_cast<int>(gpu::CeilDiv(n, kTile));
  const auto fetch = [&](int tile) {
    const int i = tile * kTile + 8 * static_cast<int>(threadIdx.x);
    gpu::CpAsync16(&tiles[tile % 2][8 * threadIdx.x], i < valid ? from + i : from, i < valid);
    gpu::CpAsyncCommit();
  };
  fetch(0);
  for (int tile = 0; tile < tile_count; ++tile) {
    gpu::CpAsyncWait<0>();
    __syncthreads();
    if (tile + 1 < tile_count) fetch(tile + 1);
    // Another thread's part, so that the barrier counts.
    const int column = 8 * (kCopyThreads - 1 - static_cast<int>(threadIdx.x));
    const int i = tile * kTile + column;
    if (i < n) gpu::Store<8>(to + i, gpu::Load<8>(&tiles[tile % 2][column]));
  }
}

template <Fragments kHow>
__global__ void MatrixProductKernel(float* d, const BFloat16* a, const BFloat16* b_rows,
                                    const float* c) {
  SHARED_ARRAY(BFloat16, tile_a, [16][16]);
  SHARED_ARRAY(BFloat16, tile_b, [16 * 8]);
  const int lane = gpu::Lane(), g = lane / 4, q = lane % 4;
  for (int i = lane; i < 16 * 16; i += gpu::kLanes) tile_a[i / 16][i % 16] = a[i];
  for (int i = lane; i < 16 * 8; i += gpu::kLanes) tile_b[i] = b_rows[i];
  __syncwarp();
  uint32_t fragment_a[4], fragment_b[2];
  const auto pair = [](BFloat16 low, BFloat16 high) {
    return gpu::PackBFloat16(gpu::ToFloat(low), gpu::ToFloat(high));
  };
  if constexpr (kHow == Fragments::kByHand) {
    for (int i = 0; i < 4; ++i) {
      const BFloat16* row = &tile_a[g + i % 2 * 8][2 * q + i / 2 * 8];
      fragment_a[i] = pair(row[0], row[1]);
    }
    for (int i = 0; i < 2; ++i) {
      const BFloat16* row = &tile_b[g * 16 + 2 * q + 8 * i];
      fragment_b[i] = pair(row[0], row[1]);
    }
  } else {
    gpu::LdMatrix<false>(fragment_a, &tile_a[lane % 16][lane / 16 * 8]);
  }
  if constexpr (kHow == Fragments::kLdMatrix) {
    gpu::LdMatrix<false>(fragment_b, &tile_b[lane % 8 * 16 + lane / 8 % 2 * 8]);
  } else if constexpr (kHow == Fragments::kTransposed) {
    gpu::LdMatrix<true>(fragment_b, &tile_b[lane % 16 * 8]);
  } else if constexpr (kHow == Fragments::kLdMatrixBy4 || kHow == Fragments::kTransposedBy4) {
    constexpr bool kTransposed = kHow == Fragments::kTransposedBy4;
    uint32_t twice[4];
    gpu::LdMatrix<kTransposed>(
        twice, &tile_b[kTransposed ? lane % 16 * 8 : lane % 8 * 16 + lane / 8 % 2 * 8]);
    fragment_b[0] = twice[0];
    fragment_b[1] = twice[3];
  }
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(g + i / 2 * 8) * 8 + 2 * q + i % 2];
  gpu::Mma(sums, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = sums[i];
}

template <typename T>
__global__ void RoundTripKernel(T* out, const float* x, int n) {
  const int i = 8 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  float values[8];
  gpu::LoadFloats(values, x + i);
  gpu::StoreFloats(out + i, values);
}

__global__ void ApproximateKernel(float* powers, float* reciprocals, const float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  powers[i] = gpu::Exp2Approx(x[i]);
  reciprocals[i] = gpu::ReciprocalApprox(x[i]);
}

unsigned Blocks(int64_t n, int64_t in_block) {
  return static_cast<unsigned>(gpu::CeilDiv(n, in_block));
}

template <typename T>
cudaError_t LaunchRoundTrip(T* out, const float* x, int n) {
  return gpu::Launch(nullptr, dim3(Blocks(n, 8 * 64)), dim3(64), 0, RoundTripKernel<T>, out, x, n);
}

}  // namespace

cudaError_t ReduceRows(float* sums, float* maxima, const float* x, int rows, int columns) {
  return gpu::Launch(nullptr, dim3(rows), dim3(kReduceThreads), 0, ReduceRowsKernel, sums, maxima,
                     x, columns);
}

cudaError_t Shuffles(int* out) {
  return gpu::Launch(nullptr, dim3(1), dim3(32), 0, ShufflesKernel, out);
}

cudaError_t CopyAsync(BFloat16* to, const BFloat16* from, int n, int valid) {
  return gpu::Launch(nullptr, dim3(1), dim3(kCopyThreads), 0, CopyAsyncKernel, to, from, n, valid);
}

cudaError_t MatrixProduct(float* d, const BFloat16* a, const BFloat16* b_rows, const float* c,
                          Fragments how) {
  const auto kernel = [how] {
    switch (how) {
      case Fragments::kByHand:
        return MatrixProductKernel<Fragments::kByHand>;
      case Fragments::kLdMatrix:
        return MatrixProductKernel<Fragments::kLdMatrix>;
      case Fragments::kLdMatrixBy4:
        return MatrixProductKernel<Fragments::kLdMatrixBy4>;
      case Fragments::kTransposed:
        return MatrixProductKernel<Fragments::kTransposed>;
      case Fragments::kTransposedBy4:
        break;
    }
    return MatrixProductKernel<Fragments::kTransposedBy4>;
  }();
  return gpu::Launch(nullptr, dim3(1), dim3(32), 0, kernel, d, a, b_rows, c);
}

cudaError_t RoundTrip(BFloat16* out, const float* x, int n) { return LaunchRoundTrip(out, x, n); }
cudaError_t RoundTrip(float* out, const float* x, int n) { return LaunchRoundTrip(out, x, n); }

cudaError_t Approximate(float* powers, float* reciprocals, const float* x, int n) {
  return gpu::Launch(nullptr, dim3(Blocks(n, 64)), dim3(64), 0, ApproximateKernel, powers,
                     reciprocals, x, n);
}

}  // namespace zerobox::gpu_kernels
