// SPDX-License-Identifier: Apache-2.0
#include "tests/expected_bytes.h"

#include <algorithm>
#include <numeric>

namespace zerobox {
namespace {

// What an allocation occupies.
int64_t Aligned(int64_t bytes) { return (bytes + 127) / 128 * 128; }

int64_t& At(PerCategory<int64_t>& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

int64_t Total(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Parameters of the ends, in order: token embedding, position embedding, final norm.
constexpr int kWte = 0, kWpe = 1, kNorm = 2;
// Of a block, norm 1 to the projection of the attention are 0..5, norm 2 to the MLP 6..11.
constexpr int kFirstOfMlp = 6;

}  // namespace

ExpectedBytes::ExpectedBytes(const TrainSettings& settings)
    : settings_(settings),
      n_(settings.devices),
      stage_(n_ == 1 ? 0 : settings.zero_stage),
      width_(settings.dtype == DType::kBFloat16 ? 2 : 4),
      gradient_width_(settings.grad_accum_dtype == DType::kBFloat16 ? 2 : 4) {
  const ModelConfig& model = settings.model;
  const int64_t h = model.n_embd;
  const std::vector<int64_t> ends = {model.vocab_size * h, model.seq_len * h, h, h};
  const std::vector<int64_t> block = {h, h, 3 * h * h, 3 * h, h * h,     h,
                                      h, h, 4 * h * h, 4 * h, 4 * h * h, h};
  ends_buckets_ = Cut(ends);
  block_buckets_ = Cut(block);
  for (const Bucket& bucket : ends_buckets_) ends_ += bucket.elements;
  for (const Bucket& bucket : block_buckets_) {
    block_ += bucket.elements;
    constant_size_ = std::max(constant_size_, bucket.elements);
  }
  psi_ = Total(ends) + model.n_layer * Total(block);
  padded_ = ends_ + model.n_layer * block_;
}

// Buckets are filled in order, at most bucket_bytes or one parameter, then padded to 64 N elements.
std::vector<ExpectedBytes::Bucket> ExpectedBytes::Cut(
    const std::vector<int64_t>& parameters) const {
  std::vector<Bucket> buckets;
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    if (i == 0 ||
        gradient_width_ * (buckets.back().elements + parameters[i]) > settings_.bucket_bytes) {
      buckets.push_back({.elements = 0, .first = i, .last = i});
    }
    buckets.back().elements += parameters[i];
    buckets.back().last = i;
  }
  for (Bucket& bucket : buckets) {
    bucket.elements = (bucket.elements + 64 * n_ - 1) / (64 * n_) * (64 * n_);
  }
  return buckets;
}

// Elements whose optimizer states are here.
int64_t ExpectedBytes::Owned() const { return padded_ / (stage_ >= 1 ? n_ : 1); }

PerCategory<int64_t> ExpectedBytes::Persistent() const {
  PerCategory<int64_t> bytes{};
  const bool offloaded = settings_.offload_optimizer;
  At(bytes, Category::kParameters) = width_ * padded_ / (stage_ >= 3 ? n_ : 1);
  // What is offloaded is the optimizer's gradient; stages 0 and 1 keep a whole one of their own.
  At(bytes, Category::kGradients) =
      stage_ < 2 ? gradient_width_ * padded_ : (offloaded ? 0 : gradient_width_ * Owned());
  // m, v, and in mixed precision master weights.
  At(bytes, Category::kOptimizerStates) = offloaded ? 0 : (width_ == 2 ? 12 : 8) * Owned();
  const int64_t tokens = settings_.micro_batch * settings_.model.seq_len;
  // The squared norm by owner (fp64), the step's state (7 x 8 bytes), the loss (fp64), and two
  // slots of a batch: int32 inputs and targets, int64 sample numbers.
  At(bytes, Category::kWorkspace) =
      Aligned(8 * n_) + Aligned(56) + Aligned(8) +
      2 * (2 * Aligned(4 * tokens) + Aligned(8 * settings_.micro_batch));
  return bytes;
}

int64_t ExpectedBytes::LargestOwnedPart() const {
  int64_t largest = constant_size_;
  for (const Bucket& bucket : ends_buckets_) largest = std::max(largest, bucket.elements);
  return largest / (stage_ >= 1 ? n_ : 1);
}

PerCategory<int64_t> ExpectedBytes::PersistentOnHost() const {
  PerCategory<int64_t> bytes{};
  if (settings_.offload_optimizer) {
    At(bytes, Category::kOptimizerStates) = 12 * Owned();
    At(bytes, Category::kGradients) = gradient_width_ * Owned();
    // Where a gradient lands that is added, in stages that add there; and two parameters of mixed
    // precision on their way up.
    At(bytes, Category::kCommunicationBuffers) =
        (stage_ >= 2 ? Aligned(gradient_width_ * LargestOwnedPart()) : 0) +
        (width_ == 2 ? 2 * Aligned(2 * LargestOwnedPart()) : 0);
    At(bytes, Category::kWorkspace) = Aligned(8 * n_) + Aligned(56);
  }
  if (settings_.offload_activations) {
    At(bytes, Category::kActivationCheckpoints) =
        (settings_.model.n_layer - Slots()) * Checkpoint();
  }
  return bytes;
}

// `tensors` in elements a token.
int64_t ExpectedBytes::Activations(const std::vector<int64_t>& tensors) const {
  const int64_t tokens = settings_.micro_batch * settings_.model.seq_len;
  int64_t bytes = 0;
  for (const int64_t width : tensors) bytes += Aligned(width_ * tokens * width);
  return bytes;
}

// fp32, whatever the type of the activations.
int64_t ExpectedBytes::Statistics(const std::vector<int64_t>& tensors) const {
  const int64_t tokens = settings_.micro_batch * settings_.model.seq_len;
  int64_t bytes = 0;
  for (const int64_t width : tensors) bytes += Aligned(4 * tokens * width);
  return bytes;
}

// Norm (out, mean, 1/stddev), qkv, attention, its log-sum-exp, residual; norm, MLP before and after
// GELU, residual: 16 h values and H + 4 statistics a token.
int64_t ExpectedBytes::BlockActivations() const {
  const int64_t h = settings_.model.n_embd;
  return Activations({h, 3 * h, h, h, h, 4 * h, 4 * h, h}) +
         Statistics({1, 1, settings_.model.n_head, 1, 1});
}

// Full: the input. Selective: that, qkv, attention and its log-sum-exp, the residual after it, and
// the MLP before GELU.
int64_t ExpectedBytes::Checkpoint() const {
  const int64_t h = settings_.model.n_embd;
  switch (settings_.activation_checkpointing) {
    case ActivationCheckpointing::kNone:
      return 0;
    case ActivationCheckpointing::kSelective:
      return Activations({10 * h}) + Statistics({settings_.model.n_head});
    case ActivationCheckpointing::kFull:
      return Activations({h});
  }
  return 0;
}

// What backward computes again of a block: all but its output, or norms and GELU.
int64_t ExpectedBytes::Recomputed() const {
  const int64_t h = settings_.model.n_embd;
  if (settings_.activation_checkpointing == ActivationCheckpointing::kFull) {
    return BlockActivations() - Activations({h});
  }
  return Activations({h, h, 4 * h}) + Statistics({1, 1, 1, 1});
}

// Checkpoints on the device at once.
int64_t ExpectedBytes::Slots() const {
  if (settings_.activation_checkpointing == ActivationCheckpointing::kNone) return 0;
  const int64_t layers = settings_.model.n_layer;
  return settings_.offload_activations ? std::min<int64_t>(2, layers) : layers;
}

int64_t ExpectedBytes::FinalNorm() const {
  return Activations({settings_.model.n_embd}) + Statistics({1, 1});
}

// The gradient of the final norm's output, losses, and a chunk of logits (overwritten by their
// gradient) of as many rows as the budget holds, but at least one.
int64_t ExpectedBytes::HeadBackward() const {
  const int64_t tokens = settings_.micro_batch * settings_.model.seq_len;
  const int64_t row = width_ * settings_.model.vocab_size;
  const int64_t rows =
      std::max<int64_t>(1, std::min<int64_t>(tokens, settings_.logits_bytes / row));
  return Activations({settings_.model.n_embd}) + Statistics({1}) + Aligned(rows * row);
}

int64_t ExpectedBytes::ForwardActivations() const {
  const int64_t h = settings_.model.n_embd;
  return Activations({h, h}) + settings_.model.n_layer * BlockActivations() + FinalNorm();
}

// Bytes of the ends' buckets that hold a gradient: the head touches the token embedding and the
// final norm, the lookup the position embedding too. A bucket of norms alone is complete after the
// head, and given back before a third block bucket is opened.
int64_t ExpectedBytes::EndsGradient(bool lookup, bool norm_retired) const {
  int64_t bytes = 0;
  for (const Bucket& bucket : ends_buckets_) {
    const bool tokens = bucket.first == kWte;
    const bool positions = bucket.first <= kWpe && bucket.last >= kWpe;
    const bool norms = bucket.last >= kNorm;
    const bool norms_alone = bucket.first >= kNorm;
    if (norms_alone ? !norm_retired : tokens || norms || (positions && lookup)) {
      bytes += gradient_width_ * bucket.elements;
    }
  }
  return bytes;
}

// Backward, in time order. Forward never holds as much as backward does.
std::vector<ExpectedBytes::Moment> ExpectedBytes::Moments() const {
  const int64_t h = settings_.model.n_embd;
  const int64_t layers = settings_.model.n_layer;
  const bool keeps_all = settings_.activation_checkpointing == ActivationCheckpointing::kNone;
  // The residual stream's gradient, and beside it: the first block's input; or what the last block
  // left to the head.
  const int64_t gradient_of_stream = Activations({h});
  const auto mlp_buckets = std::count_if(block_buckets_.begin(), block_buckets_.end(),
                                         [](const Bucket& b) { return b.last >= kFirstOfMlp; });
  std::vector<Moment> moments;
  const auto add = [&](const std::string& what, int64_t activations, int64_t checkpoints,
                       int64_t gradient, int64_t gathered) {
    moments.push_back({what, gradient_of_stream + activations, checkpoints * Checkpoint(),
                       (stage_ >= 2 ? gradient : 0) + (stage_ >= 3 ? gathered : 0)});
  };
  // The head needs the ends' parameters beside their gradient, and the last block is kept.
  add("head",
      Activations({h}) + (keeps_all ? layers * BlockActivations() : 0) + FinalNorm() +
          HeadBackward(),
      Slots(), EndsGradient(false, false), ends() + block());
  int64_t opened = 0;  // buckets of blocks
  for (int64_t b = layers - 1; b >= 0; --b) {
    const int64_t below =
        keeps_all ? Activations({h}) + (b + 1) * BlockActivations() : Recomputed();
    const int64_t gathered = block() * (b > 0 ? 2 : 1);  // this one and the next
    const auto part = [&](const std::string& what, const std::vector<int64_t>& temporaries,
                          int64_t until) {
      const bool norm_retired = opened >= 3;
      opened = until;
      add(what + std::to_string(b), below + Activations(temporaries), std::min(b + 1, Slots()),
          EndsGradient(false, norm_retired) + constant_size() * std::min<int64_t>(2, opened),
          gathered);
    };
    const int64_t before = opened;
    std::vector<int64_t> mlp = {4 * h, h};        // inside, norm 2's output
    std::vector<int64_t> attention = {h, 3 * h};  // attention's output, qkv
    if (settings_.dropout > 0) {                  // the branch before its dropout
      mlp.push_back(h);
      attention.push_back(h);
    }
    part("MLP ", mlp, before + mlp_buckets);
    part("attention ", attention, before + static_cast<int64_t>(block_buckets_.size()));
  }
  add("lookup", keeps_all ? Activations({h}) : 0, 0,
      EndsGradient(true, opened >= 3) + constant_size() * std::min<int64_t>(2, opened), 0);
  return moments;
}

PerCategory<int64_t> ExpectedBytes::AtPeak() const {
  const std::vector<Moment> moments = Moments();
  const Moment& peak =
      *std::max_element(moments.begin(), moments.end(),
                        [](const Moment& a, const Moment& b) { return a.sum() < b.sum(); });
  PerCategory<int64_t> bytes = Persistent();
  At(bytes, Category::kActivations) = peak.activations;
  At(bytes, Category::kActivationCheckpoints) = peak.checkpoints;
  At(bytes, Category::kCommunicationBuffers) = peak.buffers;
  return bytes;
}

int64_t ExpectedBytes::ActivationsPeak() const {
  int64_t peak = 0;
  for (const Moment& moment : Moments()) peak = std::max(peak, moment.activations);
  return peak;
}

int64_t ExpectedBytes::CheckpointsPeak() const { return Slots() * Checkpoint(); }

int64_t ExpectedBytes::CommunicationBuffersPeak() const {
  int64_t peak = 0;
  for (const Moment& moment : Moments()) peak = std::max(peak, moment.buffers);
  return peak;
}

Traffic ExpectedBytes::StepTraffic() const {
  Traffic traffic;
  if (n_ == 1) return traffic;
  const int64_t m = settings_.grad_accum;
  const int64_t layers = settings_.model.n_layer;
  const auto ends_calls = static_cast<int64_t>(ends_buckets_.size());
  const auto block_calls = static_cast<int64_t>(block_buckets_.size());
  const int64_t calls = ends_calls + layers * block_calls;
  // A reduce-scatter of all gradients, an all-gather of all parameters.
  const int64_t scatter = gradient_width_ * padded_ / n_ * (n_ - 1);
  const int64_t gather = width_ * padded_ / n_ * (n_ - 1);
  const auto set = [&](Collective collective, int64_t times_calls, int64_t bytes) {
    traffic.collectives[static_cast<size_t>(collective)] = {times_calls, bytes};
  };
  switch (stage_) {
    case 0:
      set(Collective::kAllReduce, calls, 2 * scatter);
      return traffic;
    case 1:
      set(Collective::kReduceScatter, calls, scatter);
      set(Collective::kAllGather, calls, gather);
      break;
    case 2:
      set(Collective::kReduceScatter, m * calls, m * scatter);
      set(Collective::kAllGather, calls, gather);
      break;
    default:
      // Twice a micro-batch: the ends for the lookup and the head, a block for its forward and its
      // backward; but the last block is kept in between.
      set(Collective::kReduceScatter, m * calls, m * scatter);
      set(Collective::kAllGather, m * (2 * calls - block_calls),
          m * (2 * gather - block() / n_ * (n_ - 1)));
      break;
  }
  // The squared gradient norm: N numbers of 8 bytes, all-reduced.
  traffic.scalars = {1, 2 * 8 * (n_ - 1)};
  return traffic;
}

int64_t ExpectedBytes::FromHost() const {
  const int64_t m = settings_.grad_accum;
  const int64_t tokens = settings_.micro_batch * settings_.model.seq_len;
  int64_t bytes = m * (2 * 4 * tokens + 8 * settings_.micro_batch + OffloadedCheckpoints());
  if (settings_.offload_optimizer) bytes += width_ * Owned() + 8 * n_;  // and the squares by owner
  return bytes;
}

int64_t ExpectedBytes::ToHost() const {
  const int64_t m = settings_.grad_accum;
  int64_t bytes = 8 + 56 + m * OffloadedCheckpoints();
  // Stages 0 and 1 reduce once a step.
  if (settings_.offload_optimizer) {
    bytes += (stage_ >= 2 ? m : 1) * gradient_width_ * Owned() + 56;
  }
  return bytes;
}

// Those of all blocks but two; copied as they are, without alignment.
int64_t ExpectedBytes::OffloadedCheckpoints() const {
  if (!settings_.offload_activations) return 0;
  const int64_t h = settings_.model.n_embd;
  const int64_t tokens = settings_.micro_batch * settings_.model.seq_len;
  const bool full = settings_.activation_checkpointing == ActivationCheckpointing::kFull;
  const int64_t bytes = full ? width_ * h : width_ * 10 * h + 4 * settings_.model.n_head;
  return std::max<int64_t>(0, settings_.model.n_layer - 2) * tokens * bytes;
}

}  // namespace zerobox
