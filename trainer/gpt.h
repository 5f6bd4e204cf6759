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

#include <cstdint>
#include <vector>

#include "ops/device/device.h"
#include "ops/ops.h"
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
    Buffer in;          // the residual stream as the block before left it
    Norm norm1, norm2;
    Buffer qkv, attention, logsumexp, middle, fc, gelu, out;
  };
  Batch batch;
  bool training = false;
  Buffer dstream;   // gradient of the residual stream, (B, T, C)
  Buffer embedded;  // the first block's input
  std::vector<Block> blocks;
  size_t head_height = 0;
  Norm final_norm;
  Buffer logits;
  Buffer losses;
  std::vector<Buffer> stack;  // everything allocated, oldest first
};

class Gpt {
 public:
  Gpt(Device& device, const ModelConfig& config, const Layout& layout, double dropout,
      uint64_t seed);

  // Training keeps what backward needs; otherwise dropout is off.
  MicroBatchInFlight Begin(const Batch& batch, bool training) const;
  // One visit. `w` is the whole of the visit's unit (Stage0::Acquire). The head's forward adds the
  // sum of the losses to `loss_sum` (fp64, 1); its backward scales the loss by `loss_scale`.
  void Forward(const Visit& visit, Buffer w, MicroBatchInFlight& mb, Buffer loss_sum) const;
  void Backward(const Visit& visit, Buffer w, MicroBatchInFlight& mb, Stage0& zero,
                float loss_scale) const;
  // Frees what is left, after a forward pass alone.
  void End(MicroBatchInFlight& mb) const;

 private:
  using Block = MicroBatchInFlight::Block;
  using Norm = MicroBatchInFlight::Norm;

  void LookupForward(Buffer w, MicroBatchInFlight& mb) const;
  void BlockForward(int block, Buffer w, MicroBatchInFlight& mb) const;
  void HeadForward(Buffer w, MicroBatchInFlight& mb, Buffer loss_sum) const;
  void HeadBackward(Buffer w, MicroBatchInFlight& mb, Stage0& zero, float loss_scale) const;
  void BlockBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const;
  void MlpBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const;
  void AttentionBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const;
  void LookupBackward(MicroBatchInFlight& mb, Stage0& zero) const;

  Buffer Push(MicroBatchInFlight& mb, int64_t elements, const char* label) const;
  void PopTo(MicroBatchInFlight& mb, size_t height) const;
  Norm NormForward(MicroBatchInFlight& mb, Buffer x, Buffer weight, Buffer bias) const;
  // A linear layer's or a norm's two gradients, asked for and given back.
  void LinearBackward(Buffer dx, Buffer dy, Buffer x, Buffer w, ParameterId weight, int64_t rows,
                      Stage0& zero) const;
  void NormBackward(Buffer dx, Buffer dout, Buffer x, const Norm& norm, Buffer w,
                    ParameterId weight, int64_t rows, Stage0& zero) const;
  // The gradient of a branch behind its dropout: `dstream` itself where nothing is dropped.
  Buffer BranchGradient(MicroBatchInFlight& mb, int block, DropoutSite site) const;
  Buffer In(Buffer w, ParameterId parameter) const;
  SequenceShape Shape(const MicroBatchInFlight& mb) const;
  Dropout Drop(const MicroBatchInFlight& mb, int layer, DropoutSite site) const;

  Device& device_;
  Ops& ops_;
  ModelConfig config_;
  const Layout& layout_;
  float dropout_;
  uint64_t seed_;
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_GPT_H_
