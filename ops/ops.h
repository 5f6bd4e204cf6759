// SPDX-License-Identifier: Apache-2.0
//
// Ops: the mathematics of a small GPT, on one device. Every call is enqueued on the one stream that
// the Ops was made for, in order: Device::ops() is that of the compute stream.
//
// Types: parameters, activations and gradients of activations are all fp32 or all bf16 (the kernels
// call this T). Gradients of parameters are of G: fp32, or bf16 where the parameters are.
// Statistics are fp32: mean, rstd, logsumexp, losses. Arithmetic is fp32; bf16 only stores
// (ops/bfloat16.h), and a result is rounded once, when it is written. So an addition to a gradient
// rounds an element once a call: what the call adds is summed over all rows in fp32, added in fp32,
// and then rounded.
//
// Shapes: B sequences, T positions, C channels, H heads (C divisible by H), V vocabulary; "rows" is
// B*T. Arrays are row-major and dense. A name with d in front is the gradient of the loss with
// respect to it. Gradients of parameters are ADDED to, so that micro-batches and tied weights
// accumulate; whether another gradient is written or added to is said at the call.
//
// An element-wise kernel gives an element the same bits wherever it stands in the buffer. How work
// is split over threads is fixed by shape and thread count, so equal calls give equal bits.
#ifndef ZEROBOX_OPS_OPS_H_
#define ZEROBOX_OPS_OPS_H_

#include <cstdint>

#include "ops/device/buffer.h"
#include "ops/optimizer.h"
#include "ops/philox.h"

namespace zerobox {

struct SequenceShape {
  int64_t batch;      // B
  int64_t positions;  // T
  int64_t channels;   // C
  int64_t rows() const { return batch * positions; }
  int64_t elements() const { return rows() * channels; }
};

// Which dropout mask. An element is kept with probability 1 - p and scaled by 1 / (1 - p); the mask
// is Philox(seed, global sample number, layer, site, element in the sample), so it depends on no
// rank, micro-batch, step or thread, and backward draws it again instead of storing it.
enum class DropoutSite : uint8_t { kEmbedding, kAttention, kAttentionOutput, kMlpOutput };
struct Dropout {
  float p = 0;  // 0: the call is the identity and reads nothing below
  uint64_t seed = 0;
  Buffer samples;  // int64 (B): global sample numbers
  int layer = 0;
  DropoutSite site = DropoutSite::kEmbedding;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // out (B, T, C) = dropout(wte[tokens] + wpe[0..T)); tokens int32 (B, T), wte (V, C), wpe (>= T,
  // C).
  virtual void EmbeddingForward(Buffer out, Buffer tokens, Buffer wte, Buffer wpe,
                                SequenceShape shape, const Dropout& dropout) = 0;
  // Adds to dwte and dwpe, of G.
  virtual void EmbeddingBackward(Buffer dwte, Buffer dwpe, Buffer dout, Buffer tokens,
                                 SequenceShape shape, const Dropout& dropout) = 0;

  // Layer normalization (arXiv:1607.06450), eps 1e-5. x, out (rows, C); mean, rstd fp32 (rows).
  virtual void LayerNormForward(Buffer out, Buffer mean, Buffer rstd, Buffer x, Buffer weight,
                                Buffer bias, int64_t rows, int64_t channels) = 0;
  // Adds to dx (the residual stream's gradient passes by), and to dweight and dbias, of G.
  virtual void LayerNormBackward(Buffer dx, Buffer dweight, Buffer dbias, Buffer dout, Buffer x,
                                 Buffer mean, Buffer rstd, Buffer weight, int64_t rows,
                                 int64_t channels) = 0;

  // y (rows, out) = x (rows, in) w (in, out) + bias (out).
  virtual void LinearForward(Buffer y, Buffer x, Buffer w, Buffer bias, int64_t rows, int64_t in,
                             int64_t out) = 0;
  // Writes dx = dy w^T; adds x^T dy to dw and the column sums of dy to dbias, both of G.
  virtual void LinearBackward(Buffer dx, Buffer dw, Buffer dbias, Buffer dy, Buffer x, Buffer w,
                              int64_t rows, int64_t in, int64_t out) = 0;

  // The tied head. logits (rows, V) = x (rows, C) wte^T.
  virtual void HeadForward(Buffer logits, Buffer x, Buffer wte, int64_t rows, int64_t channels,
                           int64_t vocabulary) = 0;
  // Writes dx = dlogits wte; adds dlogits^T x to dwte, of G.
  virtual void HeadBackward(Buffer dx, Buffer dwte, Buffer dlogits, Buffer x, Buffer wte,
                            int64_t rows, int64_t channels, int64_t vocabulary) = 0;

  // Causal multi-head attention, computed block by block so that nothing T x T is kept
  // (arXiv:2205.14135, section 3.1). qkv (B, T, 3C): queries, keys, values, each (H, C/H);
  // out (B, T, C); logsumexp fp32 (B, H, T) of the scaled scores, for the backward pass.
  // The dropout mask's element in the sample is (head * T + query) * T + key.
  virtual void AttentionForward(Buffer out, Buffer logsumexp, Buffer qkv, SequenceShape shape,
                                int64_t heads, const Dropout& dropout) = 0;
  // Writes dqkv.
  virtual void AttentionBackward(Buffer dqkv, Buffer dout, Buffer qkv, Buffer out, Buffer logsumexp,
                                 SequenceShape shape, int64_t heads, const Dropout& dropout) = 0;

  // GELU, tanh form (arXiv:1606.08415, section 2).
  virtual void GeluForward(Buffer out, Buffer x) = 0;
  // Writes dx; dx may be dout.
  virtual void GeluBackward(Buffer dx, Buffer x, Buffer dout) = 0;

  // out = x + dropout(branch), (B, T, C). out may be x or branch.
  virtual void ResidualForward(Buffer out, Buffer x, Buffer branch, SequenceShape shape,
                               const Dropout& dropout) = 0;
  // Writes dbranch = mask / (1 - p) * dout. dbranch may be dout.
  virtual void DropoutBackward(Buffer dbranch, Buffer dout, SequenceShape shape,
                               const Dropout& dropout) = 0;

  // ---- two steps in one, for devices that save a pass over memory so; as here for those that do
  // not

  // before (rows, out) = x w + bias; y = GELU(before), where a device may take the GELU before it
  // rounds.
  virtual void LinearGeluForward(Buffer y, Buffer before, Buffer x, Buffer w, Buffer bias,
                                 int64_t rows, int64_t in, int64_t out) {
    LinearForward(before, x, w, bias, rows, in, out);
    GeluForward(y, before);
  }
  // Of y = x w + bias where x = GELU(before): as LinearBackward, but on to the gradient of before,
  // (rows, in).
  virtual void GeluLinearBackward(Buffer dbefore, Buffer dw, Buffer dbias, Buffer dy, Buffer before,
                                  Buffer x, Buffer w, int64_t rows, int64_t in, int64_t out) {
    LinearBackward(dbefore, dw, dbias, dy, x, w, rows, in, out);
    GeluBackward(dbefore, before, dbefore);
  }
  // sum = x + dropout(branch); out = the layer normalization of sum, with its mean and rstd. sum
  // may be x or branch.
  virtual void ResidualLayerNormForward(Buffer sum, Buffer out, Buffer mean, Buffer rstd, Buffer x,
                                        Buffer branch, Buffer weight, Buffer bias,
                                        SequenceShape shape, const Dropout& dropout) {
    ResidualForward(sum, x, branch, shape, dropout);
    LayerNormForward(out, mean, rstd, sum, weight, bias, shape.rows(), shape.channels);
  }

  // losses (fp32, rows) = -log softmax(logits)[target] in nats, 0 where target (int32) is -1.
  virtual void CrossEntropyForward(Buffer losses, Buffer logits, Buffer targets, int64_t rows,
                                   int64_t vocabulary) = 0;
  // Replaces logits by their gradient: scale * (softmax(logits) - onehot(target)), 0 in ignored
  // rows.
  virtual void CrossEntropyBackward(Buffer logits, Buffer targets, int64_t rows, int64_t vocabulary,
                                    float scale) = 0;

  // sum (fp64, 1) += the sum of x (fp32), taken in fp64.
  virtual void AccumulateSum(Buffer sum, Buffer x) = 0;
  // sum (fp64, 1) += the sum of the squares of x (fp32 or bf16), taken in fp64; lanes are counted
  // from x's first element, so equal contents give equal bits wherever they stand.
  virtual void AccumulateSquares(Buffer sum, Buffer x) = 0;
  // to += from, which are both fp32 or both bf16.
  virtual void Add(Buffer to, Buffer from) = 0;

  // Fills with value (fp64 buffers too); fills with normal(0, stddev) numbers that depend on (seed,
  // stream, first + index) only, see NormalAt in ops/philox.h. In bf16 they are the fp32 numbers,
  // rounded.
  virtual void Fill(Buffer out, float value) = 0;
  virtual void FillNormal(Buffer out, uint64_t seed, uint64_t stream, int64_t first,
                          float stddev) = 0;

  // One optimizer step, see ops/optimizer.h. `state` is a StepState. `sums` (fp64, n) are the
  // partial sums of the gradient's squares: added in order, in fp64.
  virtual void PrepareStep(Buffer state, Buffer sums, const OptimizerSettings& settings) = 0;
  // AdamW over equal-sized buffers, in one pass: updates m, v (fp32) and the weights, and sets the
  // gradients (of G) to zero. Where the parameters are bf16, `master` are the fp32 weights that are
  // updated, and the parameters become these, rounded. Where the parameters are fp32 they are
  // updated themselves, and master is empty. A skipped step leaves m, v and the weights as they
  // are; parameters in bf16 are written again, so that they may be memory that never held them.
  virtual void AdamW(Buffer parameters, Buffer master, Buffer gradients, Buffer m, Buffer v,
                     bool decay, Buffer state, const OptimizerSettings& settings) = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_OPS_H_
