// SPDX-License-Identifier: Apache-2.0
//
// The GPU as our kernels see it: shared memory, the launch, reductions, 16-byte accesses,
// asynchronous copies, tensor cores. No other file declares shared memory, holds PTX or writes
// <<<>>>. Everything here has two sides: nvcc's, and that of the emulator in tests/emulation, in
// which the unmodified kernels run without a GPU (GPU_EMULATION). So that they can, a kernel
//   - declares shared memory with SHARED_ARRAY or DYNAMIC_SHARED, and is launched with gpu::Launch;
//   - assumes nothing of lanes that no barrier or collective orders: no lockstep, no waiting for
//     other blocks, no floating-point atomics;
//   - calls warp collectives with all 32 lanes, all of them at one place in the source;
//   - has no global variables of the device.
// Sums therefore have an order that shape and grid fix, and results are the same bits every time.
//
// A warp's lanes are written l = 0..31, g = l / 4 and q = l % 4. Matrix fragments are those of the
// PTX ISA (docs.nvidia.com/cuda/parallel-thread-execution), "Matrix Fragments for mma.m16n8k16".
#ifndef ZEROBOX_OPS_CUDA_GPU_CUH_
#define ZEROBOX_OPS_CUDA_GPU_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ops/bfloat16.h"

#if defined(GPU_EMULATION)
#include "tests/emulation/device_code.h"
#include "tests/emulation/simt.h"
#elif !defined(__CUDACC__)
#error "compile this with nvcc, or with GPU_EMULATION defined for tests"
#endif

// SHARED_ARRAY(float, tile, [32][33]): shared memory of the block, as `float tile[32][33]`, on 128
// bytes. Each declaration is one array, per instance of a template.
// DYNAMIC_SHARED(float, tile): the launch's `shared_bytes`, as `float* tile`.
#if defined(GPU_EMULATION)
#define SHARED_ARRAY(T, name, ...)                                                              \
  auto& name = *static_cast<std::type_identity_t<T __VA_ARGS__>*>(::zerobox::simt::SharedArray( \
      [] {                                                                                      \
        static const char key = 0;                                                              \
        return &key;                                                                            \
      }(),                                                                                      \
      sizeof(T __VA_ARGS__)))
#define DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::zerobox::simt::DynamicShared())
#else
#define SHARED_ARRAY(T, name, ...) __shared__ __align__(128) T name __VA_ARGS__
#define DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(128) unsigned char dynamic_shared_[]; \
  T* name = reinterpret_cast<T*>(dynamic_shared_)
#endif

namespace zerobox::gpu {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Where a collective is called, which the emulator compares over lanes. Nothing under nvcc.
#if defined(GPU_EMULATION)
using simt::Site;
#else
struct Site {
  __device__ static constexpr Site Here() { return {}; }
};
#endif

__host__ __device__ constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

//---- Host: launches -----------------------------------------------------------------------------

// Enqueues kernel<<<grid, block, shared_bytes, stream>>>(arguments...), converted to the kernel's
// parameter types. An error is the launch's own (its shape), or one of earlier work.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
                   void (*kernel)(Parameters...), Arguments&&... arguments) {
#if defined(GPU_EMULATION)
  std::tuple<Parameters...> copies(std::forward<Arguments>(arguments)...);
  return simt::Launch(stream, {.kernel = reinterpret_cast<const void*>(kernel),
                               .grid = grid,
                               .block = block,
                               .shared_bytes = shared_bytes,
                               .thread = [kernel, copies] { std::apply(kernel, copies); },
                               .arguments = simt::BytesOf(copies)});
#else
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
#endif
}

// Lets launches of this kernel ask for more than 48 KiB of dynamic shared memory, up to 99 KiB. On
// the current device, so once for each.
template <typename... Parameters>
cudaError_t AllowDynamicShared(void (*kernel)(Parameters...), size_t bytes) {
#if defined(GPU_EMULATION)
  return simt::AllowDynamicShared(reinterpret_cast<const void*>(kernel), bytes);
#else
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
#endif
}

// Whether 16-byte accesses may begin at each of these.
template <typename... Ts>
bool AreAligned(const Ts*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

//---- Numbers ------------------------------------------------------------------------------------

// bf16 is BFloat16 (ops/bfloat16.h) in memory and fp32 in registers; rounding is to the nearest,
// ties to even, by the hardware's conversion. Any NaN becomes the NaN 0x7fff.
__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
template <typename T>
__device__ __forceinline__ T FromFloat(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  } else {
    return x;
  }
}
// x as it is when it was stored as a T.
template <typename T>
__device__ __forceinline__ float Round(float x) {
  return gpu::ToFloat(FromFloat<T>(x));  // not also that of the host, which BFloat16 brings
}

// Two bf16 in a register, `low` in the lower half: the one with the lower address.
__device__ __forceinline__ uint32_t PackBFloat16(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<uint32_t>(FromFloat<BFloat16>(high).bits) << 16 |
         FromFloat<BFloat16>(low).bits;
#endif
}
__device__ __forceinline__ float2 UnpackBFloat16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

constexpr float kLog2E = 1.44269504f;  // e^x = 2^(x kLog2E)

// 2^x in one instruction, with a relative error of at most 2^-22; results below 2^-126 are 0, and
// 2^-inf is exactly 0. exp2f adds two instructions for a wider range.
__device__ __forceinline__ float Exp2Approx(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}
// 1 / x in one instruction, to 1 ulp; 1 / inf is 0.
__device__ __forceinline__ float ReciprocalApprox(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

//---- 16-byte accesses ---------------------------------------------------------------------------

// kCount neighbours in memory, as they lie there: a lane that loads 16 bytes at once makes 512 of a
// warp, and needs fewer loads in flight to keep memory busy. Pack<BFloat16, 8> is one access,
// Pack<float, 8> two; bf16 that is used twice takes half the registers that floats would.
template <typename T, int kCount>
struct Pack {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 16;
  static_assert(kWords * 16 == kCount * static_cast<int>(sizeof(T)), "16-byte accesses");
  uint4 words[kWords];
};

// `from` and `to` are multiples of 16 bytes.
template <int kCount, typename T>
__device__ __forceinline__ Pack<T, kCount> Load(const T* from, Site site = Site::Here()) {
#if defined(GPU_EMULATION)
  simt::CheckAligned(from, 16, site);
#endif
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < Pack<T, kCount>::kWords; ++i) {
    pack.words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  return pack;
}
template <int kCount, typename T>
__device__ __forceinline__ void Store(T* to, const Pack<T, kCount>& pack,
                                      Site site = Site::Here()) {
#if defined(GPU_EMULATION)
  simt::CheckAligned(to, 16, site);
#endif
#pragma unroll
  for (int i = 0; i < Pack<T, kCount>::kWords; ++i) {
    reinterpret_cast<uint4*>(to)[i] = pack.words[i];
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void Unpack(float (&values)[kCount], const Pack<T, kCount>& pack) {
#pragma unroll
  for (int i = 0; i < Pack<T, kCount>::kWords; ++i) {
    const uint32_t words[4] = {pack.words[i].x, pack.words[i].y, pack.words[i].z, pack.words[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        const float2 pair = UnpackBFloat16(words[j]);
        values[8 * i + 2 * j] = pair.x;
        values[8 * i + 2 * j + 1] = pair.y;
      } else {
        values[4 * i + j] = __uint_as_float(words[j]);
      }
    }
  }
}
// Rounds each value once.
template <typename T, int kCount>
__device__ __forceinline__ Pack<T, kCount> PackFloats(const float (&values)[kCount]) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < Pack<T, kCount>::kWords; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        words[j] = PackBFloat16(values[8 * i + 2 * j], values[8 * i + 2 * j + 1]);
      } else {
        words[j] = __float_as_uint(values[4 * i + j]);
      }
    }
    pack.words[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  return pack;
}
template <typename T, int kCount>
__device__ __forceinline__ void LoadFloats(float (&values)[kCount], const T* from,
                                           Site site = Site::Here()) {
  Unpack(values, Load<kCount>(from, site));
}
template <typename T, int kCount>
__device__ __forceinline__ void StoreFloats(T* to, const float (&values)[kCount],
                                            Site site = Site::Here()) {
  Store<kCount>(to, PackFloats<T>(values), site);
}

//---- Warps and blocks ---------------------------------------------------------------------------

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ __forceinline__ int WarpInBlock() { return static_cast<int>(threadIdx.x) / kLanes; }

// The value of lane l ^ mask.
template <typename T>
__device__ __forceinline__ T ShuffleXor(T value, int mask,
                                        [[maybe_unused]] Site site = Site::Here()) {
#if defined(GPU_EMULATION)
  return __shfl_xor_sync(kAllLanes, value, mask, kLanes, site);
#else
  return __shfl_xor_sync(kAllLanes, value, mask);
#endif
}
// The value of lane `lane`.
template <typename T>
__device__ __forceinline__ T ShuffleFrom(T value, int lane,
                                         [[maybe_unused]] Site site = Site::Here()) {
#if defined(GPU_EMULATION)
  return __shfl_sync(kAllLanes, value, lane, kLanes, site);
#else
  return __shfl_sync(kAllLanes, value, lane);
#endif
}
__device__ __forceinline__ void BlockBarrier([[maybe_unused]] Site site) {
#if defined(GPU_EMULATION)
  __syncthreads(site);
#else
  __syncthreads();
#endif
}

struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// The values of kGroup neighbouring lanes combined, in each of them: the same bits, since every
// lane combines in the same tree. `combine` must be commutative.
template <int kGroup = kLanes, typename T, typename Combine>
__device__ __forceinline__ T WarpReduce(T value, Combine combine, Site site = Site::Here()) {
#pragma unroll
  for (int mask = kGroup / 2; mask > 0; mask /= 2) {
    value = combine(value, ShuffleXor(value, mask, site));
  }
  return value;
}

// The same over a block of kThreads (blockDim.x) threads, in each of them. Two barriers; it may be
// called again at once. `identity` is what combines to nothing.
template <int kThreads, typename T, typename Combine>
__device__ __forceinline__ T BlockReduce(T value, Combine combine, T identity,
                                         Site site = Site::Here()) {
  static_assert(kThreads % kLanes == 0 && kThreads <= kLanes * kLanes);
  SHARED_ARRAY(T, warps, [kLanes]);
  value = WarpReduce(value, combine, site);
  BlockBarrier(site);  // everyone has read what an earlier call left in `warps`
  if (Lane() == 0) warps[WarpInBlock()] = value;
  BlockBarrier(site);
  return WarpReduce(Lane() < kThreads / kLanes ? warps[Lane()] : identity, combine, site);
}

//---- Asynchronous copies from global to shared memory (sm_80) -----------------------------------

// Copies 16 bytes, around the L1 cache; zeros instead if !copy, and then `from` is not read. Both
// addresses are multiples of 16 bytes. What was copied is there for this thread after a
// CpAsyncWait, and for others after a barrier behind that.
__device__ __forceinline__ void CpAsync16(void* to, const void* from, bool copy = true,
                                          [[maybe_unused]] Site site = Site::Here()) {
#if defined(GPU_EMULATION)
  simt::CpAsync16(to, from, copy, site);
#else
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = copy ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes)
               : "memory");
#endif
}
// Makes a group of this thread's copies since the last one; it may be empty.
__device__ __forceinline__ void CpAsyncCommit() {
#if defined(GPU_EMULATION)
  simt::CpAsyncCommit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all of this thread's groups but the youngest kGroupsLeft.
template <int kGroupsLeft>
__device__ __forceinline__ void CpAsyncWait() {
#if defined(GPU_EMULATION)
  simt::CpAsyncWait(kGroupsLeft);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#endif
}

//---- Tensor cores (sm_80) -----------------------------------------------------------------------

// Loads kMatrices (2 or 4) matrices of 8 x 8 bf16 from shared memory. Lane l gives the address of
// row l % 8 of matrix l / 8, a multiple of 16 bytes (of two matrices, lanes 16 to 31 give addresses
// that are not read). registers[m] of lane l becomes elements (g, 2q) and (g, 2q + 1) of matrix m;
// if kTransposed, (2q, g) and (2q + 1, g).
//
// So from a row-major A (16, 16), the operand `a` of Mma is
//   LdMatrix<false>(a, &A[l % 16][l / 16 * 8]);
// from a B^T (8, 16), rows along n: LdMatrix<false>(b, &Bt[l % 8][l / 8 % 2 * 8]);
// from a B (16, 8), rows along k: LdMatrix<true>(b, &B[l % 16][0]).
template <bool kTransposed, int kMatrices>
__device__ __forceinline__ void LdMatrix(uint32_t (&registers)[kMatrices], const void* row,
                                         [[maybe_unused]] Site site = Site::Here()) {
  static_assert(kMatrices == 2 || kMatrices == 4);
#if defined(GPU_EMULATION)
  uint32_t out[kMatrices];
  simt::CollectiveArguments arguments = {.in = row, .out = out, .count = kMatrices};
  simt::WarpCollective(
      kAllLanes, kTransposed ? simt::Collective::kLdMatrixTransposed : simt::Collective::kLdMatrix,
      arguments, site);
  for (int i = 0; i < kMatrices; ++i) registers[i] = out[i];
#else
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kMatrices == 4 && kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared)
                 : "memory");
  } else if constexpr (kMatrices == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared)
                 : "memory");
  } else if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(registers[0]), "=r"(registers[1])
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(registers[0]), "=r"(registers[1])
                 : "r"(shared)
                 : "memory");
  }
#endif
}

// sums (16, 8) += A (16, 16) B (16, 8): bf16 operands, fp32 sums (mma.sync.m16n8k16). Of lane l,
//   a[0..3] hold A at rows g, g + 8, g, g + 8 and columns from 2q, 2q, 2q + 8, 2q + 8, two
//   neighbours each;
//   b[0..1] hold B at column g and rows from 2q, 2q + 8, two neighbours each;
//   sums[0..3] are (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1).
// Two sums of neighbouring tiles, packed to bf16, are an operand `a` of the next product.
__device__ __forceinline__ void Mma(float (&sums)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2],
                                    [[maybe_unused]] Site site = Site::Here()) {
#if defined(GPU_EMULATION)
  const simt::MmaOperands operands = {
      {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {sums[0], sums[1], sums[2], sums[3]}};
  float out[4];
  simt::CollectiveArguments arguments = {.in = &operands, .out = out};
  simt::WarpCollective(kAllLanes, simt::Collective::kMma, arguments, site);
  for (int i = 0; i < 4; ++i) sums[i] = out[i];
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace zerobox::gpu

#endif  // ZEROBOX_OPS_CUDA_GPU_CUH_
