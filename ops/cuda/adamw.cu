// SPDX-License-Identifier: Apache-2.0
//
// AdamW (arXiv:1711.05101, algorithm 2) in one pass over memory, in fp32. With g the clipped
// gradient, w the fp32 weight and a the steps applied, this one included:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   w -= lr ((m / (1 - beta1^a)) / (sqrt(v / (1 - beta2^a)) + epsilon) + weight_decay w)
//   p = w, rounded where p is bf16;  g = 0
// and what is decided in front of it, on the device, so that the host need not wait for the
// gradient's norm: learning rate, clipping, skipping, bias corrections.
//
// Shapes: n elements of equal-sized buffers. Mapping: blocks of 256 threads, each thread 8
// neighbouring elements at a time and then those a grid further; few enough blocks that the fp64
// divisions of the state, once a thread, cost nothing. What bounds it: memory. In bf16 with fp32
// master weights 30 bytes an element: m, v and w read and written (24), the parameter written (2),
// the gradient read and set to zero (4, or 8 if it is fp32). To expect: 90% of a copy's bandwidth.
//
// Every operation is one that IEEE 754 rounds exactly, and spelled so that the compiler fuses none:
// the bits are those of the host where it has fused multiply-adds, and do not depend on how a
// buffer is cut into shards.
#include <cfloat>
#include <numbers>
#include <type_traits>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"

namespace zerobox::cuda {
namespace {

// The settings, rounded once each.
struct Factors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;
};
// And what the device decided.
struct StepFactors {
  float clip, learning_rate, inverse1, inverse2;
};

template <typename P, typename G>
struct Update {
  P* parameters;
  float* weights;  // the parameters themselves where they are fp32
  G* gradients;
  float* m;
  float* v;
  Factors factors;

  template <int kCount>
  __device__ __forceinline__ void SetGradientsToZero(int64_t i) const {
    const float zeros[kCount] = {};
    Write(gradients + i, zeros);
  }

  template <int kCount>
  __device__ __forceinline__ void Apply(int64_t i, const StepFactors& step) const {
    float g[kCount], mi[kCount], vi[kCount], w[kCount];
    Read(g, gradients + i);
    Read(mi, m + i);
    Read(vi, v + i);
    Read(w, weights + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float gk = __fmul_rn(g[k], step.clip);
      mi[k] = __fmaf_rn(factors.beta1, mi[k], __fmul_rn(factors.one_minus_beta1, gk));
      vi[k] =
          __fmaf_rn(factors.beta2, vi[k], __fmul_rn(factors.one_minus_beta2, __fmul_rn(gk, gk)));
      const float denominator =
          __fadd_rn(__fsqrt_rn(__fmul_rn(vi[k], step.inverse2)), factors.epsilon);
      const float direction = __fdiv_rn(__fmul_rn(mi[k], step.inverse1), denominator);
      w[k] = __fmaf_rn(-step.learning_rate, __fmaf_rn(factors.weight_decay, w[k], direction), w[k]);
    }
    Write(m + i, mi);
    Write(v + i, vi);
    Write(weights + i, w);
    if constexpr (!std::is_same_v<P, float>) Write(parameters + i, w);
    SetGradientsToZero<kCount>(i);
  }

  // bf16 parameters may be memory that never held them.
  template <int kCount>
  __device__ __forceinline__ void Skip(int64_t i) const {
    if constexpr (!std::is_same_v<P, float>) {
      float w[kCount];
      Read(w, weights + i);
      Write(parameters + i, w);
    }
    SetGradientsToZero<kCount>(i);
  }
};

template <typename P, typename G, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    AdamWKernel(const __grid_constant__ Update<P, G> update, int64_t n,
                const StepState* __restrict__ state) {
  constexpr int kCount = kPacked ? kPack : 1;
  const bool skip = state->skip != 0;
  const StepFactors step = {.clip = static_cast<float>(state->clip_scale),
                            .learning_rate = static_cast<float>(state->learning_rate),
                            .inverse1 = static_cast<float>(1 / state->bias_correction1),
                            .inverse2 = static_cast<float>(1 / state->bias_correction2)};
  const int64_t thread = int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kElementwiseThreads * kCount;
  for (int64_t i = thread * kCount; i < n; i += stride) {
    if (i + kCount <= n) {
      skip ? update.template Skip<kCount>(i) : update.template Apply<kCount>(i, step);
    } else {
      for (int64_t k = i; k < n; ++k) {
        skip ? update.template Skip<1>(k) : update.template Apply<1>(k, step);
      }
    }
  }
}

constexpr int64_t kMostBlocks = 2048;

//---- PrepareStep --------------------------------------------------------------------------------

// LearningRate and PrepareStep of ops/optimizer.h. The last bits of cos and pow are those of the
// device's library.
__device__ double LearningRateOnDevice(const OptimizerSettings& settings, int64_t applied) {
  if (applied < settings.warmup_steps) {
    return settings.learning_rate * static_cast<double>(applied + 1) /
           static_cast<double>(settings.warmup_steps);
  }
  if (applied >= settings.total_steps) return settings.min_learning_rate;
  const double progress = static_cast<double>(applied - settings.warmup_steps) /
                          static_cast<double>(settings.total_steps - settings.warmup_steps);
  const double cosine = 0.5 * (1 + cos(std::numbers::pi * progress));
  return settings.min_learning_rate +
         cosine * (settings.learning_rate - settings.min_learning_rate);
}

__global__ void PrepareStepKernel(StepState* state, const double* sums, int64_t n,
                                  const __grid_constant__ OptimizerSettings settings) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += sums[i];
  const float norm = static_cast<float>(sqrt(sum));
  state->gradient_norm = norm;
  state->clip_scale = 1;
  const bool finite = norm <= FLT_MAX;  // not of NaN
  state->skip = finite ? 0 : 1;
  if (!finite) return;
  if (settings.clip_norm > 0) {
    const double scale = settings.clip_norm / (static_cast<double>(norm) + 1e-6);
    state->clip_scale = static_cast<float>(scale < 1 ? scale : 1);
  }
  state->learning_rate = LearningRateOnDevice(settings, state->applied);
  const int64_t applied = state->applied + 1;
  state->applied = applied;
  state->bias_correction1 = 1 - pow(settings.beta1, static_cast<double>(applied));
  state->bias_correction2 = 1 - pow(settings.beta2, static_cast<double>(applied));
}

}  // namespace

cudaError_t PrepareStep(cudaStream_t stream, StepState* state, const double* sums, int64_t n,
                        const OptimizerSettings& settings) {
  return gpu::Launch(stream, dim3(1), dim3(1), 0, PrepareStepKernel, state, sums, n, settings);
}

template <typename P, typename G>
cudaError_t AdamW(cudaStream_t stream, P* parameters, float* master, G* gradients, float* m,
                  float* v, int64_t n, bool decay, const StepState* state,
                  const OptimizerSettings& settings) {
  if (n == 0) return cudaSuccess;
  if constexpr (std::is_same_v<P, float>) master = parameters;
  const Update<P, G> update = {
      .parameters = parameters,
      .weights = master,
      .gradients = gradients,
      .m = m,
      .v = v,
      .factors = {.beta1 = static_cast<float>(settings.beta1),
                  .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
                  .beta2 = static_cast<float>(settings.beta2),
                  .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
                  .epsilon = static_cast<float>(settings.epsilon),
                  .weight_decay = static_cast<float>(decay ? settings.weight_decay : 0)}};
  const bool packed = gpu::AreAligned(parameters, master, gradients, m, v);
  const int64_t blocks = gpu::CeilDiv(n, kElementwiseThreads * (packed ? kPack : 1));
  return gpu::Launch(stream,
                     dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)),
                     dim3(kElementwiseThreads), 0,
                     packed ? AdamWKernel<P, G, true> : AdamWKernel<P, G, false>, update, n, state);
}

template cudaError_t AdamW(cudaStream_t, float*, float*, float*, float*, float*, int64_t, bool,
                           const StepState*, const OptimizerSettings&);
template cudaError_t AdamW(cudaStream_t, BFloat16*, float*, BFloat16*, float*, float*, int64_t,
                           bool, const StepState*, const OptimizerSettings&);
template cudaError_t AdamW(cudaStream_t, BFloat16*, float*, float*, float*, float*, int64_t, bool,
                           const StepState*, const OptimizerSettings&);

}  // namespace zerobox::cuda
