// SPDX-License-Identifier: Apache-2.0
//
// What emulated device code asks of the emulator. Kernels do not call these themselves, but CUDA's
// functions in tests/emulation/device_code.h and those of ops/cuda/gpu.cuh, which do.
#ifndef ZEROBOX_TESTS_EMULATION_PRIMITIVES_H_
#define ZEROBOX_TESTS_EMULATION_PRIMITIVES_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace zerobox::simt {

// Where in the source a call stands: as the default of a parameter, where the caller does.
struct Site {
  const char* file;
  int line;
  static constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Site& other) const;
};

struct BlockPosition {
  dim3 grid_dim, block_dim;
  uint3 index;
};
struct Thread {
  uint3 index;
  uint32_t number;      // in the block; x runs fastest
  uint32_t lane, warp;  // number % 32, number / 32
  const BlockPosition* block;
};
// The CUDA thread that runs on this OS thread; null outside kernels.
extern __thread const Thread* current_thread;

// __syncthreads() and its kin, whose result is that of `predicate` over the block.
enum class Barrier { kPlain, kOr, kAnd, kCount };
int BlockBarrier(Barrier kind, bool predicate, Site site);

// A collective of the lanes in `lanes`: the last lane to arrive does it for all.
enum class Collective { kSyncWarp, kShuffle, kBallot, kLdMatrix, kLdMatrixTransposed, kMma };
enum class ShuffleKind { kIndex, kUp, kDown, kXor };
struct CollectiveArguments {
  const void* in = nullptr;  // kShuffle: the value; kLdMatrix: a row; kMma: MmaOperands
  void* out = nullptr;
  int count = 0;  // kShuffle: bytes of the value; kLdMatrix: matrices
  ShuffleKind shuffle = ShuffleKind::kIndex;
  int argument = 0;     // kShuffle: lane, distance or mask; kBallot: the predicate
  int width = 32;       // kShuffle: lanes of a group that shuffles by itself
  uint32_t ballot = 0;  // out
};
struct MmaOperands {
  uint32_t a[4], b[2];
  float c[4];
};
void WarpCollective(uint32_t lanes, Collective kind, CollectiveArguments& arguments, Site site);

// The block's array for this key, NaN when first asked for.
void* SharedArray(const void* key, size_t bytes);
void* DynamicShared();

// cp.async of 16 bytes to shared memory, of which zeros are written if !copy; its groups.
void CpAsync16(void* to, const void* from, bool copy, Site site);
void CpAsyncCommit();
void CpAsyncWait(int groups_left);

// Reports and ends the block unless `address` is a multiple of `bytes`.
void CheckAligned(const void* address, size_t bytes, Site site);
// Tells the checker of accesses, if there is one, of an atomic one.
void OnAtomic(const void* address, size_t bytes);

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_PRIMITIVES_H_
