// SPDX-License-Identifier: Apache-2.0
//
// Settings: everything a run needs to know, resolved and checked before anything is started.
#ifndef ZEROBOX_TRAINER_SETTINGS_H_
#define ZEROBOX_TRAINER_SETTINGS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/device/buffer.h"
#include "ops/optimizer.h"
#include "zero/state_types.h"

namespace zerobox {

// GPT-2's shape. n_embd is divisible by n_head.
struct ModelConfig {
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;
  int64_t seq_len = 128;
  int64_t vocab_size = 256;
};

// What a block keeps from its forward to its backward visit (trainer/activation_checkpoints.h lists
// the tensors).
enum class ActivationCheckpointing : uint8_t { kNone, kSelective, kFull };
// none, selective, full: as --activation_checkpointing has it.
constexpr std::string_view Name(ActivationCheckpointing checkpointing) {
  switch (checkpointing) {
    case ActivationCheckpointing::kNone:
      return "none";
    case ActivationCheckpointing::kSelective:
      return "selective";
    case ActivationCheckpointing::kFull:
      return "full";
  }
  return "";
}
// none, optimizer, activations, or both with a comma between: as --offload has it.
constexpr std::string_view OffloadName(bool optimizer, bool activations) {
  if (optimizer) return activations ? "optimizer,activations" : "optimizer";
  return activations ? "activations" : "none";
}

// Which step a run records, beside a step's number.
inline constexpr int64_t kTraceOff = -1;
inline constexpr int64_t kTraceLast = 0;

struct TrainSettings {
  std::string data;
  std::string val_data;  // "": held out from data
  std::string out;       // the run folder
  std::string device = "host";
  int devices = 4;
  bool virtual_devices = false;     // all on GPU 0
  int threads = 1;                  // of the machine, shared by the devices
  int64_t device_memory_bytes = 0;  // capacity of each device

  // For how long a rank may wait for others in one collective call, or before an evaluation; time
  // in which a rank evaluates or saves is not counted. 0: for ever.
  double collective_timeout_seconds = 600;

  int zero_stage = 0;
  DType dtype = DType::kFloat32;             // of parameters and activations
  DType grad_accum_dtype = DType::kFloat32;  // of gradients, kept and sent
  bool tf32 = false;                         // of fp32 products on a GPU
  int64_t bucket_bytes = int64_t{25} << 20;
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::kNone;
  bool offload_optimizer = false;
  bool offload_activations = false;  // only with checkpointing
  int64_t logits_bytes = int64_t{64} << 20;

  ModelConfig model;
  double dropout = 0;
  int64_t micro_batch = 4;  // sequences per device
  int64_t grad_accum = 1;   // micro-batches per step
  int64_t steps = 400;
  OptimizerSettings optimizer;  // schedule, AdamW, clipping

  uint64_t seed = 1337;
  int64_t eval_interval = 100;  // 0: off
  int64_t eval_batches = 20;
  int64_t sample_bytes = 300;
  int64_t trace_step = kTraceOff;
  bool dry_run = false;

  int64_t global_batch() const { return micro_batch * grad_accum * devices; }
  StateTypes types() const { return {dtype, grad_accum_dtype}; }
  // Threads of one device's compute stream.
  int threads_per_device() const { return threads > devices ? threads / devices : 1; }
};

struct SampleSettings {
  std::string run = "runs/latest";
  std::string prompt;  // "": as if a text began
  int64_t bytes = 300;
  double temperature = 0.8;
  int64_t top_k = 0;  // 0: off
  uint64_t seed = 1337;
  int threads = 1;
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_SETTINGS_H_
