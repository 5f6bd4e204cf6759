// SPDX-License-Identifier: Apache-2.0
//
// Algorithms over the whole device that others have written better than we would, behind one
// header: CUB's, with temporary storage that belongs to the caller, so nothing is allocated while
// training. In the emulator (GPU_EMULATION) it is Thrust's backend for plain C++, run as one
// thread. For .cu files; the toolkit brings both.
#ifndef ZEROBOX_OPS_CUDA_DEVICE_ALGORITHMS_H_
#define ZEROBOX_OPS_CUDA_DEVICE_ALGORITHMS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/gpu.cuh"

#if defined(GPU_EMULATION)
#define THRUST_HOST_SYSTEM THRUST_HOST_SYSTEM_CPP
#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP
#include <thrust/sort.h>
#include <thrust/system/cpp/execution_policy.h>
#else
#include <cub/device/device_radix_sort.cuh>
#endif

namespace zerobox::cuda {

#if defined(GPU_EMULATION)
inline void SortPairsKernel(int32_t* keys_out, const int32_t* keys, int32_t* values_out,
                            const int32_t* values, int n) {
  for (int i = 0; i < n; ++i) {
    keys_out[i] = keys[i];
    values_out[i] = values[i];
  }
  thrust::stable_sort_by_key(thrust::cpp::par, keys_out, keys_out + n, values_out);
}
#endif

// Sorts n keys, and their values with them, in ascending order; equal keys stay in order. Only the
// lowest `key_bits` of a key count; keys are not negative. The outputs overlap no input. `storage`
// has SortPairsBytes(n, key_bits) bytes, on an address of 256.
inline cudaError_t SortPairs(cudaStream_t stream, int32_t* keys_out, const int32_t* keys,
                             int32_t* values_out, const int32_t* values, int n, int key_bits,
                             void* storage, size_t storage_bytes) {
#if defined(GPU_EMULATION)
  if (storage == nullptr || storage_bytes == 0 || key_bits < 1) return cudaErrorInvalidValue;
  return gpu::Launch(stream, dim3(1), dim3(1), 0, SortPairsKernel, keys_out, keys, values_out,
                     values, n);
#else
  return cub::DeviceRadixSort::SortPairs(storage, storage_bytes, keys, keys_out, values, values_out,
                                         n, 0, key_bits, stream);
#endif
}

// For the current device; 0 if CUB cannot say, after which SortPairs fails.
inline size_t SortPairsBytes(int n, int key_bits) {
#if defined(GPU_EMULATION)
  return key_bits < 1 ? 0 : 8 * static_cast<size_t>(n) + 1;
#else
  size_t bytes = 0;
  const int32_t* keys = nullptr;
  int32_t* keys_out = nullptr;
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, keys_out, keys,
                                                            keys_out, n, 0, key_bits);
  return error == cudaSuccess ? bytes : 0;
#endif
}

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_DEVICE_ALGORITHMS_H_
