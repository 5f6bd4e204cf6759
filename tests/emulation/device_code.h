// SPDX-License-Identifier: Apache-2.0
//
// The part of CUDA C++'s device language that our kernels use, for an ordinary C++ compiler. The
// toolkit's headers are used as they are; here is what only nvcc defines.
#ifndef ZEROBOX_TESTS_EMULATION_DEVICE_CODE_H_
#define ZEROBOX_TESTS_EMULATION_DEVICE_CODE_H_

#if defined(__CUDACC__)
#error "nvcc brings all this itself"
#endif

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/emulation/primitives.h"

#define __launch_bounds__(...)
#if !defined(__grid_constant__)
#define __grid_constant__
#endif
// Without nvcc the toolkit's __shared__ is empty, which would quietly give each thread its own.
#undef __shared__
#define __shared__ static_assert(false, "declare it with SHARED_ARRAY or DYNAMIC_SHARED");

#define threadIdx (::zerobox::simt::current_thread->index)
#define blockIdx (::zerobox::simt::current_thread->block->index)
#define blockDim (::zerobox::simt::current_thread->block->block_dim)
#define gridDim (::zerobox::simt::current_thread->block->grid_dim)
// Not a macro: cudaDeviceProp has a member of that name.
static constexpr int warpSize = 32;

namespace zerobox::simt {

template <typename T>
T Shuffle(uint32_t lanes, T value, ShuffleKind kind, int argument, int width, Site site) {
  T result;
  CollectiveArguments arguments = {.in = &value,
                                   .out = &result,
                                   .count = sizeof(T),
                                   .shuffle = kind,
                                   .argument = argument,
                                   .width = width};
  WarpCollective(lanes, Collective::kShuffle, arguments, site);
  return result;
}

inline uint32_t Ballot(uint32_t lanes, bool predicate, Site site) {
  CollectiveArguments arguments = {.argument = predicate};
  WarpCollective(lanes, Collective::kBallot, arguments, site);
  return arguments.ballot;
}

}  // namespace zerobox::simt

// Barriers and warp collectives.
inline void __syncthreads(zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  zerobox::simt::BlockBarrier(zerobox::simt::Barrier::kPlain, false, site);
}
inline int __syncthreads_or(int p, zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::BlockBarrier(zerobox::simt::Barrier::kOr, p != 0, site);
}
inline int __syncthreads_and(int p, zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::BlockBarrier(zerobox::simt::Barrier::kAnd, p != 0, site);
}
inline int __syncthreads_count(int p, zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::BlockBarrier(zerobox::simt::Barrier::kCount, p != 0, site);
}
inline void __syncwarp(uint32_t lanes = 0xffffffffu,
                       zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  zerobox::simt::CollectiveArguments none;
  zerobox::simt::WarpCollective(lanes, zerobox::simt::Collective::kSyncWarp, none, site);
}
template <typename T>
T __shfl_sync(uint32_t lanes, T value, int lane, int width = 32,
              zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Shuffle(lanes, value, zerobox::simt::ShuffleKind::kIndex, lane, width,
                                site);
}
template <typename T>
T __shfl_up_sync(uint32_t lanes, T value, unsigned distance, int width = 32,
                 zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Shuffle(lanes, value, zerobox::simt::ShuffleKind::kUp,
                                static_cast<int>(distance), width, site);
}
template <typename T>
T __shfl_down_sync(uint32_t lanes, T value, unsigned distance, int width = 32,
                   zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Shuffle(lanes, value, zerobox::simt::ShuffleKind::kDown,
                                static_cast<int>(distance), width, site);
}
template <typename T>
T __shfl_xor_sync(uint32_t lanes, T value, int mask, int width = 32,
                  zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Shuffle(lanes, value, zerobox::simt::ShuffleKind::kXor, mask, width, site);
}
inline uint32_t __ballot_sync(uint32_t lanes, int p,
                              zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Ballot(lanes, p != 0, site);
}
inline int __any_sync(uint32_t lanes, int p,
                      zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Ballot(lanes, p != 0, site) != 0;
}
inline int __all_sync(uint32_t lanes, int p,
                      zerobox::simt::Site site = zerobox::simt::Site::Here()) {
  return zerobox::simt::Ballot(lanes, p != 0, site) == lanes;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// Atomics, not instrumented: the checker of accesses is told of them as such.
#define ZEROBOX_ATOMIC  \
  template <typename T> \
  __attribute__((noinline, no_sanitize("thread"))) T
ZEROBOX_ATOMIC atomicAdd(T* address, std::type_identity_t<T> value) {
  zerobox::simt::OnAtomic(address, sizeof(T));
  const T old = *address;
  *address = old + value;
  return old;
}
ZEROBOX_ATOMIC atomicMax(T* address, std::type_identity_t<T> value) {
  zerobox::simt::OnAtomic(address, sizeof(T));
  const T old = *address;
  *address = old > value ? old : value;
  return old;
}
ZEROBOX_ATOMIC atomicCAS(T* address, std::type_identity_t<T> compare,
                         std::type_identity_t<T> value) {
  zerobox::simt::OnAtomic(address, sizeof(T));
  const T old = *address;
  if (old == compare) *address = value;
  return old;
}
#undef ZEROBOX_ATOMIC

// Loads and stores with a hint for the caches.
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, std::type_identity_t<T> value) {
  *p = value;
}

// Arithmetic; the approximate functions are exact here, so tests need a tolerance.
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<uint32_t>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}
template <typename T>
requires std::is_arithmetic_v<T> T min(T a, std::type_identity_t<T> b) { return b < a ? b : a; }
template <typename T>
requires std::is_arithmetic_v<T> T max(T a, std::type_identity_t<T> b) { return a < b ? b : a; }

#endif  // ZEROBOX_TESTS_EMULATION_DEVICE_CODE_H_
