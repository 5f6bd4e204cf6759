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

// linear.cpp
void LinearForward(Threads& threads, float* y, const float* x, const float* w, const float* bias,
                   int64_t rows, int64_t in, int64_t out);
void LinearBackward(Threads& threads, float* dx, float* dw, float* dbias, const float* dy,
                    const float* x, const float* w, int64_t rows, int64_t in, int64_t out);
void HeadForward(Threads& threads, float* logits, const float* x, const float* wte, int64_t rows,
                 int64_t channels, int64_t vocabulary);
void HeadBackward(Threads& threads, float* dx, float* dwte, const float* dlogits, const float* x,
                  const float* wte, int64_t rows, int64_t channels, int64_t vocabulary);

// attention.cpp
void AttentionForward(Threads& threads, float* out, float* logsumexp, const float* qkv,
                      SequenceShape shape, int64_t heads, const DropoutMask& dropout);
void AttentionBackward(Threads& threads, float* dqkv, const float* dout, const float* qkv,
                       const float* out, const float* logsumexp, SequenceShape shape, int64_t heads,
                       const DropoutMask& dropout);

// gelu.cpp
template <typename T>
void GeluForward(Threads& threads, T* out, const T* x, int64_t n);
template <typename T>
void GeluBackward(Threads& threads, T* dx, const T* x, const T* dout, int64_t n);

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
