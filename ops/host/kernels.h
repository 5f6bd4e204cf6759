// SPDX-License-Identifier: Apache-2.0
//
// The host kernels, one idea a file: functions over plain pointers that compute what the Ops of the
// same names promise (ops/ops.h says shapes and formulas). All arrays are fp32 unless typed
// otherwise.
#ifndef ZEROBOX_OPS_HOST_KERNELS_H_
#define ZEROBOX_OPS_HOST_KERNELS_H_

#include <cstdint>

#include "ops/host/threads.h"
#include "ops/ops.h"
#include "ops/optimizer.h"
#include "ops/philox.h"

namespace zerobox::host {

// Dropout, with its sample numbers in reach.
struct DropoutMask {
  float p = 0;
  uint64_t seed = 0;
  const int64_t* samples = nullptr;
  DropoutSite site = DropoutSite::kEmbedding;
  int layer = 0;
};

// embedding.cpp
void EmbeddingForward(Threads& threads, float* out, const int32_t* tokens, const float* wte,
                      const float* wpe, SequenceShape shape, const DropoutMask& dropout);
void EmbeddingBackward(Threads& threads, float* dwte, float* dwpe, const float* dout,
                       const int32_t* tokens, SequenceShape shape, const DropoutMask& dropout);

// layernorm.cpp
void LayerNormForward(Threads& threads, float* out, float* mean, float* rstd, const float* x,
                      const float* weight, const float* bias, int64_t rows, int64_t channels);
void LayerNormBackward(Threads& threads, float* dx, float* dweight, float* dbias, const float* dout,
                       const float* x, const float* mean, const float* rstd, const float* weight,
                       int64_t rows, int64_t channels);

// linear.cpp. T is float or BFloat16; the gradients of parameters are G: float, or what T is. The
// results are the same bits for every number of threads.
template <typename T>
void LinearForward(Threads& threads, T* y, const T* x, const T* w, const T* bias, int64_t rows,
                   int64_t in, int64_t out);
template <typename T, typename G>
void LinearBackward(Threads& threads, T* dx, G* dw, G* dbias, const T* dy, const T* x, const T* w,
                    int64_t rows, int64_t in, int64_t out);
template <typename T>
void HeadForward(Threads& threads, T* logits, const T* x, const T* wte, int64_t rows,
                 int64_t channels, int64_t vocabulary);
template <typename T, typename G>
void HeadBackward(Threads& threads, T* dx, G* dwte, const T* dlogits, const T* x, const T* wte,
                  int64_t rows, int64_t channels, int64_t vocabulary);

// attention.cpp. T is float or BFloat16. The results are the same bits for every number of threads.
template <typename T>
void AttentionForward(Threads& threads, T* out, float* logsumexp, const T* qkv, SequenceShape shape,
                      int64_t heads, const DropoutMask& dropout);
template <typename T>
void AttentionBackward(Threads& threads, T* dqkv, const T* dout, const T* qkv, const T* out,
                       const float* logsumexp, SequenceShape shape, int64_t heads,
                       const DropoutMask& dropout);

// gelu.cpp
void GeluForward(Threads& threads, float* out, const float* x, int64_t n);
void GeluBackward(Threads& threads, float* dx, const float* x, const float* dout, int64_t n);

// residual.cpp
void ResidualForward(Threads& threads, float* out, const float* x, const float* branch,
                     SequenceShape shape, const DropoutMask& dropout);
void DropoutBackward(Threads& threads, float* dbranch, const float* dout, SequenceShape shape,
                     const DropoutMask& dropout);

// cross_entropy.cpp
void CrossEntropyForward(Threads& threads, float* losses, const float* logits,
                         const int32_t* targets, int64_t rows, int64_t vocabulary);
void CrossEntropyBackward(Threads& threads, float* logits, const int32_t* targets, int64_t rows,
                          int64_t vocabulary, float scale);

// sums.cpp. The sums of numbers and squares are the same bits for every number of threads.
void AccumulateSum(Threads& threads, double* sum, const float* x, int64_t n);
void AccumulateSquares(Threads& threads, double* sum, const float* x, int64_t n);
void Add(Threads& threads, float* to, const float* from, int64_t n);
// sums (columns) += the sum over the rows of x (rows, columns).
void AddColumnSums(Threads& threads, float* sums, const float* x, int64_t rows, int64_t columns);

// fill.cpp
void Fill(Threads& threads, float* out, int64_t n, float value);
void FillNormal(Threads& threads, float* out, int64_t n, uint64_t seed, uint64_t stream,
                int64_t first, float stddev);

// adamw.cpp
void AdamW(Threads& threads, float* parameters, const float* gradients, float* m, float* v,
           int64_t n, bool decay, const StepState& state, const OptimizerSettings& settings);

}  // namespace zerobox::host

#endif  // ZEROBOX_OPS_HOST_KERNELS_H_
