// SPDX-License-Identifier: Apache-2.0
//
// GELU, tanh form (arXiv:1606.08415, section 2), and a bias in front of it:
//   gelu(x) = x/2 (1 + tanh u),  u = sqrt(2/pi) (x + 0.044715 x^3)
// and since (1 + tanh u) / 2 = 1 / (1 + e^-2u) = s, which loses nothing where tanh u is near -1,
//   gelu(x)  = x s
//   gelu'(x) = s + x s (1 - s) 2 du/dx,  du/dx = sqrt(2/pi) (1 + 3 0.044715 x^2).
//
// Shapes: n elements, or (rows, columns) with a bias of `columns`. Mapping: elementwise.cuh; 8
// elements a thread. What bounds it: memory, with 4 bytes an element forward in bf16, 6 backward,
// and 6 with the bias (y is read and written, out written). The special-function unit has two of
// its instructions an element, 2^x and 1/x: at 16 a clock and multiprocessor that is twice as fast
// as the memory of an H100. tanh.approx would be one, but is only good to 2^-11 of 1, which is 20%
// of the result at x = -3. To expect: 90% of a copy's bandwidth.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

constexpr float kTwoSqrt2OverPi = 1.59576912f;
constexpr float kCubic = 0.044715f;

// e^-2u, at most 2^115: so that s = 1 / (1 + e) is a normal number.
__device__ __forceinline__ float ExpMinus2U(float x) {
  const float power = (-kTwoSqrt2OverPi * gpu::kLog2E) * x * fmaf(kCubic * x, x, 1.0f);
  // Not fminf, which would give 115 for NaN.
  return gpu::Exp2Approx(power > 115.0f ? 115.0f : power);
}
__device__ __forceinline__ float Gelu(float x) {
  return x * gpu::ReciprocalApprox(1.0f + ExpMinus2U(x));
}
// Beyond 12 it is 0 or 1 in fp32, and further out two_du is infinite. (A NaN passes.)
__device__ __forceinline__ float GeluSlope(float x) {
  x = x > 12.0f ? 12.0f : x < -12.0f ? -12.0f : x;
  const float e = ExpMinus2U(x);
  const float s = gpu::ReciprocalApprox(1.0f + e);
  const float two_du = fmaf(kTwoSqrt2OverPi * 3 * kCubic * x, x, kTwoSqrt2OverPi);
  return fmaf(x * s * (e * s), two_du, s);  // 1 - s = e s
}

template <typename T>
struct Forward {
  T* out;
  const T* x;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t, int64_t i) const {
    float values[kCount];
    Read(values, x + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = Gelu(values[k]);
    Write(out + i, values);
  }
};

template <typename T>
struct Backward {
  T* dx;  // may be dout
  const T* x;
  const T* dout;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t, int64_t i) const {
    float values[kCount], gradients[kCount];
    Read(values, x + i);
    Read(gradients, dout + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) gradients[k] *= GeluSlope(values[k]);
    Write(dx + i, gradients);
  }
};

// GELU of y as it is stored: backward, which reads y again, must see the same number.
template <typename T, bool kGelu>
struct Bias {
  T* out;
  T* y;
  const T* bias;
  int64_t columns;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    float values[kCount], offsets[kCount];
    Read(values, y + i);
    Read(offsets, bias + column);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = gpu::Round<T>(values[k] + offsets[k]);
    Write(y + i, values);
    if constexpr (kGelu) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = Gelu(values[k]);
      Write(out + i, values);
    }
  }
};

}  // namespace

template <typename T>
cudaError_t GeluForward(cudaStream_t stream, T* out, const T* x, int64_t n) {
  return LaunchElements(stream, 1, n, gpu::AreAligned(out, x), Forward<T>{out, x});
}

template <typename T>
cudaError_t GeluBackward(cudaStream_t stream, T* dx, const T* x, const T* dout, int64_t n) {
  return LaunchElements(stream, 1, n, gpu::AreAligned(dx, x, dout), Backward<T>{dx, x, dout});
}

template <typename T>
cudaError_t AddBias(cudaStream_t stream, T* y, const T* bias, int64_t rows, int64_t columns) {
  return LaunchRows(stream, rows, columns, gpu::AreAligned(y, bias),
                    Bias<T, false>{nullptr, y, bias, columns});
}

template <typename T>
cudaError_t AddBiasGelu(cudaStream_t stream, T* out, T* y, const T* bias, int64_t rows,
                        int64_t columns) {
  return LaunchRows(stream, rows, columns, gpu::AreAligned(out, y, bias),
                    Bias<T, true>{out, y, bias, columns});
}

#define ZEROBOX_INSTANCES(T)                                                        \
  template cudaError_t GeluForward(cudaStream_t, T*, const T*, int64_t);            \
  template cudaError_t GeluBackward(cudaStream_t, T*, const T*, const T*, int64_t); \
  template cudaError_t AddBias(cudaStream_t, T*, const T*, int64_t, int64_t);       \
  template cudaError_t AddBiasGelu(cudaStream_t, T*, T*, const T*, int64_t, int64_t);
ZEROBOX_INSTANCES(float)
ZEROBOX_INSTANCES(BFloat16)
#undef ZEROBOX_INSTANCES

}  // namespace zerobox::cuda
