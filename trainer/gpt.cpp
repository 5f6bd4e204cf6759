// SPDX-License-Identifier: Apache-2.0
#include "trainer/gpt.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/step_programs.h"

namespace zerobox {
namespace {

ParameterId OfBlock(int64_t block, BlockParameter parameter) {
  return static_cast<ParameterId>(kEndsParameters + block * kBlockParameters + parameter);
}

constexpr int64_t kMlpRatio = 4;

}  // namespace

std::vector<ParameterSpec> GptParameters(const ModelConfig& config) {
  const int64_t c = config.n_embd;
  std::vector<ParameterSpec> specs = {
      {"wte.weight", {config.vocab_size, c}, kEnds, true},
      {"wpe.weight", {config.seq_len, c}, kEnds, true},
      {"ln_f.weight", {c}, kEnds, false},
      {"ln_f.bias", {c}, kEnds, false},
  };
  for (int64_t block = 0; block < config.n_layer; ++block) {
    const UnitId unit = BlockUnit(block);
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      const bool matrix = shape.size() == 2;
      specs.push_back({absl::StrCat("h.", block, ".", name), std::move(shape), unit, matrix});
    };
    add("ln_1.weight", {c});
    add("ln_1.bias", {c});
    add("attn.c_attn.weight", {c, 3 * c});
    add("attn.c_attn.bias", {3 * c});
    add("attn.c_proj.weight", {c, c});
    add("attn.c_proj.bias", {c});
    add("ln_2.weight", {c});
    add("ln_2.bias", {c});
    add("mlp.c_fc.weight", {c, kMlpRatio * c});
    add("mlp.c_fc.bias", {kMlpRatio * c});
    add("mlp.c_proj.weight", {kMlpRatio * c, c});
    add("mlp.c_proj.bias", {c});
  }
  return specs;
}

InitialValue InitialValueOf(const ModelConfig& config, ParameterId parameter) {
  // GPT-2's deviation at its width of 768; a sum over fewer channels wants larger terms.
  const double stddev = 0.02 * std::sqrt(768.0 / static_cast<double>(config.n_embd));
  if (parameter < kEndsParameters) {
    if (parameter == kFinalNormWeight) return {.constant = 1};
    if (parameter == kFinalNormBias) return {};
    return {.stddev = stddev};
  }
  switch ((parameter - kEndsParameters) % kBlockParameters) {
    case kNorm1Weight:
    case kNorm2Weight:
      return {.constant = 1};
    case kQkvWeight:
    case kFcWeight:
      return {.stddev = stddev};
    case kProjectionWeight:
    case kMlpProjectionWeight:
      return {.stddev = stddev / std::sqrt(2.0 * static_cast<double>(config.n_layer))};
    default:
      return {};
  }
}

Gpt::Gpt(Device& device, const Layout& layout, const TrainSettings& settings)
    : device_(device),
      ops_(device.ops()),
      layout_(layout),
      config_(settings.model),
      dtype_(settings.dtype),
      dropout_(static_cast<float>(settings.dropout)),
      seed_(settings.seed),
      logits_bytes_(settings.logits_bytes),
      checkpointing_(settings.activation_checkpointing),
      checkpoints_(device, settings) {}

MicroBatchInFlight Gpt::BeginTraining(const Batch& batch, Buffer loss_sum) const {
  MicroBatchInFlight mb = BeginEvaluation(batch, loss_sum);
  mb.training = true;
  return mb;
}

MicroBatchInFlight Gpt::BeginEvaluation(const Batch& batch, Buffer loss_sum) const {
  MicroBatchInFlight mb;
  mb.batch = batch;
  mb.loss_sum = loss_sum;
  mb.blocks.resize(config_.n_layer);
  return mb;
}

MicroBatchInFlight Gpt::BeginSampling(const Batch& batch) const {
  assert(batch.sequences == 1);
  return BeginEvaluation(batch, /*loss_sum=*/{});
}

void Gpt::End(MicroBatchInFlight& mb) {
  PopTo(mb, 0);
  if (Checkpointed()) checkpoints_.Release(0);
}

void Gpt::Forward(const Visit& visit, Buffer w, MicroBatchInFlight& mb) {
  if (visit.layer == kLookup) return LookupForward(w, mb);
  if (visit.layer == kHead) return HeadForward(w, mb);
  BlockForward(visit.unit - BlockUnit(0), w, mb);
}

void Gpt::Backward(const Visit& visit, Buffer w, MicroBatchInFlight& mb, Stage0& zero,
                   float loss_scale) {
  if (visit.layer == kLookup) return LookupBackward(mb, zero);
  if (visit.layer == kHead) return HeadBackward(w, mb, zero, loss_scale);
  BlockBackward(visit.unit - BlockUnit(0), w, mb, zero);
}

// ---- forward ----

void Gpt::LookupForward(Buffer w, MicroBatchInFlight& mb) {
  // At the bottom of the stack, because it outlives everything that backward pops. Early costs
  // nothing: memory peaks in backward.
  if (mb.training) mb.dstream = PushStream(mb, "gradient of the residual stream");
  const Buffer out = OpenStream(0, mb);
  ops_.EmbeddingForward(out, mb.batch.inputs, In(w, kTokenEmbedding), In(w, kPositionEmbedding),
                        Shape(mb), Drop(mb, 0, DropoutSite::kEmbedding));
}

void Gpt::BlockForward(int block, Buffer w, MicroBatchInFlight& mb) {
  const SequenceShape shape = Shape(mb);
  const auto p = [&](BlockParameter parameter) { return In(w, OfBlock(block, parameter)); };
  Block& a = mb.blocks[block];
  a.height = mb.stack.size();
  const Buffer out = OpenStream(block + 1, mb);
  const size_t inside = mb.stack.size();
  const bool keep = mb.training && Checkpointed();
  const bool input_only = checkpointing_ == ActivationCheckpointing::kFull;
  if (keep && input_only) checkpoints_.Written(block);
  ComputeInside(Pass::kForward, block, w, mb);

  // out = middle + dropout(gelu(norm2(middle) W) W'). The block's backward needs nothing of this.
  if (keep && block + 1 < config_.n_layer) checkpoints_.AwaitSlot(block + 1);
  ops_.LinearForward(out, a[kGelu], p(kMlpProjectionWeight), p(kMlpProjectionBias), shape.rows(),
                     kMlpRatio * shape.channels, shape.channels);
  ops_.ResidualForward(out, a[kMiddle], out, shape, Drop(mb, block, DropoutSite::kMlpOutput));
  if (keep && !input_only) checkpoints_.Written(block);
  if (keep || !mb.training) PopTo(mb, inside);
}

void Gpt::ComputeInside(Pass pass, int block, Buffer w, MicroBatchInFlight& mb) const {
  const SequenceShape shape = Shape(mb);
  const int64_t rows = shape.rows();
  const int64_t c = shape.channels;
  const auto p = [&](BlockParameter parameter) { return In(w, OfBlock(block, parameter)); };
  Block& a = mb.blocks[block];
  // Finds memory for tensors, and says whether they are to be computed.
  const auto make = [&](std::initializer_list<BlockTensor> tensors) {
    bool missing = pass == Pass::kForward;
    for (const BlockTensor tensor : tensors) {
      if (InCheckpoint(checkpointing_, tensor)) continue;  // Open has found it
      a.tensors[tensor] = Push(mb, IsStatistic(tensor) ? DType::kFloat32 : dtype_,
                               ElementsOf(tensor, config_, rows), kBlockTensorSpecs[tensor].label);
      missing = true;
    }
    return missing;
  };

  // middle = in + dropout(attention(norm1(in) W) W')
  if (make({kNorm1Mean, kNorm1Rstd, kNorm1})) {
    ops_.LayerNormForward(a[kNorm1], a[kNorm1Mean], a[kNorm1Rstd], a[kBlockIn], p(kNorm1Weight),
                          p(kNorm1Bias), rows, c);
  }
  if (make({kQkv})) {
    ops_.LinearForward(a[kQkv], a[kNorm1], p(kQkvWeight), p(kQkvBias), rows, c, 3 * c);
  }
  if (make({kLogSumExp, kAttention})) {
    ops_.AttentionForward(a[kAttention], a[kLogSumExp], a[kQkv], shape, config_.n_head,
                          Drop(mb, block, DropoutSite::kAttention));
  }
  const bool make_middle = make({kMiddle});
  const bool make_norm2 = make({kNorm2Mean, kNorm2Rstd, kNorm2});
  if (make_middle) {
    ops_.LinearForward(a[kMiddle], a[kAttention], p(kProjectionWeight), p(kProjectionBias), rows, c,
                       c);
    ops_.ResidualLayerNormForward(a[kMiddle], a[kNorm2], a[kNorm2Mean], a[kNorm2Rstd], a[kBlockIn],
                                  a[kMiddle], p(kNorm2Weight), p(kNorm2Bias), shape,
                                  Drop(mb, block, DropoutSite::kAttentionOutput));
  } else if (make_norm2) {
    ops_.LayerNormForward(a[kNorm2], a[kNorm2Mean], a[kNorm2Rstd], a[kMiddle], p(kNorm2Weight),
                          p(kNorm2Bias), rows, c);
  }

  // gelu(norm2(middle) W)
  const bool make_fc = make({kFc});
  const bool make_gelu = make({kGelu});
  if (make_fc) {
    ops_.LinearGeluForward(a[kGelu], a[kFc], a[kNorm2], p(kFcWeight), p(kFcBias), rows, c,
                           kMlpRatio * c);
  } else if (make_gelu) {
    ops_.GeluForward(a[kGelu], a[kFc]);
  }
}

void Gpt::HeadForward(Buffer w, MicroBatchInFlight& mb) const {
  const int64_t c = config_.n_embd;
  mb.head_height = mb.stack.size();
  if (mb.loss_sum.empty()) {
    const Buffer last = mb.head_in.Slice(mb.head_in.elements - c, c);
    mb.final_norm = FinalNorm(w, last, mb);
    mb.logits = Push(mb, dtype_, config_.vocab_size, "logits");
    ops_.HeadForward(mb.logits, mb.final_norm.out, In(w, kTokenEmbedding), 1, c,
                     config_.vocab_size);
    return;
  }
  mb.final_norm = FinalNorm(w, mb.head_in, mb);
  // In training the logits wait for backward, so that they are needed in one visit only.
  if (!mb.training) Losses(w, mb, /*dnorm=*/{}, /*dtokens=*/{}, /*loss_scale=*/0);
}

void Gpt::Losses(Buffer w, MicroBatchInFlight& mb, Buffer dnorm, Buffer dtokens,
                 float loss_scale) const {
  const int64_t rows = Shape(mb).rows();
  const int64_t c = config_.n_embd;
  const int64_t v = config_.vocab_size;
  const int64_t chunk = RowsOfLogits(logits_bytes_, v, dtype_, rows);
  const Buffer wte = In(w, kTokenEmbedding);
  const Buffer losses = Push(mb, DType::kFloat32, rows, "losses");
  const Buffer memory = Push(mb, dtype_, chunk * v, "logits");
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Buffer logits = memory.Slice(0, n * v);
    const Buffer norm = mb.final_norm.out.Slice(first * c, n * c);
    const Buffer targets = mb.batch.targets.Slice(first, n);
    ops_.HeadForward(logits, norm, wte, n, c, v);
    ops_.CrossEntropyForward(losses.Slice(first, n), logits, targets, n, v);
    if (dnorm.empty()) continue;
    ops_.CrossEntropyBackward(logits, targets, n, v, loss_scale);
    const Buffer dlogits = logits;
    ops_.HeadBackward(dnorm.Slice(first * c, n * c), dtokens, dlogits, norm, wte, n, c, v);
  }
  ops_.AccumulateSum(mb.loss_sum, losses);
}

// ---- backward: the same visits reversed; dstream is the gradient of the residual stream ----

void Gpt::HeadBackward(Buffer w, MicroBatchInFlight& mb, Stage0& zero, float loss_scale) const {
  const Buffer dnorm = PushStream(mb, "gradient of the final norm's output");
  // Half of the tied embedding's gradient; the lookup adds the other half and reduces it.
  Losses(w, mb, dnorm, zero.Gradient(kTokenEmbedding), loss_scale);
  device_.Zero(StreamId::kCompute, mb.dstream);
  NormBackward(mb.dstream, dnorm, mb.head_in, mb.final_norm, w, kFinalNormWeight, Shape(mb).rows(),
               zero);
  PopTo(mb, mb.head_height);
}

void Gpt::BlockBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) {
  if (Checkpointed()) {
    PopTo(mb, mb.blocks[block].height);  // what the last block left to the head
    if (block > 0) checkpoints_.Fetch(block - 1);
    checkpoints_.Await(block);
    device_.Announce(Activity::kRecompute, BlockUnit(block));
    ComputeInside(Pass::kBackward, block, w, mb);
    device_.Announce(Activity::kBackward, BlockUnit(block));
  }
  MlpBackward(block, w, mb, zero);
  AttentionBackward(block, w, mb, zero);
  PopTo(mb, mb.blocks[block].height);
  if (Checkpointed()) checkpoints_.Release(block);
}

void Gpt::MlpBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const {
  const int64_t rows = Shape(mb).rows();
  const Block& a = mb.blocks[block];
  const size_t height = mb.stack.size();
  const Buffer dbranch = BranchGradient(mb, block, DropoutSite::kMlpOutput);
  const Buffer dfc = Push(mb, dtype_, a[kFc].elements, "gradient of the MLP's inside");
  const Buffer dnorm = PushStream(mb, "gradient of norm 2's output");
  LinearBackward(dfc, dbranch, a[kGelu], w, OfBlock(block, kMlpProjectionWeight), rows, zero,
                 /*before_gelu=*/a[kFc]);
  LinearBackward(dnorm, dfc, a[kNorm2], w, OfBlock(block, kFcWeight), rows, zero);
  NormBackward(mb.dstream, dnorm, a[kMiddle], {a[kNorm2], a[kNorm2Mean], a[kNorm2Rstd]}, w,
               OfBlock(block, kNorm2Weight), rows, zero);
  PopTo(mb, height);
}

void Gpt::AttentionBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const {
  const SequenceShape shape = Shape(mb);
  const Block& a = mb.blocks[block];
  const size_t height = mb.stack.size();
  const Buffer dbranch = BranchGradient(mb, block, DropoutSite::kAttentionOutput);
  const Buffer dattention = PushStream(mb, "gradient of attention");
  const Buffer dqkv = Push(mb, dtype_, a[kQkv].elements, "gradient of qkv");
  LinearBackward(dattention, dbranch, a[kAttention], w, OfBlock(block, kProjectionWeight),
                 shape.rows(), zero);
  ops_.AttentionBackward(dqkv, dattention, a[kQkv], a[kAttention], a[kLogSumExp], shape,
                         config_.n_head, Drop(mb, block, DropoutSite::kAttention));
  const Buffer dnorm = dattention;  // its contents are used up
  LinearBackward(dnorm, dqkv, a[kNorm1], w, OfBlock(block, kQkvWeight), shape.rows(), zero);
  NormBackward(mb.dstream, dnorm, a[kBlockIn], {a[kNorm1], a[kNorm1Mean], a[kNorm1Rstd]}, w,
               OfBlock(block, kNorm1Weight), shape.rows(), zero);
  PopTo(mb, height);
}

void Gpt::LookupBackward(MicroBatchInFlight& mb, Stage0& zero) const {
  const Buffer dtokens = zero.Gradient(kTokenEmbedding);
  const Buffer dpositions = zero.Gradient(kPositionEmbedding);
  ops_.EmbeddingBackward(dtokens, dpositions, mb.dstream, mb.batch.inputs, Shape(mb),
                         Drop(mb, 0, DropoutSite::kEmbedding));
  zero.Reduce(kPositionEmbedding);
  zero.Reduce(kTokenEmbedding);
  PopTo(mb, 0);
}

// ---- parts ----

Buffer Gpt::OpenStream(int block, MicroBatchInFlight& mb) {
  const bool head = block == config_.n_layer;
  BlockTensors none;
  BlockTensors& tensors = head ? none : mb.blocks[block].tensors;
  if (!mb.training && block > 0) {
    tensors = mb.blocks[block - 1].tensors;  // nobody reads them again: all blocks share memory
  } else if (Checkpointed() && !head) {
    checkpoints_.Open(block, Shape(mb).rows(), tensors);
  } else {
    tensors[kBlockIn] = PushStream(mb, "residual stream");
  }
  if (head) mb.head_in = tensors[kBlockIn];
  return tensors[kBlockIn];
}

MicroBatchInFlight::Norm Gpt::FinalNorm(Buffer w, Buffer x, MicroBatchInFlight& mb) const {
  const int64_t rows = x.elements / config_.n_embd;
  const Norm norm{Push(mb, dtype_, x.elements, "final norm"),
                  Push(mb, DType::kFloat32, rows, "final norm mean"),
                  Push(mb, DType::kFloat32, rows, "final norm rstd")};
  ops_.LayerNormForward(norm.out, norm.mean, norm.rstd, x, In(w, kFinalNormWeight),
                        In(w, kFinalNormBias), rows, config_.n_embd);
  return norm;
}

void Gpt::LinearBackward(Buffer dx, Buffer dy, Buffer x, Buffer w, ParameterId weight, int64_t rows,
                         Stage0& zero, Buffer before_gelu) const {
  const ParameterId bias = weight + 1;
  const std::vector<int64_t>& shape = layout_.spec(weight).shape;
  const Buffer dweight = zero.Gradient(weight);
  const Buffer dbias = zero.Gradient(bias);
  if (before_gelu.empty()) {
    ops_.LinearBackward(dx, dweight, dbias, dy, x, In(w, weight), rows, shape[0], shape[1]);
  } else {
    ops_.GeluLinearBackward(dx, dweight, dbias, dy, before_gelu, x, In(w, weight), rows, shape[0],
                            shape[1]);
  }
  zero.Reduce(bias);
  zero.Reduce(weight);
}

void Gpt::NormBackward(Buffer dx, Buffer dout, Buffer x, const Norm& norm, Buffer w,
                       ParameterId weight, int64_t rows, Stage0& zero) const {
  const ParameterId bias = weight + 1;
  const Buffer dweight = zero.Gradient(weight);
  const Buffer dbias = zero.Gradient(bias);
  ops_.LayerNormBackward(dx, dweight, dbias, dout, x, norm.mean, norm.rstd, In(w, weight), rows,
                         config_.n_embd);
  zero.Reduce(bias);
  zero.Reduce(weight);
}

Buffer Gpt::BranchGradient(MicroBatchInFlight& mb, int block, DropoutSite site) const {
  if (dropout_ == 0) return mb.dstream;
  const Buffer dbranch = PushStream(mb, "gradient before dropout");
  ops_.DropoutBackward(dbranch, mb.dstream, Shape(mb), Drop(mb, block, site));
  return dbranch;
}

Buffer Gpt::In(Buffer w, ParameterId parameter) const {
  const Range range = layout_.Parameter(parameter);
  return w.Slice(range.begin - layout_.Unit(layout_.spec(parameter).unit).begin, range.size());
}

Buffer Gpt::Push(MicroBatchInFlight& mb, DType dtype, int64_t elements, const char* label) const {
  mb.stack.push_back(
      device_.Allocate(Region::kActivations, Category::kActivations, dtype, elements, label));
  return mb.stack.back();
}

Buffer Gpt::PushStream(MicroBatchInFlight& mb, const char* label) const {
  return Push(mb, dtype_, Shape(mb).elements(), label);
}

void Gpt::PopTo(MicroBatchInFlight& mb, size_t height) const {
  while (mb.stack.size() > height) {
    device_.Free(mb.stack.back());
    mb.stack.pop_back();
  }
}

bool Gpt::Checkpointed() const { return checkpointing_ != ActivationCheckpointing::kNone; }

SequenceShape Gpt::Shape(const MicroBatchInFlight& mb) const {
  return {mb.batch.sequences, mb.batch.positions, config_.n_embd};
}

Dropout Gpt::Drop(const MicroBatchInFlight& mb, int layer, DropoutSite site) const {
  return {.p = mb.training ? dropout_ : 0,
          .seed = seed_,
          .samples = mb.batch.samples,
          .layer = layer,
          .site = site};
}

}  // namespace zerobox
