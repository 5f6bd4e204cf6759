// SPDX-License-Identifier: Apache-2.0
//
// Gpt: GPT-2 by hand, visit by visit: learned positions, pre-LayerNorm, GELU, a head tied to the
// token embedding (Radford et al., "Language models are unsupervised multitask learners", 2019,
// section 2.3). Written once against Ops, so it runs on every kind of device, and against
// the verbs of a ZeRO stage, so it knows no stage.
//
// Shapes: B sequences, T positions, C = n_embd, H = n_head, V = vocab_size; rows = B T.
#ifndef ZEROBOX_TRAINER_GPT_H_
#define ZEROBOX_TRAINER_GPT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/device/device.h"
#include "ops/ops.h"
#include "trainer/activation_checkpoints.h"
#include "trainer/settings.h"
#include "zero/layout.h"
#include "zero/stage0.h"

namespace zerobox {

// The parameters of the ends stand first, then those of each block. Shapes and names are GPT-2's as
// its published checkpoints have them: linear weights are (in, out).
enum EndsParameter : ParameterId {
  kTokenEmbedding,
  kPositionEmbedding,
  kFinalNormWeight,
  kFinalNormBias
};
enum BlockParameter : ParameterId {
  kNorm1Weight,
  kNorm1Bias,
  kQkvWeight,
  kQkvBias,
  kProjectionWeight,
  kProjectionBias,
  kNorm2Weight,
  kNorm2Bias,
  kFcWeight,
  kFcBias,
  kMlpProjectionWeight,
  kMlpProjectionBias,
};
inline constexpr int kEndsParameters = 4;
inline constexpr int kBlockParameters = 12;

std::vector<ParameterSpec> GptParameters(const ModelConfig& config);

// How a parameter begins: normal(0, stddev) numbers, or a constant where stddev is 0. The deviation
// is 0.02 sqrt(768 / n_embd), which is GPT-2's 0.02 at its width, and 1 / sqrt(2 n_layer) of that
// where a weight writes to the residual stream.
struct InitialValue {
  double stddev = 0;
  float constant = 0;
};
InitialValue InitialValueOf(const ModelConfig& config, ParameterId parameter);

// Rows of logits that the head takes at a time: what the budget holds, at least one, of `rows`.
inline int64_t RowsOfLogits(int64_t logits_bytes, int64_t vocabulary, DType dtype, int64_t rows) {
  return std::clamp<int64_t>(logits_bytes / (vocabulary * SizeOf(dtype)), 1, rows);
}

// What a micro-batch reads, in device memory.
struct Batch {
  Buffer inputs;          // int32 (B, T)
  Buffer targets;         // int32 (B, T), -1 is ignored
  Buffer samples;         // int64 (B), global sample numbers, for dropout
  int64_t sequences = 0;  // B
  int64_t positions = 0;  // T
};

// A micro-batch on its way through the model: its batch, and what its forward visits keep for their
// backward visits. Activations are a stack: the last visit's are on top.
struct MicroBatchInFlight {
  struct Norm {
    Buffer out, mean, rstd;
  };
  struct Block {
    size_t height = 0;  // of the stack below it
    BlockTensors tensors;
    Buffer operator[](BlockTensor tensor) const { return tensors[tensor]; }
  };
  Batch batch;
  bool training = false;
  Buffer loss_sum;
  Buffer dstream;  // gradient of the residual stream, (B, T, C)
  std::vector<Block> blocks;
  Buffer head_in;  // the residual stream as the last block left it
  size_t head_height = 0;
  Norm final_norm;
  Buffer logits;              // (V), of a sequence's last position: sampling
  std::vector<Buffer> stack;  // everything allocated, oldest first
};

// One micro-batch is in flight at a time.
class Gpt {
 public:
  // Of the settings it takes what concerns the model. `layout` stays.
  Gpt(Device& device, const Layout& layout, const TrainSettings& settings);

  // The sum of the losses is added to `loss_sum` (fp64, 1), by the head's backward.
  MicroBatchInFlight BeginTraining(const Batch& batch, Buffer loss_sum) const;
  // Forward visits alone: nothing is kept, dropout is off. The head adds to `loss_sum`.
  MicroBatchInFlight BeginEvaluation(const Batch& batch, Buffer loss_sum) const;
  // Forward visits of one sequence: the head leaves its last position's logits.
  MicroBatchInFlight BeginSampling(const Batch& batch) const;

  // One visit. `w` is the whole of the visit's unit (Stage0::Acquire). The gradient is that of the
  // sum of the losses times `loss_scale`.
  void Forward(const Visit& visit, Buffer w, MicroBatchInFlight& mb);
  void Backward(const Visit& visit, Buffer w, MicroBatchInFlight& mb, Stage0& zero,
                float loss_scale);
  // Frees what is left, after forward visits alone.
  void End(MicroBatchInFlight& mb);

 private:
  using Block = MicroBatchInFlight::Block;
  using Norm = MicroBatchInFlight::Norm;

  void LookupForward(Buffer w, MicroBatchInFlight& mb);
  void BlockForward(int block, Buffer w, MicroBatchInFlight& mb);
  // What a block's backward reads: all of it in the forward visit, what was not kept in the
  // backward visit.
  void ComputeInside(Pass pass, int block, Buffer w, MicroBatchInFlight& mb) const;
  void HeadForward(Buffer w, MicroBatchInFlight& mb) const;
  void HeadBackward(Buffer w, MicroBatchInFlight& mb, Stage0& zero, float loss_scale) const;
  void BlockBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero);
  void MlpBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const;
  void AttentionBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const;
  void LookupBackward(MicroBatchInFlight& mb, Stage0& zero) const;

  // Memory for the residual stream as this block will find it; block n_layer is the head.
  Buffer OpenStream(int block, MicroBatchInFlight& mb);
  // Logits in chunks of rows within their budget, and from each chunk the losses; and where `dnorm`
  // is not empty, the gradients of the final norm's output and of the tied embedding.
  void Losses(Buffer w, MicroBatchInFlight& mb, Buffer dnorm, Buffer dtokens,
              float loss_scale) const;

  Buffer Push(MicroBatchInFlight& mb, DType dtype, int64_t elements, const char* label) const;
  // (B, T, C) in the type of the activations.
  Buffer PushStream(MicroBatchInFlight& mb, const char* label) const;
  void PopTo(MicroBatchInFlight& mb, size_t height) const;
  Norm FinalNorm(Buffer w, Buffer x, MicroBatchInFlight& mb) const;
  // A linear layer's or a norm's two gradients, asked for and given back. Where x is a GELU, dx is
  // the gradient of what was before it.
  void LinearBackward(Buffer dx, Buffer dy, Buffer x, Buffer w, ParameterId weight, int64_t rows,
                      Stage0& zero, Buffer before_gelu = {}) const;
  void NormBackward(Buffer dx, Buffer dout, Buffer x, const Norm& norm, Buffer w,
                    ParameterId weight, int64_t rows, Stage0& zero) const;
  // The gradient of a branch behind its dropout: `dstream` itself where nothing is dropped.
  Buffer BranchGradient(MicroBatchInFlight& mb, int block, DropoutSite site) const;
  Buffer In(Buffer w, ParameterId parameter) const;
  // Backward reads checkpoints, and computes again what they lack.
  bool Checkpointed() const;
  SequenceShape Shape(const MicroBatchInFlight& mb) const;
  Dropout Drop(const MicroBatchInFlight& mb, int layer, DropoutSite site) const;

  Device& device_;
  Ops& ops_;
  const Layout& layout_;
  const ModelConfig config_;
  const DType dtype_;
  const float dropout_;
  const uint64_t seed_;
  const int64_t logits_bytes_;
  const ActivationCheckpointing checkpointing_;
  ActivationCheckpoints checkpoints_;
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_GPT_H_
