// SPDX-License-Identifier: Apache-2.0
//
// Resolves flags to settings: presets, derived defaults, and the checks that involve several flags.
#ifndef ZEROBOX_TRAINER_RESOLVE_H_
#define ZEROBOX_TRAINER_RESOLVE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/cuda/cuda.h"
#include "trainer/command_line.h"
#include "trainer/flags.h"
#include "trainer/settings.h"

namespace zerobox {

// What derived defaults depend on.
struct Machine {
  int cores = 1;                 // that this process may use
  int64_t available_memory = 0;  // bytes that can be taken without swapping (MemAvailable)
  // Asked only where GPUs may be used, because that wakes the driver.
  std::function<absl::StatusOr<int>()> count_gpus = CountGpus;
  std::function<absl::StatusOr<int64_t>(int gpu)> free_gpu_memory = FreeGpuMemory;
  std::function<int64_t(const CudaOpsSizes&)> gpu_workspace = GpuWorkspaceBytes;
  // Asked only where several GPUs are to be used.
  std::function<absl::Status()> check_nccl = CheckNccl;
  std::function<absl::StatusOr<GpuLinks>(int gpus)> links = FindGpuLinks;
  bool nvidia_driver = false;  // it has the driver of GPUs, which a build without CUDA cannot count
};
Machine ThisMachine();
// Free on each of the first `gpus` GPUs.
absl::StatusOr<int64_t> LeastFreeGpuMemory(const Machine& machine, int gpus);

using FlagValue = std::variant<bool, int64_t, uint64_t, double, std::string>;
std::string Text(const FlagValue& value);

// One flag as the run uses it. `source`: default, flag, flagfile, model (of the preset) or derived.
struct ResolvedFlag {
  std::string name;
  Topic topic;
  FlagValue value;
  std::string source;
};

struct ResolvedTrain {
  TrainSettings settings;
  std::string model;                  // the preset's name
  bool auto_grad_accum_dtype = true;  // chosen by AutoGradAccumDType
  // For the header: how the GPUs reach each other, or why the devices are none; else "".
  std::string about_devices;
  std::vector<ResolvedFlag> flags;
};
struct ResolvedSample {
  SampleSettings settings;
  std::vector<ResolvedFlag> flags;
};

// Read the registry, which `line` was parsed into. settings.out stays empty when --out was not
// given: the run folder chooses its name. Errors: see ParseArguments.
absl::StatusOr<ResolvedTrain> ResolveTrain(const CommandLine& line, const Machine& machine);
absl::StatusOr<ResolvedSample> ResolveSample(const CommandLine& line, const Machine& machine);

// "NVLink between all GPUs", and so on, for a line of the header.
std::string DescribeLinks(const GpuLinks& links);

// What --grad_accum_dtype=auto means: with one micro-batch nothing is added up over and over, so
// the type of training will do; else fp32.
DType AutoGradAccumDType(DType dtype, int64_t grad_accum);

// tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl.
std::optional<ModelConfig> ModelPreset(std::string_view name);

// A generous upper bound of the bytes that one device needs, in floating point so that it cannot
// overflow: what lies beyond 64 bits is refused before anything computes with it.
double RoughBytesOfOneDevice(const TrainSettings& settings);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RESOLVE_H_
