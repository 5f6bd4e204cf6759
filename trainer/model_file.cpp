// SPDX-License-Identifier: Apache-2.0
#include "trainer/model_file.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ops/bfloat16.h"
#include "trainer/gpt.h"

namespace zerobox {
namespace {

constexpr struct {
  const char* name;
  int64_t ModelConfig::*field;
} kFields[] = {{"n_layer", &ModelConfig::n_layer},
               {"n_head", &ModelConfig::n_head},
               {"n_embd", &ModelConfig::n_embd},
               {"seq_len", &ModelConfig::seq_len},
               {"vocab_size", &ModelConfig::vocab_size}};
constexpr int64_t kMaxDimension = 1 << 20;

}  // namespace

std::string ModelPath(const std::string& run_folder) {
  return absl::StrCat(run_folder, "/model.safetensors");
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> CreateModelFile(const std::string& run_folder,
                                                                   const ModelConfig& config,
                                                                   DType dtype) {
  std::vector<TensorInfo> tensors;
  for (const ParameterSpec& spec : GptParameters(config)) {
    tensors.push_back({.name = spec.name, .dtype = dtype, .shape = spec.shape});
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"model", "gpt2"}};
  for (const auto& [name, field] : kFields) metadata[name] = absl::StrCat(config.*field);
  return SafetensorsWriter::Create(ModelPath(run_folder), std::move(tensors), metadata);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const SafetensorsReader& reader) {
  ModelConfig config;
  for (const auto& [name, field] : kFields) {
    const auto found = reader.metadata().find(name);
    if (found == reader.metadata().end() || !absl::SimpleAtoi(found->second, &(config.*field)) ||
        config.*field < 1 || config.*field > kMaxDimension) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model's metadata wants ", name, ", a whole number from 1 to ", kMaxDimension,
          "; found ",
          found == reader.metadata().end() ? "none" : absl::StrCat("\"", found->second, "\""),
          ": was the file written by zerobox train?"));
    }
  }
  if (config.n_embd % config.n_head != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the model's metadata has n_embd ",
                                                   config.n_embd, ", which n_head ", config.n_head,
                                                   " does not divide"));
  }
  return config;
}

absl::StatusOr<DType> ReadModelDType(const SafetensorsReader& reader) {
  const DType dtype = reader.tensors().empty() ? DType::kInt32 : reader.tensors().front().dtype;
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) return dtype;
  return absl::InvalidArgumentError(
      "the model's file wants parameters in fp32 or bf16 and has none: was it written by zerobox "
      "train?");
}

absl::Status CheckModelParameters(const SafetensorsReader& reader, const ModelConfig& config,
                                  DType dtype) {
  // The names alone of a million blocks would take gigabytes.
  const auto tensors = static_cast<int64_t>(reader.tensors().size());
  if (config.n_layer > tensors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model's metadata has n_layer ", config.n_layer, ", and the file ", tensors,
        " tensors, fewer than one a block: was it written by zerobox train?"));
  }
  for (const ParameterSpec& spec : GptParameters(config)) {
    const auto bytes = reader.Tensor({spec.name, dtype, spec.shape});
    if (!bytes.ok()) return bytes.status();
  }
  return absl::OkStatus();
}

std::vector<float> Widened(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    BFloat16 value;
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    values[i] = ToFloat(value);
  }
  return values;
}

}  // namespace zerobox
