// SPDX-License-Identifier: Apache-2.0
//
// The whole model, visit by visit, against a double-precision forward pass written out in one
// piece: the loss directly, every parameter's gradient by central differences.
#include "trainer/gpt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/philox.h"
#include "tests/model_gradient.h"
#include "tests/reference.h"
#include "trainer/batch_feed.h"

namespace zerobox {
namespace {

using reference::Array;

constexpr int64_t kBatch = 3;
constexpr int64_t kPositions = 7;  // fewer than the model's
constexpr uint64_t kSeed = 11;
constexpr float kScale = 0.125F;
const ModelConfig kModel = {
    .n_layer = 3, .n_head = 3, .n_embd = 33, .seq_len = 9, .vocab_size = 101};

// Parameters by name, in double precision.
struct Weights {
  std::vector<ParameterSpec> specs = GptParameters(kModel);
  std::vector<Array> values;
  const Array& operator[](const std::string& name) const {
    const auto found = std::find_if(specs.begin(), specs.end(),
                                    [&](const ParameterSpec& spec) { return spec.name == name; });
    return values.at(found - specs.begin());
  }
};

Weights RandomWeights() {
  Weights weights;
  for (size_t id = 0; id < weights.specs.size(); ++id) {
    const bool norm_weight = weights.specs[id].name.find("ln_") != std::string::npos &&
                             weights.specs[id].name.find("weight") != std::string::npos;
    Array values(weights.specs[id].elements());
    for (size_t i = 0; i < values.size(); ++i) {
      // Rounded to fp32, so that both sides start from the same numbers.
      values[i] = static_cast<float>((norm_weight ? 1 : 0) + 0.15 * NormalAt(5, id, i));
    }
    weights.values.push_back(values);
  }
  return weights;
}

struct Inputs {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> samples = {5, 1000003, 12};
};

Inputs MakeInputs() {
  Inputs inputs;
  for (int64_t i = 0; i < kBatch * kPositions; ++i) {
    inputs.tokens.push_back(static_cast<int32_t>((i * 37 + 11) % kModel.vocab_size));
    inputs.targets.push_back(i % 5 == 3 ? -1 : static_cast<int32_t>(i * 17 % kModel.vocab_size));
  }
  return inputs;
}

Array AddScaled(const Array& x, const Array& branch, const Array& factors) {
  Array sum = x;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += branch[i] * factors[i];
  return sum;
}

double LossSum(const Weights& w, const Inputs& in, float dropout) {
  const SequenceShape shape{kBatch, kPositions, kModel.n_embd};
  const int64_t rows = shape.rows();
  const int64_t sample = kPositions * kModel.n_embd;
  const auto factors = [&](int layer, DropoutSite site, int64_t size) {
    return reference::DropoutFactors(dropout, kSeed, in.samples, layer, site, size);
  };
  Array x = reference::Embedding(in.tokens, w["wte.weight"], w["wpe.weight"], shape,
                                 factors(0, DropoutSite::kEmbedding, sample));
  for (int layer = 0; layer < kModel.n_layer; ++layer) {
    const std::string h = "h." + std::to_string(layer) + ".";
    const auto linear = [&](const Array& y, const std::string& name) {
      return reference::Linear(y, w[h + name + ".weight"], w[h + name + ".bias"], rows);
    };
    const Array norm1 = reference::LayerNorm(x, w[h + "ln_1.weight"], w[h + "ln_1.bias"], rows).out;
    const Array attention = reference::Attention(linear(norm1, "attn.c_attn"), shape, kModel.n_head,
                                                 factors(layer, DropoutSite::kAttention,
                                                         kModel.n_head * kPositions * kPositions))
                                .out;
    x = AddScaled(x, linear(attention, "attn.c_proj"),
                  factors(layer, DropoutSite::kAttentionOutput, sample));
    const Array norm2 = reference::LayerNorm(x, w[h + "ln_2.weight"], w[h + "ln_2.bias"], rows).out;
    x = AddScaled(x, linear(reference::Gelu(linear(norm2, "mlp.c_fc")), "mlp.c_proj"),
                  factors(layer, DropoutSite::kMlpOutput, sample));
  }
  const Array norm = reference::LayerNorm(x, w["ln_f.weight"], w["ln_f.bias"], rows).out;
  const Array logits = reference::Product(norm, false, w["wte.weight"], true, rows,
                                          kModel.vocab_size, kModel.n_embd);
  double sum = 0;
  for (const double loss : reference::CrossEntropy(logits, in.targets)) sum += loss;
  return sum;
}

// How the activations are kept; not what is computed.
struct Keeping {
  std::string name;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::kNone;
  bool offload = false;
  int64_t logits_bytes = 1 << 20;  // enough for all
};

ModelGradient RunModel(const Weights& weights, const Inputs& in, float dropout,
                       const Keeping& keeping) {
  TrainSettings settings;
  settings.model = kModel;
  settings.dropout = dropout;
  settings.seed = kSeed;
  settings.activation_checkpointing = keeping.checkpointing;
  settings.offload_activations = keeping.offload;
  settings.logits_bytes = keeping.logits_bytes;
  HostBatch batch;
  batch.positions = kPositions;
  batch.inputs = in.tokens;
  batch.targets = in.targets;
  batch.samples = in.samples;
  return ComputeModelGradient(settings, weights.values, {batch}, kScale);
}

// 21 rows of logits: in chunks of 5, 5, 5, 5, 1, or one by one.
const Keeping kKeepings[] = {
    {"everything"},
    {"selective", ActivationCheckpointing::kSelective},
    {"full", ActivationCheckpointing::kFull},
    {"full, offloaded", ActivationCheckpointing::kFull, true},
    {.name = "five rows of logits", .logits_bytes = 6 * 101 * 4 - 1},
    {.name = "one row of logits", .logits_bytes = 1},
};

class GptGradient : public testing::TestWithParam<float> {};

TEST_P(GptGradient, AgreesWithCentralDifferencesOfADoublePrecisionForward) {
  const float dropout = GetParam();
  Weights weights = RandomWeights();
  const Inputs inputs = MakeInputs();
  const double loss = LossSum(weights, inputs, dropout);
  std::vector<ModelGradient> runs;
  for (const Keeping& keeping : kKeepings) {
    const ModelGradient& run = runs.emplace_back(RunModel(weights, inputs, dropout, keeping));
    EXPECT_TRUE(std::abs(run.loss_sum - loss) <= 1e-5 * loss)
        << keeping.name << ": " << run.loss_sum << ", " << loss;
  }

  constexpr double kStep = 1e-5;
  for (size_t id = 0; id < weights.values.size(); ++id) {
    double largest = 0;
    for (const double g : runs[0].gradients[id]) largest = std::max(largest, std::abs(g));
    // The key third of the qkv bias shifts every score of a query alike, so its gradient is zero.
    ASSERT_GT(largest, 1e-4) << weights.specs[id].name;
    const int64_t elements = weights.specs[id].elements();
    for (int64_t i = 0; i < 6; ++i) {
      const int64_t element = (i * 7919 + 13) % elements;
      double& value = weights.values[id][element];
      const double saved = value;
      value = saved + kStep;
      const double above = LossSum(weights, inputs, dropout);
      value = saved - kStep;
      const double below = LossSum(weights, inputs, dropout);
      value = saved;
      const double expected = kScale * (above - below) / (2 * kStep);
      for (size_t run = 0; run < runs.size(); ++run) {
        const double found = runs[run].gradients[id][element];
        EXPECT_TRUE(std::abs(found - expected) <= 2e-5 * largest)
            << kKeepings[run].name << ": " << weights.specs[id].name << "[" << element
            << "]: " << found << ", wanted " << expected;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dropout, GptGradient, testing::Values(0.F, 0.2F),
                         [](const auto& info) { return info.param == 0 ? "off" : "on"; });

TEST(Gpt, DropoutChangesTheLoss) {
  const Weights weights = RandomWeights();
  const Inputs inputs = MakeInputs();
  EXPECT_GT(std::abs(LossSum(weights, inputs, 0) - LossSum(weights, inputs, 0.2F)), 0.01);
}

TEST(Gpt, HasTheNamesAndTheSizesOfGpt2) {
  const auto count = [](const ModelConfig& config) {
    int64_t elements = 0;
    for (const ParameterSpec& spec : GptParameters(config)) elements += spec.elements();
    return elements;
  };
  EXPECT_EQ(count({.n_layer = 4, .n_head = 4, .n_embd = 128, .seq_len = 128, .vocab_size = 256}),
            842'496);
  EXPECT_EQ(
      count({.n_layer = 12, .n_head = 12, .n_embd = 768, .seq_len = 1024, .vocab_size = 50257}),
      124'439'808);
  EXPECT_EQ(
      count({.n_layer = 24, .n_head = 16, .n_embd = 1024, .seq_len = 1024, .vocab_size = 50257}),
      354'823'168);
  EXPECT_EQ(
      count({.n_layer = 36, .n_head = 20, .n_embd = 1280, .seq_len = 1024, .vocab_size = 50257}),
      774'030'080);
  EXPECT_EQ(
      count({.n_layer = 48, .n_head = 25, .n_embd = 1600, .seq_len = 1024, .vocab_size = 50257}),
      1'557'611'200);
  const std::vector<ParameterSpec> specs = GptParameters(kModel);
  EXPECT_EQ(specs.front().name, "wte.weight");
  EXPECT_EQ(specs[kEndsParameters + kBlockParameters + kQkvWeight].name, "h.1.attn.c_attn.weight");
  EXPECT_EQ(specs[kEndsParameters + kQkvWeight].shape, (std::vector<int64_t>{33, 99}));
}

TEST(Gpt, BeginsLikeGpt2AtItsWidthAndWithLargerWeightsBelow) {
  const auto stddev = [](int64_t width, int parameter) {
    return InitialValueOf({.n_layer = 8, .n_head = 1, .n_embd = width}, parameter).stddev;
  };
  const auto near = [](double found, double expected) {
    return std::abs(found - expected) <= 1e-15;
  };
  for (const int matrix : {+kTokenEmbedding, +kPositionEmbedding, kEndsParameters + kQkvWeight,
                           kEndsParameters + kBlockParameters + kFcWeight}) {
    EXPECT_TRUE(near(stddev(768, matrix), 0.02)) << matrix;
    EXPECT_TRUE(near(stddev(192, matrix), 0.04)) << matrix;
  }
  for (const int matrix : {kEndsParameters + kProjectionWeight,
                           kEndsParameters + kBlockParameters + kMlpProjectionWeight}) {
    EXPECT_TRUE(near(stddev(768, matrix), 0.005)) << matrix;  // 0.02 / sqrt(2 x 8)
  }
  // Norms begin as the identity, biases at 0.
  const std::vector<ParameterSpec> specs = GptParameters(kModel);
  for (ParameterId id = 0; id < std::ssize(specs); ++id) {
    const InitialValue initial = InitialValueOf(kModel, id);
    EXPECT_EQ(initial.stddev > 0, specs[id].shape.size() == 2) << specs[id].name;
    const bool norm_weight =
        specs[id].shape.size() == 1 && specs[id].name.find(".weight") != std::string::npos;
    EXPECT_EQ(initial.constant, norm_weight ? 1 : 0) << specs[id].name;
  }
}

TEST(Gpt, DecaysMatricesOnly) {
  for (const ParameterSpec& spec : GptParameters(kModel)) {
    EXPECT_EQ(spec.decay, spec.shape.size() == 2) << spec.name;
  }
}

}  // namespace
}  // namespace zerobox
