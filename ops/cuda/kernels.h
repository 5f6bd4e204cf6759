// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels' launchers, one idea a file (.cu): functions over device memory that enqueue on
// `stream` what the Ops of the same names promise (ops/ops.h says shapes, formulas and what is of
// which type). T is float or BFloat16; G, of parameters' gradients, is float, or BFloat16 where T
// is. These are the instances that there are. A launcher returns CUDA's error of its launches;
// sizes of 0 launch nothing.
//
// Results are the same bits every time, and for every order of blocks and threads. Where a sum over
// rows is split over the GPU, how it is split, and so its last bits, depends on the shape and on
// `multiprocessors`, of the GPU. A `workspace` belongs to the caller, who may use it again for what
// comes later on the stream; nothing of it needs to be set or is left.
#ifndef ZEROBOX_OPS_CUDA_KERNELS_H_
#define ZEROBOX_OPS_CUDA_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "ops/bfloat16.h"
#include "ops/ops.h"
#include "ops/optimizer.h"

namespace zerobox::cuda {

// As host::DropoutMask, with the sample numbers in device memory.
struct DropoutMask {
  float p = 0;
  uint64_t seed = 0;
  const int64_t* samples = nullptr;
  DropoutSite site = DropoutSite::kEmbedding;
  int layer = 0;
};

// layernorm.cu
template <typename T>
cudaError_t LayerNormForward(cudaStream_t stream, T* out, float* mean, float* rstd, const T* x,
                             const T* weight, const T* bias, int64_t rows, int64_t channels);
template <typename T, typename G>
cudaError_t LayerNormBackward(cudaStream_t stream, T* dx, G* dweight, G* dbias, const T* dout,
                              const T* x, const float* mean, const float* rstd, const T* weight,
                              int64_t rows, int64_t channels, float* workspace,
                              int multiprocessors);
// In floats.
int64_t LayerNormBackwardWorkspace(int64_t rows, int64_t channels, int multiprocessors);

// gelu.cu
template <typename T>
cudaError_t GeluForward(cudaStream_t stream, T* out, const T* x, int64_t n);
template <typename T>
cudaError_t GeluBackward(cudaStream_t stream, T* dx, const T* x, const T* dout, int64_t n);
// y (rows, columns) += bias (columns); and out = GELU(y), of y as it is then stored.
template <typename T>
cudaError_t AddBias(cudaStream_t stream, T* y, const T* bias, int64_t rows, int64_t columns);
template <typename T>
cudaError_t AddBiasGelu(cudaStream_t stream, T* out, T* y, const T* bias, int64_t rows,
                        int64_t columns);

// residual.cu
template <typename T>
cudaError_t ResidualForward(cudaStream_t stream, T* out, const T* x, const T* branch,
                            SequenceShape shape, const DropoutMask& dropout);
template <typename T>
cudaError_t DropoutBackward(cudaStream_t stream, T* dbranch, const T* dout, SequenceShape shape,
                            const DropoutMask& dropout);

// residual_layernorm.cu: sum = x + dropout(branch) and out = LayerNorm(sum), with the bits that
// ResidualForward and LayerNormForward give (if x and branch are aligned as sum is). sum may be x
// or branch.
template <typename T>
cudaError_t ResidualLayerNormForward(cudaStream_t stream, T* sum, T* out, float* mean, float* rstd,
                                     const T* x, const T* branch, const T* weight, const T* bias,
                                     SequenceShape shape, const DropoutMask& dropout);

// fill.cu. T may be double in Fill. To and From are float or BFloat16; in Add they are equal, or To
// is float; in Convert they differ.
template <typename T>
cudaError_t Fill(cudaStream_t stream, T* out, int64_t n, float value);
// The bits of NormalAt's logarithm and cosine are those of the device's library.
template <typename T>
cudaError_t FillNormal(cudaStream_t stream, T* out, int64_t n, uint64_t seed,
                       uint64_t random_stream, int64_t first, float stddev);
template <typename To, typename From>
cudaError_t Add(cudaStream_t stream, To* to, const From* from, int64_t n);
template <typename To, typename From>
cudaError_t Convert(cudaStream_t stream, To* to, const From* from, int64_t n);

// column_sums.cu
// sums (columns) += the sum over the rows of x (rows, columns), which is taken in fp32.
template <typename T, typename G>
cudaError_t AddColumnSums(cudaStream_t stream, G* sums, const T* x, int64_t rows, int64_t columns,
                          float* workspace, int multiprocessors);
// In floats.
int64_t AddColumnSumsWorkspace(int64_t rows, int64_t columns, int multiprocessors);

// embedding.cu. Tokens are of [0, vocabulary), which is not checked.
template <typename T>
cudaError_t EmbeddingForward(cudaStream_t stream, T* out, const int32_t* tokens, const T* wte,
                             const T* wpe, SequenceShape shape, const DropoutMask& dropout);
template <typename T, typename G>
cudaError_t EmbeddingBackward(cudaStream_t stream, G* dwte, G* dwpe, const T* dout,
                              const int32_t* tokens, SequenceShape shape, int64_t vocabulary,
                              const DropoutMask& dropout, void* workspace);
// In bytes, on an address of 256. Asks the current device, as how it sorts depends on it.
int64_t EmbeddingBackwardWorkspace(SequenceShape shape, int64_t vocabulary);

// cross_entropy.cu. Targets are of [0, vocabulary), or negative: ignored.
template <typename T>
cudaError_t CrossEntropyForward(cudaStream_t stream, float* losses, const T* logits,
                                const int32_t* targets, int64_t rows, int64_t vocabulary);
template <typename T>
cudaError_t CrossEntropyBackward(cudaStream_t stream, T* logits, const int32_t* targets,
                                 int64_t rows, int64_t vocabulary, float scale);

// attention_fp32.cu, attention_bf16.cu. Heads of at most 128 channels: InvalidValue beyond.
template <typename T>
cudaError_t AttentionForward(cudaStream_t stream, T* out, float* logsumexp, const T* qkv,
                             SequenceShape shape, int64_t heads, const DropoutMask& dropout);
template <typename T>
cudaError_t AttentionBackward(cudaStream_t stream, T* dqkv, const T* dout, const T* qkv,
                              const T* out, const float* logsumexp, SequenceShape shape,
                              int64_t heads, const DropoutMask& dropout, float* workspace);
// In floats.
int64_t AttentionBackwardWorkspace(SequenceShape shape, int64_t heads);

// sums.cu. The sums are in device memory.
cudaError_t AccumulateSum(cudaStream_t stream, double* sum, const float* x, int64_t n,
                          double* workspace);
template <typename G>
cudaError_t AccumulateSquares(cudaStream_t stream, double* sum, const G* x, int64_t n,
                              double* workspace);
// Of both, in doubles.
int64_t AccumulateWorkspace(int64_t n);

// adamw.cu. `state` is in device memory, as are the n partial sums of PrepareStep. `master` are the
// fp32 weights; null where the parameters are.
cudaError_t PrepareStep(cudaStream_t stream, StepState* state, const double* sums, int64_t n,
                        const OptimizerSettings& settings);
template <typename P, typename G>
cudaError_t AdamW(cudaStream_t stream, P* parameters, float* master, G* gradients, float* m,
                  float* v, int64_t n, bool decay, const StepState* state,
                  const OptimizerSettings& settings);

// rank_sums.cu. to[k][i] = ((from[0][i] + from[1][i]) + from[2][i]) + ... for every k, with the
// bits of SumInOrder (ops/collectives/reduce.h) but for NaN's. Each of `to` is one of `from`, or
// overlaps none. T is float, BFloat16, double, uint32_t or uint64_t. InvalidValue for more buffers
// of either kind than kMostSummedRanks, or none.
inline constexpr int kMostSummedRanks = 64;
template <typename T>
cudaError_t SumRanks(cudaStream_t stream, std::span<T* const> to, std::span<const T* const> from,
                     int64_t n);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_KERNELS_H_
