// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/gpu.cuh"
#include "tests/emulation/seeded_bugs.h"

namespace zerobox::seeded_bugs {
namespace {

// Two warps, but for kernels of one; thread t writes out[t].
constexpr int kThreads = kOut;

__device__ int Thread() { return static_cast<int>(threadIdx.x); }

//---- Memory that nothing orders -----------------------------------------------------------------

template <bool kBug>
__global__ void MissingBarrier(float* out, const float* in, float*) {
  SHARED_ARRAY(float, values, [kThreads]);
  values[Thread()] = in[Thread()];
  if (!kBug) __syncthreads();
  out[Thread()] = values[kThreads - 1 - Thread()];
}

template <bool kBug>
__global__ void MissingBarrierInPlace(float* out, const float* in, float*) {
  constexpr int kReader = 40, kElement = 20;
  out[Thread()] = 2 * in[Thread()];
  __syncthreads();
  float two = 2;
  if (Thread() == kReader) two = out[kElement];
  if (!kBug) __syncthreads();
  out[Thread()] = two - 1;
}

// Tiles of 256 by cp.async, in two stages. With the bug, the tile after next arrives in a buffer
// that other threads may still read, since the barrier comes only then: three tiles show it.
template <bool kBug>
__global__ void EarlyPrefetch(float* out, const float* in, float*) {
  constexpr int kTile = 4 * kThreads, kTiles = kIn / kTile;
  SHARED_ARRAY(float, tiles, [2][kTile]);
  const auto fetch = [&](int tile) {
    if (tile < kTiles) {
      gpu::CpAsync16(&tiles[tile % 2][4 * Thread()], in + tile * kTile + 4 * Thread());
    }
    gpu::CpAsyncCommit();
  };
  float sum = 0;
  fetch(0);
  for (int tile = 0; tile < kTiles; ++tile) {
    if (kBug) fetch(tile + 1);
    gpu::CpAsyncWait<kBug ? 1 : 0>();
    __syncthreads();
    if (!kBug) fetch(tile + 1);
    for (int i = 0; i < 4; ++i) sum += tiles[tile % 2][kTile - 1 - 4 * Thread() - i];
  }
  gpu::CpAsyncWait<0>();
  out[Thread()] = sum / (4 * kTiles);
}

template <bool kWait, bool kWaitInTime>
__device__ void CopyThroughShared(float* out, const float* in) {
  SHARED_ARRAY(float, tile, [4 * kThreads]);
  gpu::CpAsync16(&tile[4 * Thread()], in + 4 * Thread());
  gpu::CpAsyncCommit();
  if (kWait && kWaitInTime) gpu::CpAsyncWait<0>();
  __syncthreads();
  if (kWait && !kWaitInTime) gpu::CpAsyncWait<0>();
  out[Thread()] = tile[4 * kThreads - 1 - Thread()];
}
template <bool kBug>
__global__ void MissingWait(float* out, const float* in, float*) {
  CopyThroughShared<!kBug, true>(out, in);
}
template <bool kBug>
__global__ void WaitBehindBarrier(float* out, const float* in, float*) {
  CopyThroughShared<true, !kBug>(out, in);
}

template <bool kBug>
__global__ void MissingWarpBarrier(float* out, const float* in, float*) {
  SHARED_ARRAY(float, values, [kThreads]);
  values[Thread()] = in[Thread()];
  if (kBug) {
    gpu::ShuffleFrom(0, 0);
  } else {
    __syncwarp();
  }
  out[Thread()] = values[Thread() ^ 1];
}

template <bool kBug>
__global__ void RaceBetweenBlocks(float* out, const float* in, float*) {
  if (kBug || blockIdx.x == 0) out[Thread()] = in[Thread()];
}

//---- Reads of what nobody wrote -----------------------------------------------------------------

template <bool kBug>
__global__ void UninitialisedShared(float* out, const float* in, float*) {
  SHARED_ARRAY(float, values, [kThreads]);
  if (!kBug || Thread() != 17) values[Thread()] = in[Thread()];
  __syncthreads();
  out[Thread()] = values[Thread()];
}

template <bool kBug>
__global__ void UninitialisedDevice(float* out, const float* in, float* scratch) {
  if (!kBug) scratch[Thread()] = in[Thread()];
  out[Thread()] = scratch[Thread()];
}

//---- Accesses beside memory ---------------------------------------------------------------------

template <bool kBug>
__global__ void OutOfBounds(float* out, const float* in, float*) {
  out[Thread()] = in[kIn - kThreads + Thread() + (kBug ? 1 : 0)];
}

template <bool kBug>
__global__ void OutOfBoundsShared(float* out, const float* in, float*) {
  SHARED_ARRAY(float, values, [kBug ? kThreads - 1 : kThreads]);
  float* first = &values[0];  // so that the array's type says nothing
  first[Thread()] = in[Thread()];
  __syncthreads();
  out[Thread()] = first[Thread()];
}

template <bool kBug>
__global__ void OutOfBoundsDynamic(float* out, const float* in, float*) {
  DYNAMIC_SHARED(float, values);
  values[Thread()] = in[Thread()];
  __syncthreads();
  out[Thread()] = values[Thread()];
}

template <bool kBug>
__global__ void OutOfBoundsRow(float* out, const float* in, float*) {
  SHARED_ARRAY(float, values, [kThreads / 8][8]);
  values[Thread() / 8][Thread() % 8] = in[Thread()];
  __syncthreads();
  const int row = kBug && Thread() == 8 ? 0 : Thread() / 8;
  out[Thread()] = values[row][Thread() - 8 * row];
}

template <bool kBug>
__global__ void Misaligned(float* out, const float* in, float*) {
  float values[4];
  gpu::LoadFloats(values, in + 4 * Thread() + (kBug ? 1 : 0));
  out[Thread()] = values[0];
}

template <bool kBug>
__global__ void MisalignedCast(float* out, const float* in, float*) {
  out[Thread()] = reinterpret_cast<const float2*>(in + (kBug ? 1 : 0))[Thread()].x;
}

//---- Threads that do not meet -------------------------------------------------------------------

template <bool kBug>
__global__ void DivergentBarrier(float* out, const float* in, float*) {
  if (kBug && Thread() < kThreads / 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[Thread()] = in[Thread()];
}

template <bool kBug>
__global__ void SkippedBarrier(float* out, const float* in, float*) {
  out[Thread()] = in[Thread()];
  if (kBug && Thread() >= 40) return;
  __syncthreads();
}

template <bool kBug>
__global__ void MissingLane(float* out, const float* in, float*) {
  out[Thread()] = in[Thread()];
  if (kBug && Thread() >= 40) return;
  out[Thread()] = gpu::WarpReduce(in[Thread()], gpu::Sum()) / gpu::kLanes;
}

template <bool kBug>
__global__ void LaneOutsideMask(float* out, const float* in, float*) {
  float value = in[Thread()];
  if (gpu::Lane() < 16) value = __shfl_xor_sync(0xffff, value, kBug ? 16 : 8);
  out[Thread()] = value;
}

template <bool kBug>
__global__ void DivergentCollectives(float* out, const float* in, float*) {
  if (kBug && gpu::Lane() < 16) {
    out[Thread()] = gpu::ShuffleXor(in[Thread()], 1);
  } else {
    out[Thread()] = gpu::ShuffleXor(in[Thread()], 1);
  }
}

template <bool kBug>
__global__ void BarrierOrCollective(float* out, const float* in, float*) {
  if (!kBug || gpu::Lane() < 16) __syncthreads();
  if (!kBug || gpu::Lane() >= 16) out[Thread()] = gpu::ShuffleXor(in[Thread()], 1);
}

//---- Launches -----------------------------------------------------------------------------------

template <bool kBug>
__global__ void Plain(float* out, const float* in, float*) {
  if (Thread() < kThreads) out[Thread()] = in[Thread()];
}

}  // namespace

cudaError_t Run(Bug bug, bool with_bug, float* out, const float* in, float* scratch) {
  const auto launch = [=](auto with, auto without, unsigned blocks = 1, unsigned threads = kThreads,
                          size_t shared_bytes = 0) {
    return gpu::Launch(nullptr, dim3(blocks), dim3(threads), shared_bytes,
                       with_bug ? with : without, out, in, scratch);
  };
#define ZEROBOX_BUG(name, ...) \
  case Bug::k##name:           \
    return launch(name<true>, name<false> __VA_OPT__(, ) __VA_ARGS__);
  switch (bug) {
    ZEROBOX_BUG(MissingBarrier)
    ZEROBOX_BUG(MissingBarrierInPlace)
    ZEROBOX_BUG(EarlyPrefetch)
    ZEROBOX_BUG(MissingWait)
    ZEROBOX_BUG(WaitBehindBarrier)
    ZEROBOX_BUG(MissingWarpBarrier)
    ZEROBOX_BUG(RaceBetweenBlocks, 2)
    ZEROBOX_BUG(UninitialisedShared)
    ZEROBOX_BUG(UninitialisedDevice)
    ZEROBOX_BUG(OutOfBounds)
    ZEROBOX_BUG(OutOfBoundsShared)
    ZEROBOX_BUG(OutOfBoundsDynamic, 1, kThreads,
                sizeof(float) * (with_bug ? kThreads - 1 : kThreads))
    ZEROBOX_BUG(OutOfBoundsRow)
    ZEROBOX_BUG(Misaligned)
    ZEROBOX_BUG(MisalignedCast)
    ZEROBOX_BUG(DivergentBarrier)
    ZEROBOX_BUG(SkippedBarrier)
    ZEROBOX_BUG(MissingLane)
    ZEROBOX_BUG(LaneOutsideMask)
    ZEROBOX_BUG(DivergentCollectives)
    ZEROBOX_BUG(BarrierOrCollective)
    case Bug::kTooManyThreads:
      return launch(Plain<true>, Plain<false>, 1, with_bug ? 1056 : 1024);
    case Bug::kTooMuchShared:
      return launch(Plain<true>, Plain<false>, 1, kThreads, (48 << 10) + (with_bug ? 4 : 0));
  }
#undef ZEROBOX_BUG
  return cudaErrorInvalidValue;
}

}  // namespace zerobox::seeded_bugs
