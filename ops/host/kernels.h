// SPDX-License-Identifier: Apache-2.0
//
// The host kernels, one idea a file: functions over plain pointers that compute what the Ops of the
// same names promise (ops/ops.h says shapes, formulas and what is of which type). T, or P, is float
// or BFloat16; G is float, or BFloat16 where the other is. These are the instances that there are.
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
template <typename T>
void EmbeddingForward(Threads& threads, T* out, const int32_t* tokens, const T* wte, const T* wpe,
                      SequenceShape shape, const DropoutMask& dropout);
template <typename T, typename G>
void EmbeddingBackward(Threads& threads, G* dwte, G* dwpe, const T* dout, const int32_t* tokens,
                       SequenceShape shape, const DropoutMask& dropout);

// layernorm.cpp
template <typename T>
void LayerNormForward(Threads& threads, T* out, float* mean, float* rstd, const T* x,
                      const T* weight, const T* bias, int64_t rows, int64_t channels);
template <typename T, typename G>
void LayerNormBackward(Threads& threads, T* dx, G* dweight, G* dbias, const T* dout, const T* x,
                       const float* mean, const float* rstd, const T* weight, int64_t rows,
                       int64_t channels);

// linear.cpp. The results are the same bits for every number of threads.
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

// attention.cpp. The results are the same bits for every number of threads.
template <typename T>
void AttentionForward(Threads& threads, T* out, float* logsumexp, const T* qkv, SequenceShape shape,
                      int64_t heads, const DropoutMask& dropout);
template <typename T>
void AttentionBackward(Threads& threads, T* dqkv, const T* dout, const T* qkv, const T* out,
                       const float* logsumexp, SequenceShape shape, int64_t heads,
                       const DropoutMask& dropout);

// gelu.cpp
template <typename T>
void GeluForward(Threads& threads, T* out, const T* x, int64_t n);
template <typename T>
void GeluBackward(Threads& threads, T* dx, const T* x, const T* dout, int64_t n);

// residual.cpp
template <typename T>
void ResidualForward(Threads& threads, T* out, const T* x, const T* branch, SequenceShape shape,
                     const DropoutMask& dropout);
template <typename T>
void DropoutBackward(Threads& threads, T* dbranch, const T* dout, SequenceShape shape,
                     const DropoutMask& dropout);

// cross_entropy.cpp
template <typename T>
void CrossEntropyForward(Threads& threads, float* losses, const T* logits, const int32_t* targets,
                         int64_t rows, int64_t vocabulary);
template <typename T>
void CrossEntropyBackward(Threads& threads, T* logits, const int32_t* targets, int64_t rows,
                          int64_t vocabulary, float scale);

// sums.cpp. The sums of numbers and squares are the same bits for every number of threads.
void AccumulateSum(Threads& threads, double* sum, const float* x, int64_t n);
template <typename G>
void AccumulateSquares(Threads& threads, double* sum, const G* x, int64_t n);
template <typename T>
void Add(Threads& threads, T* to, const T* from, int64_t n);
// sums (columns) += the sum over the rows of x (rows, columns), which is taken in fp32.
template <typename T, typename G>
void AddColumnSums(Threads& threads, G* sums, const T* x, int64_t rows, int64_t columns);

// fill.cpp
template <typename T>
void Fill(Threads& threads, T* out, int64_t n, float value);
template <typename T>
void FillNormal(Threads& threads, T* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first,
                float stddev);

// adamw.cpp. `master` are the fp32 weights; null where the parameters are.
template <typename P, typename G>
void AdamW(Threads& threads, P* parameters, float* master, G* gradients, float* m, float* v,
           int64_t n, bool decay, const StepState& state, const OptimizerSettings& settings);

}  // namespace zerobox::host

#endif  // ZEROBOX_OPS_HOST_KERNELS_H_
