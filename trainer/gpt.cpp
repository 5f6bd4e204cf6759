// SPDX-License-Identifier: Apache-2.0
#include "trainer/gpt.h"

#include <cmath>
#include <cstdlib>
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

Gpt::Gpt(Device& device, const ModelConfig& config, const Layout& layout, double dropout,
         uint64_t seed)
    : device_(device),
      ops_(device.ops()),
      config_(config),
      layout_(layout),
      dropout_(static_cast<float>(dropout)),
      seed_(seed) {}

MicroBatchInFlight Gpt::Begin(const Batch& batch, bool training) const {
  MicroBatchInFlight mb;
  mb.batch = batch;
  mb.training = training;
  mb.blocks.resize(config_.n_layer);
  return mb;
}

void Gpt::End(MicroBatchInFlight& mb) const { PopTo(mb, 0); }

void Gpt::Forward(const Visit& visit, Buffer w, MicroBatchInFlight& mb, Buffer loss_sum) const {
  if (visit.unit != kEnds) return BlockForward(visit.unit - BlockUnit(0), w, mb);
  if (visit.index == 0) return LookupForward(w, mb);
  HeadForward(w, mb, loss_sum);
}

void Gpt::Backward(const Visit& visit, Buffer w, MicroBatchInFlight& mb, Stage0& zero,
                   float loss_scale) const {
  if (visit.unit != kEnds) return BlockBackward(visit.unit - BlockUnit(0), w, mb, zero);
  if (visit.needs_parameters) return HeadBackward(w, mb, zero, loss_scale);
  LookupBackward(mb, zero);
}

// ---- forward ----

void Gpt::LookupForward(Buffer w, MicroBatchInFlight& mb) const {
  const SequenceShape shape = Shape(mb);
  // At the bottom of the stack, because it outlives everything that backward pops.
  if (mb.training) mb.dstream = Push(mb, shape.elements(), "gradient of the residual stream");
  mb.embedded = Push(mb, shape.elements(), "embedded");
  ops_.EmbeddingForward(mb.embedded, mb.batch.inputs, In(w, kTokenEmbedding),
                        In(w, kPositionEmbedding), shape, Drop(mb, 0, DropoutSite::kEmbedding));
}

void Gpt::BlockForward(int block, Buffer w, MicroBatchInFlight& mb) const {
  const SequenceShape shape = Shape(mb);
  const int64_t rows = shape.rows();
  const int64_t c = shape.channels;
  const auto p = [&](BlockParameter parameter) { return In(w, OfBlock(block, parameter)); };
  Block& a = mb.blocks[block];
  a.height = mb.stack.size();
  a.in = block == 0 ? mb.embedded : mb.blocks[block - 1].out;

  // middle = in + dropout(attention(norm1(in)) W)
  a.norm1 = NormForward(mb, a.in, p(kNorm1Weight), p(kNorm1Bias));
  a.qkv = Push(mb, 3 * shape.elements(), "qkv");
  ops_.LinearForward(a.qkv, a.norm1.out, p(kQkvWeight), p(kQkvBias), rows, c, 3 * c);
  a.attention = Push(mb, shape.elements(), "attention");
  a.logsumexp = Push(mb, shape.batch * config_.n_head * shape.positions, "attention logsumexp");
  ops_.AttentionForward(a.attention, a.logsumexp, a.qkv, shape, config_.n_head,
                        Drop(mb, block, DropoutSite::kAttention));
  a.middle = Push(mb, shape.elements(), "residual after attention");
  ops_.LinearForward(a.middle, a.attention, p(kProjectionWeight), p(kProjectionBias), rows, c, c);
  ops_.ResidualForward(a.middle, a.in, a.middle, shape,
                       Drop(mb, block, DropoutSite::kAttentionOutput));

  // out = middle + dropout(gelu(norm2(middle) W) W')
  a.norm2 = NormForward(mb, a.middle, p(kNorm2Weight), p(kNorm2Bias));
  a.fc = Push(mb, kMlpRatio * shape.elements(), "MLP before GELU");
  ops_.LinearForward(a.fc, a.norm2.out, p(kFcWeight), p(kFcBias), rows, c, kMlpRatio * c);
  a.gelu = Push(mb, kMlpRatio * shape.elements(), "MLP after GELU");
  ops_.GeluForward(a.gelu, a.fc);
  a.out = Push(mb, shape.elements(), "residual after MLP");
  ops_.LinearForward(a.out, a.gelu, p(kMlpProjectionWeight), p(kMlpProjectionBias), rows,
                     kMlpRatio * c, c);
  ops_.ResidualForward(a.out, a.middle, a.out, shape, Drop(mb, block, DropoutSite::kMlpOutput));
}

void Gpt::HeadForward(Buffer w, MicroBatchInFlight& mb, Buffer loss_sum) const {
  const SequenceShape shape = Shape(mb);
  const int64_t v = config_.vocab_size;
  const Buffer in = mb.blocks.empty() ? mb.embedded : mb.blocks.back().out;
  mb.head_height = mb.stack.size();
  mb.final_norm = NormForward(mb, in, In(w, kFinalNormWeight), In(w, kFinalNormBias));
  mb.logits = Push(mb, shape.rows() * v, "logits");
  mb.losses = Push(mb, shape.rows(), "losses");
  ops_.HeadForward(mb.logits, mb.final_norm.out, In(w, kTokenEmbedding), shape.rows(),
                   shape.channels, v);
  if (loss_sum.empty()) return;  // sampling wants the logits only
  ops_.CrossEntropyForward(mb.losses, mb.logits, mb.batch.targets, shape.rows(), v);
  ops_.AccumulateSum(loss_sum, mb.losses);
}

// ---- backward: the same visits reversed; dstream is the gradient of the residual stream ----

void Gpt::HeadBackward(Buffer w, MicroBatchInFlight& mb, Stage0& zero, float loss_scale) const {
  const SequenceShape shape = Shape(mb);
  const int64_t v = config_.vocab_size;
  const Buffer in = mb.blocks.empty() ? mb.embedded : mb.blocks.back().out;
  ops_.CrossEntropyBackward(mb.logits, mb.batch.targets, shape.rows(), v, loss_scale);
  const Buffer dlogits = mb.logits;
  const Buffer dnorm = Push(mb, shape.elements(), "gradient of the final norm's output");
  // Half of the tied embedding's gradient; the lookup adds the other half and reduces it.
  ops_.HeadBackward(dnorm, zero.Gradient(kTokenEmbedding), dlogits, mb.final_norm.out,
                    In(w, kTokenEmbedding), shape.rows(), shape.channels, v);
  device_.Zero(StreamId::kCompute, mb.dstream);
  NormBackward(mb.dstream, dnorm, in, mb.final_norm, w, kFinalNormWeight, shape.rows(), zero);
  PopTo(mb, mb.head_height);
}

void Gpt::BlockBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const {
  MlpBackward(block, w, mb, zero);
  AttentionBackward(block, w, mb, zero);
  PopTo(mb, mb.blocks[block].height);
}

void Gpt::MlpBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const {
  const SequenceShape shape = Shape(mb);
  const Block& a = mb.blocks[block];
  const size_t height = mb.stack.size();
  const Buffer dbranch = BranchGradient(mb, block, DropoutSite::kMlpOutput);
  const Buffer dfc = Push(mb, kMlpRatio * shape.elements(), "gradient of the MLP's inside");
  const Buffer dnorm = Push(mb, shape.elements(), "gradient of norm 2's output");
  LinearBackward(dfc, dbranch, a.gelu, w, OfBlock(block, kMlpProjectionWeight), shape.rows(), zero);
  ops_.GeluBackward(dfc, a.fc, dfc);
  LinearBackward(dnorm, dfc, a.norm2.out, w, OfBlock(block, kFcWeight), shape.rows(), zero);
  NormBackward(mb.dstream, dnorm, a.middle, a.norm2, w, OfBlock(block, kNorm2Weight), shape.rows(),
               zero);
  PopTo(mb, height);
}

void Gpt::AttentionBackward(int block, Buffer w, MicroBatchInFlight& mb, Stage0& zero) const {
  const SequenceShape shape = Shape(mb);
  const Block& a = mb.blocks[block];
  const size_t height = mb.stack.size();
  const Buffer dbranch = BranchGradient(mb, block, DropoutSite::kAttentionOutput);
  const Buffer dattention = Push(mb, shape.elements(), "gradient of attention");
  const Buffer dqkv = Push(mb, 3 * shape.elements(), "gradient of qkv");
  LinearBackward(dattention, dbranch, a.attention, w, OfBlock(block, kProjectionWeight),
                 shape.rows(), zero);
  ops_.AttentionBackward(dqkv, dattention, a.qkv, a.attention, a.logsumexp, shape, config_.n_head,
                         Drop(mb, block, DropoutSite::kAttention));
  const Buffer dnorm = dattention;  // its contents are used up
  LinearBackward(dnorm, dqkv, a.norm1.out, w, OfBlock(block, kQkvWeight), shape.rows(), zero);
  NormBackward(mb.dstream, dnorm, a.in, a.norm1, w, OfBlock(block, kNorm1Weight), shape.rows(),
               zero);
  PopTo(mb, height);
}

void Gpt::LookupBackward(MicroBatchInFlight& mb, Stage0& zero) const {
  const Buffer dtokens = zero.Gradient(kTokenEmbedding);
  const Buffer dpositions = zero.Gradient(kPositionEmbedding);
  ops_.EmbeddingBackward(dtokens, dpositions, mb.dstream, mb.batch.inputs, Shape(mb),
                         Drop(mb, 0, DropoutSite::kEmbedding));
  zero.Reduce(kPositionEmbedding);
  zero.Reduce(kTokenEmbedding);
  End(mb);
}

// ---- parts ----

MicroBatchInFlight::Norm Gpt::NormForward(MicroBatchInFlight& mb, Buffer x, Buffer weight,
                                          Buffer bias) const {
  const SequenceShape shape = Shape(mb);
  const Norm norm{Push(mb, shape.elements(), "norm"), Push(mb, shape.rows(), "norm mean"),
                  Push(mb, shape.rows(), "norm rstd")};
  ops_.LayerNormForward(norm.out, norm.mean, norm.rstd, x, weight, bias, shape.rows(),
                        shape.channels);
  return norm;
}

void Gpt::LinearBackward(Buffer dx, Buffer dy, Buffer x, Buffer w, ParameterId weight, int64_t rows,
                         Stage0& zero) const {
  const ParameterId bias = weight + 1;
  const std::vector<int64_t>& shape = layout_.spec(weight).shape;
  const Buffer dweight = zero.Gradient(weight);
  const Buffer dbias = zero.Gradient(bias);
  ops_.LinearBackward(dx, dweight, dbias, dy, x, In(w, weight), rows, shape[0], shape[1]);
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
  const Buffer dbranch = Push(mb, Shape(mb).elements(), "gradient before dropout");
  ops_.DropoutBackward(dbranch, mb.dstream, Shape(mb), Drop(mb, block, site));
  return dbranch;
}

Buffer Gpt::In(Buffer w, ParameterId parameter) const {
  const Range range = layout_.Parameter(parameter);
  return w.Slice(range.begin - layout_.Unit(layout_.spec(parameter).unit).begin, range.size());
}

Buffer Gpt::Push(MicroBatchInFlight& mb, int64_t elements, const char* label) const {
  mb.stack.push_back(device_.Allocate(Region::kActivations, Category::kActivations, DType::kFloat32,
                                      elements, label));
  return mb.stack.back();
}

void Gpt::PopTo(MicroBatchInFlight& mb, size_t height) const {
  while (mb.stack.size() > height) {
    device_.Free(mb.stack.back());
    mb.stack.pop_back();
  }
}

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
