// SPDX-License-Identifier: Apache-2.0
//
// The same weights and batches in PyTorch and here: gradients, and ten steps of AdamW. The files
// are made by tests/fixtures/make_fixtures.py; PyTorch isn't needed to run this.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoints/safetensors.h"
#include "ops/bfloat16.h"
#include "tests/model_gradient.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"

namespace zerobox {
namespace {

using reference::Array;

constexpr int kSteps = 10;

double Norm(const Array& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

Array Difference(Array a, const Array& b) {
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

// The qkv bias is three thirds: query, key, value.
bool IsQkvBias(std::string_view name) { return name.ends_with("attn.c_attn.bias"); }
Array Third(const Array& x, int which) {
  const auto third = std::ssize(x) / 3;
  return {x.begin() + which * third, x.begin() + (which + 1) * third};
}
// The key third's gradient is 0 but for rounding, which AdamW makes a step of full size.
Array WithoutKeyBias(const std::string& name, Array x) {
  if (IsQkvBias(name)) x.erase(x.begin() + std::ssize(x) / 3, x.begin() + 2 * std::ssize(x) / 3);
  return x;
}

class Fixture {
 public:
  explicit Fixture(const std::string& name) {
    auto reader = SafetensorsReader::Open("tests/fixtures/" + name + ".safetensors");
    if (!reader.ok()) ADD_FAILURE() << reader.status() << " Run from the repository's root.";
    reader_ = *std::move(reader);
    model_ = *ReadModelConfig(*reader_);
    optimizer_ = {.learning_rate = Number("learning_rate"),
                  .min_learning_rate = Number("min_learning_rate"),
                  .warmup_steps = static_cast<int64_t>(Number("warmup_steps")),
                  .total_steps = static_cast<int64_t>(Number("total_steps")),
                  .weight_decay = Number("weight_decay"),
                  .beta1 = Number("beta1"),
                  .beta2 = Number("beta2"),
                  .epsilon = Number("epsilon"),
                  .clip_norm = Number("clip_norm")};
    inputs_ = Read<int32_t>("inputs", DType::kInt32);
    targets_ = Read<int32_t>("targets", DType::kInt32);
  }

  const ModelConfig& model() const { return model_; }
  const OptimizerSettings& optimizer() const { return optimizer_; }
  int64_t global_batch() const { return static_cast<int64_t>(Number("global_batch")); }
  // Rows of seq_len, in the order of the run.
  std::span<const int32_t> Inputs(int64_t row) const { return Row(inputs_, row); }
  std::span<const int32_t> Targets(int64_t row) const { return Row(targets_, row); }

  bool Has(const std::string& tensor) const { return Find(tensor) != nullptr; }
  // A tensor of fp32, bf16 or fp64.
  Array Values(const std::string& tensor) const {
    const TensorInfo* const info = Find(tensor);
    EXPECT_NE(info, nullptr) << tensor;
    if (info->dtype == DType::kFloat64) return Read<double>(tensor, info->dtype);
    Array values;
    if (info->dtype == DType::kBFloat16) {
      for (const BFloat16 x : Read<BFloat16>(tensor, info->dtype)) values.push_back(ToFloat(x));
    } else {
      for (const float x : Read<float>(tensor, info->dtype)) values.push_back(x);
    }
    return values;
  }

 private:
  double Number(const std::string& key) const {
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(reader_->metadata().at(key), &value)) << key;
    return value;
  }
  const TensorInfo* Find(const std::string& name) const {
    for (const TensorInfo& info : reader_->tensors()) {
      if (info.name == name) return &info;
    }
    return nullptr;
  }
  template <typename T>
  std::vector<T> Read(const std::string& name, DType dtype) const {
    const TensorInfo* const info = Find(name);
    EXPECT_NE(info, nullptr) << name;
    const std::span<const std::byte> bytes = *reader_->Tensor({name, dtype, info->shape});
    std::vector<T> values(info->elements());
    EXPECT_EQ(bytes.size(), values.size() * sizeof(T)) << name;
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::span<const int32_t> Row(const std::vector<int32_t>& v, int64_t row) const {
    return std::span(v).subspan(row * model_.seq_len, model_.seq_len);
  }

  std::unique_ptr<SafetensorsReader> reader_;
  ModelConfig model_;
  OptimizerSettings optimizer_;
  std::vector<int32_t> inputs_, targets_;
};

int64_t CountTargets(std::span<const int32_t> targets) {
  int64_t count = 0;
  for (const int32_t target : targets) count += target >= 0;
  return count;
}

// ---- gradients ----

constexpr StateTypes kFp32{};
constexpr StateTypes kBf16{DType::kBFloat16, DType::kBFloat16};
constexpr StateTypes kBf16WithFp32Gradients{DType::kBFloat16, DType::kFloat32};

struct GradientCase {
  std::string fixture;
  StateTypes types;
  int64_t micro_batches;
  int64_t chunks = 1;  // of a micro-batch's logits
};
void PrintTo(const GradientCase& c, std::ostream* os) {
  *os << c.fixture << "_" << Name(c.types.parameters) << (c.types.mixed() ? "_gradients_" : "")
      << (c.types.mixed() ? Name(c.types.gradients) : "") << "_in_" << c.micro_batches;
  if (c.chunks > 1) *os << "_in_" << c.chunks << "_chunks";
}

class PyTorchGradient : public testing::TestWithParam<GradientCase> {};

// The first step's global batch in micro-batches.
std::vector<HostBatch> FirstBatch(const Fixture& fixture, int64_t micro_batches) {
  std::vector<HostBatch> batches(micro_batches);
  for (int64_t row = 0; row < fixture.global_batch(); ++row) {
    HostBatch& batch = batches[row * micro_batches / fixture.global_batch()];
    const auto append = [](std::vector<int32_t>& to, std::span<const int32_t> from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    batch.positions = fixture.model().seq_len;
    append(batch.inputs, fixture.Inputs(row));
    append(batch.targets, fixture.Targets(row));
    batch.samples.push_back(row);
  }
  return batches;
}

TEST_P(PyTorchGradient, OfEveryParameterIsThatOfPyTorchInFp32) {
  const auto& [name, types, micro_batches, chunks] = GetParam();
  const bool fp32 = !types.mixed();
  const double tolerance = fp32 ? 1e-5 : 2e-2;
  const Fixture fixture(name);
  const std::vector<ParameterSpec> specs = GptParameters(fixture.model());
  std::vector<Array> weights;
  for (const ParameterSpec& spec : specs) {
    weights.push_back(fixture.Values("weights." + spec.name));
  }
  int64_t targets = 0;
  for (int64_t row = 0; row < fixture.global_batch(); ++row) {
    targets += CountTargets(fixture.Targets(row));
  }
  TrainSettings settings;
  settings.model = fixture.model();
  settings.dtype = types.parameters;
  settings.grad_accum_dtype = types.gradients;
  if (chunks > 1) {
    const int64_t rows = fixture.global_batch() / micro_batches * settings.model.seq_len;
    settings.logits_bytes =
        (rows + chunks - 1) / chunks * settings.model.vocab_size * SizeOf(settings.dtype);
  }
  const ModelGradient ours = ComputeModelGradient(
      settings, weights, FirstBatch(fixture, micro_batches), 1 / static_cast<float>(targets));

  for (size_t id = 0; id < specs.size(); ++id) {
    const std::string& parameter = specs[id].name;
    // Of the bf16-rounded weights, unless the weights are bf16 numbers anyway.
    const bool rounded = !fp32 && fixture.Has("rounded_gradients." + parameter);
    const Array expected =
        fixture.Values((rounded ? "rounded_gradients." : "gradients.") + parameter);
    const Array& found = ours.gradients[id];
    const double norm = Norm(WithoutKeyBias(parameter, expected));
    EXPECT_GT(norm, 1e-3) << parameter << ": nothing to compare with";
    const double distance = Norm(WithoutKeyBias(parameter, Difference(found, expected)));
    EXPECT_TRUE(distance <= tolerance * norm)
        << parameter << " differs by " << distance / norm << " of its norm";
    if (fp32 && IsQkvBias(parameter)) {
      EXPECT_TRUE(Norm(Third(found, 1)) <= 1e-5 * Norm(Third(found, 0)))
          << parameter << ": of the key " << Norm(Third(found, 1)) << ", of the query "
          << Norm(Third(found, 0));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , PyTorchGradient,
    testing::Values(GradientCase{"odd_shapes", kFp32, 1}, GradientCase{"odd_shapes", kFp32, 3},
                    GradientCase{"odd_shapes", kFp32, 6}, GradientCase{"width_64", kFp32, 1},
                    GradientCase{"odd_shapes", kFp32, 1, 4}, GradientCase{"odd_shapes", kBf16, 1},
                    GradientCase{"odd_shapes", kBf16, 1, 4},
                    GradientCase{"odd_shapes", kBf16WithFp32Gradients, 3},
                    GradientCase{"width_64", kBf16, 1},
                    GradientCase{"width_64", kBf16WithFp32Gradients, 1}),
    testing::PrintToStringParamName());

// ---- training ----

class FixtureData final : public Dataset {
 public:
  explicit FixtureData(const Fixture& fixture) : fixture_(fixture) {}
  int64_t train_tokens() const override { return train_sequences() * fixture_.model().seq_len; }
  int64_t train_sequences() const override { return kSteps * fixture_.global_batch(); }
  int64_t validation_sequences() const override { return 1; }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    Copy(fixture_.Inputs(position), inputs);
    Copy(fixture_.Targets(position), targets);
  }
  int64_t TrainTargets(int64_t position) const override {
    return CountTargets(fixture_.Targets(position));
  }
  int64_t Epoch(int64_t) const override { return 0; }
  int64_t TrainSequence(int64_t position) const override { return position; }
  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override {
    Train(sequence, inputs, targets);
  }

 private:
  static void Copy(std::span<const int32_t> from, std::span<int32_t> to) {
    std::copy(from.begin(), from.end(), to.begin());
  }
  const Fixture& fixture_;
};

struct TrainingCase {
  std::string fixture;
  int stage;
  int devices;
  int64_t grad_accum;
};
void PrintTo(const TrainingCase& c, std::ostream* os) {
  *os << c.fixture << "_stage_" << c.stage << "_on_" << c.devices << "_in_" << c.grad_accum;
}

class PyTorchTraining : public testing::TestWithParam<TrainingCase> {};

TEST_P(PyTorchTraining, HasTheLossesAndTheParametersOfPyTorchsAdamW) {
  const auto& [name, stage, devices, grad_accum] = GetParam();
  const Fixture fixture(name);
  TrainSettings settings = SmallSettings();
  settings.model = fixture.model();
  settings.optimizer = fixture.optimizer();
  settings.dropout = 0;
  settings.zero_stage = stage;
  settings.devices = devices;
  settings.grad_accum = grad_accum;
  settings.micro_batch = fixture.global_batch() / (devices * grad_accum);
  settings.steps = kSteps;
  ASSERT_EQ(settings.global_batch(), fixture.global_batch());
  TrainHooks hooks;
  hooks.initial_parameter = [&](const std::string& parameter, float* values, int64_t elements) {
    const Array initial = fixture.Values("weights." + parameter);
    ASSERT_EQ(std::ssize(initial), elements) << parameter;
    std::copy(initial.begin(), initial.end(), values);
  };
  const SmallRun run = RunSmall(settings, FixtureData(fixture), hooks);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;

  const Array losses = fixture.Values("losses"), norms = fixture.Values("gradient_norms");
  ASSERT_EQ(losses.size(), kSteps);
  ASSERT_EQ(run.result.step_metrics.size(), kSteps);
  int clipped = 0;
  for (int i = 0; i < kSteps; ++i) {
    const StepMetrics& step = run.result.step_metrics[i];
    EXPECT_TRUE(std::abs(step.loss - losses[i]) <= 1e-5)
        << "step " << step.step << ": " << step.loss << ", not " << losses[i];
    EXPECT_TRUE(std::abs(step.grad_norm - norms[i]) <= 1e-5 * norms[i])
        << "step " << step.step << ": " << step.grad_norm << ", not " << norms[i];
    clipped += step.clip < 1 ? 1 : 0;
  }
  EXPECT_GT(clipped, 0);
  EXPECT_LT(clipped, kSteps);

  ASSERT_EQ(run.parameters.size(), GptParameters(fixture.model()).size());
  for (const auto& [parameter, values] : run.parameters) {
    const auto without_key = [&](const Array& x) { return WithoutKeyBias(parameter, x); };
    const Array found = without_key({values.begin(), values.end()});
    const Array expected = without_key(fixture.Values("trained." + parameter));
    const Array initial = without_key(fixture.Values("weights." + parameter));
    const double norm = Norm(expected);
    EXPECT_GT(Norm(Difference(initial, expected)), 2e-3 * norm) << parameter << ": not trained";
    const double distance = Norm(Difference(found, expected));
    EXPECT_TRUE(distance <= 1e-4 * norm)
        << parameter << " differs by " << distance / norm << " of its norm";
  }
}

INSTANTIATE_TEST_SUITE_P(, PyTorchTraining,
                         testing::Values(TrainingCase{"odd_shapes", 0, 1, 3},
                                         TrainingCase{"odd_shapes", 2, 2, 3},
                                         TrainingCase{"odd_shapes", 3, 3, 1},
                                         TrainingCase{"width_64", 0, 1, 1},
                                         TrainingCase{"width_64", 3, 2, 1}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace zerobox
