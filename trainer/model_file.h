// SPDX-License-Identifier: Apache-2.0
//
// model.safetensors: the whole parameters by GPT-2's names, and the model's shape as metadata.
#ifndef ZEROBOX_TRAINER_MODEL_FILE_H_
#define ZEROBOX_TRAINER_MODEL_FILE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/safetensors.h"
#include "trainer/settings.h"

namespace zerobox {

std::string ModelPath(const std::string& run_folder);
// For writing the parameters, all of one type, in the order of GptParameters.
absl::StatusOr<std::unique_ptr<SafetensorsWriter>> CreateModelFile(const std::string& run_folder,
                                                                   const ModelConfig& config,
                                                                   DType dtype);
// The shape of a model that CreateModelFile wrote; InvalidArgument says what is missing or absurd.
absl::StatusOr<ModelConfig> ReadModelConfig(const SafetensorsReader& reader);
// The type of its parameters, fp32 or bf16: that of the first; InvalidArgument for any other.
absl::StatusOr<DType> ReadModelDType(const SafetensorsReader& reader);
// An error unless the file has every parameter of such a model. For before anything is made as
// large as the metadata say the model is.
absl::Status CheckModelParameters(const SafetensorsReader& reader, const ModelConfig& config,
                                  DType dtype);

// Numbers of type fp32 or bf16 as floats.
std::vector<float> Widened(std::span<const std::byte> bytes, DType dtype);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_MODEL_FILE_H_
