// SPDX-License-Identifier: Apache-2.0
//
// Sampling: a saved model continues a prompt, on one host device.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/collectives/plan_communicator.h"
#include "ops/device/host_device.h"
#include "ops/device/plan_device.h"
#include "trainer/batch_feed.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/step_programs.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

// Models of so many tokens at most read and write bytes.
constexpr int64_t kByteVocabulary = 256;
constexpr int32_t kEndOfText = 50256;  // in GPT-2's vocabulary

// A model for reading: parameters whole on one device.
class Generator {
 public:
  // Of the settings it takes the model's shape and type.
  Generator(Device& device, const Layout& layout, const TrainSettings& settings)
      : device_(device),
        settings_(settings),
        layout_(layout),
        program_(ForwardProgram(settings.model.n_layer)),
        model_(device, layout, settings),
        zero_(device, alone_, layout, settings.types()),
        feed_(device, 1, settings.model.seq_len),
        copied_(device.MakeEvent("copied")) {
    zero_.AllocateParameters();
  }

  absl::Status Load(const SafetensorsReader& reader) {
    for (const Bucket& bucket : layout_.buckets()) {
      for (int i = 0; i < bucket.parameters; ++i) {
        const ParameterId id = bucket.first_parameter + i;
        const ParameterSpec& spec = layout_.spec(id);
        auto bytes = reader.Tensor({spec.name, settings_.dtype, spec.shape});
        if (!bytes.ok()) return bytes.status();
        device_.CopyFromHost(StreamId::kFromHost,
                             zero_.Parameters(bucket).Slice(layout_.Parameter(id)), bytes->data());
      }
    }
    device_.Record(*copied_, StreamId::kFromHost);
    return device_.HostWait(*copied_);
  }

  // The logits (V) of the token that follows `context`, of at most seq_len tokens.
  absl::Status Next(std::span<const int32_t> context, std::vector<float>& logits) {
    if (!context.empty()) {
      HostBatch* const host = feed_.Next();
      if (host == nullptr) return device_.status();
      std::copy(context.begin(), context.end(), host->inputs.begin());
    }
    const int64_t positions = std::max<int64_t>(1, std::ssize(context));
    return Run(positions, logits);
  }

  // The longest pass there is, for the plan.
  void Walk() {
    std::vector<float> logits;
    Run(settings_.model.seq_len, logits).IgnoreError();
  }

 private:
  absl::Status Run(int64_t positions, std::vector<float>& logits) {
    const Batch batch = feed_.Upload(1, positions);
    zero_.Begin(program_, {});
    MicroBatchInFlight micro_batch = model_.BeginSampling(batch);
    for (const Visit& visit : program_) {
      const Buffer w = zero_.Acquire(visit);
      model_.Forward(visit, w, micro_batch);
      zero_.Release(visit);
    }
    feed_.Done();
    logits_.resize(micro_batch.logits.bytes());
    device_.CopyToHost(StreamId::kCompute, logits_.data(), micro_batch.logits);
    device_.Record(*copied_, StreamId::kCompute);
    model_.End(micro_batch);
    absl::Status status = device_.HostWait(*copied_);
    if (status.ok()) logits = Widened(logits_, settings_.dtype);
    return status;
  }

  Device& device_;
  const TrainSettings settings_;
  const Layout& layout_;
  PlanCommunicator alone_{0, 1};
  const StepProgram program_;
  Gpt model_;
  Stage0 zero_;
  BatchFeed feed_;
  std::vector<std::byte> logits_;
  std::unique_ptr<Event> copied_;  // from_host -> host: weights are there; compute -> host: logits
};

// Draws from softmax(logits / temperature) over the top_k largest (0: all); temperature 0 takes the
// largest. `uniform` is in [0, 1).
int32_t Draw(const std::vector<float>& logits, double temperature, int64_t top_k, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (temperature == 0) return order[0];
  if (top_k > 0 && top_k < std::ssize(order)) order.resize(top_k);
  std::vector<double> weights(order.size());
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((double{logits[order[i]]} - logits[order[0]]) / temperature);
    sum += weights[i];
  }
  double left = uniform * sum;
  for (size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

// A token a byte.
absl::StatusOr<std::vector<int32_t>> ByteTokens(const std::string& prompt, int64_t vocabulary) {
  // There is no token for the beginning of a text; a line's end comes closest.
  if (prompt.empty()) return std::vector{std::min<int32_t>('\n', vocabulary - 1)};
  std::vector<int32_t> tokens;
  for (const unsigned char c : prompt) {
    if (c >= vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("the prompt has the byte ", c,
                                                     ", but the model knows tokens below ",
                                                     vocabulary, " only: use another --prompt"));
    }
    tokens.push_back(c);
  }
  return tokens;
}

// The numbers that the prompt says.
absl::StatusOr<std::vector<int32_t>> NumberTokens(const std::string& prompt, int64_t vocabulary) {
  // In GPT-2's vocabulary the end of a text also stands before each.
  if (prompt.empty()) return std::vector{vocabulary > kEndOfText ? kEndOfText : 0};
  const auto refuse = [&](absl::string_view found) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt: wanted numbers of tokens from 0 to ", vocabulary - 1,
                     " with blanks between, as this model's tokens are not bytes, found '", found,
                     "'; turn the text into tokens as was done with --data"));
  };
  std::vector<int32_t> tokens;
  for (const absl::string_view word :
       absl::StrSplit(prompt, absl::ByAnyChar(" \t\n"), absl::SkipEmpty())) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(word, &token) || token < 0 || token >= vocabulary) {
      return refuse(word);
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return refuse(prompt);
  return tokens;
}

}  // namespace

absl::Status Sample(const SampleSettings& settings,
                    const std::function<bool(std::string_view)>& write) {
  auto reader = SafetensorsReader::Open(ModelPath(settings.run));
  if (!reader.ok()) return reader.status();
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(**reader);
  if (!config.ok()) return config.status();
  const absl::StatusOr<DType> dtype = ReadModelDType(**reader);
  if (!dtype.ok()) return dtype.status();
  if (absl::Status status = CheckModelParameters(**reader, *config, *dtype); !status.ok()) {
    return status;
  }
  const bool bytes = config->vocab_size <= kByteVocabulary;
  auto prompt = bytes ? ByteTokens(settings.prompt, config->vocab_size)
                      : NumberTokens(settings.prompt, config->vocab_size);
  if (!prompt.ok()) return prompt.status();
  std::vector<int32_t> tokens = *std::move(prompt);

  TrainSettings model;
  model.model = *config;
  model.dtype = *dtype;
  const absl::StatusOr<Layout> layout =
      Layout::Make(GptParameters(*config), 1, std::numeric_limits<int64_t>::max(), *dtype);
  if (!layout.ok()) return layout.status();

  PlanDevice plan;
  Generator(plan, *layout, model).Walk();
  Abort abort;
  auto device =
      HostDevice::Make({.regions = plan.memory().high_water(), .threads = settings.threads}, abort);
  if (!device.ok()) return device.status();
  Generator generator(**device, *layout, model);
  if (absl::Status status = generator.Load(**reader); !status.ok()) return status;

  bool go_on = settings.prompt.empty() || write(settings.prompt);
  bool separate = !settings.prompt.empty();  // numbers, from what stands before
  std::vector<float> logits;
  for (int64_t i = 0; go_on && i < settings.bytes; ++i) {
    const int64_t context = std::min<int64_t>(std::ssize(tokens), config->seq_len);
    if (absl::Status status = generator.Next(std::span(tokens).last(context), logits);
        !status.ok()) {
      return status;
    }
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
      return absl::FailedPreconditionError(
          "the model's logits are not finite: its training has diverged; train again, say with a "
          "lower --lr");
    }
    tokens.push_back(Draw(logits, settings.temperature, settings.top_k,
                          UniformAt(settings.seed, /*stream=*/0, i)));
    if (bytes) {
      const char byte = static_cast<char>(tokens.back());
      go_on = write({&byte, 1});
    } else {
      go_on = write(absl::StrCat(separate ? " " : "", tokens.back()));
      separate = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace zerobox
