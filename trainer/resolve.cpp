// SPDX-License-Identifier: Apache-2.0
#include "trainer/resolve.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <thread>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ops/device/host_memory.h"
#include "trainer/gpt.h"
#include "trainer/resolver.h"

namespace zerobox {
namespace {

constexpr std::pair<std::string_view, ModelConfig> kPresets[] = {
    {"tiny", {.n_layer = 4, .n_head = 4, .n_embd = 128, .seq_len = 128, .vocab_size = 256}},
    {"gpt2", {.n_layer = 12, .n_head = 12, .n_embd = 768, .seq_len = 1024, .vocab_size = 50257}},
    {"gpt2-medium",
     {.n_layer = 24, .n_head = 16, .n_embd = 1024, .seq_len = 1024, .vocab_size = 50257}},
    {"gpt2-large",
     {.n_layer = 36, .n_head = 20, .n_embd = 1280, .seq_len = 1024, .vocab_size = 50257}},
    {"gpt2-xl",
     {.n_layer = 48, .n_head = 25, .n_embd = 1600, .seq_len = 1024, .vocab_size = 50257}},
};

// More than any machine has, far less than 64 bits count.
constexpr double kAbsurdBytes = 1e16;
// With which a plan is still a matter of a second.
constexpr int64_t kMostChunksOfLogits = 65536;

absl::StatusOr<ModelConfig> ResolveModel(Resolver& resolver, std::string& model) {
  model = resolver.ZEROBOX_TAKE(model);
  const std::optional<ModelConfig> preset = ModelPreset(model);
  if (!preset) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=", model,
                     ": wanted tiny, gpt2, gpt2-medium, gpt2-large or gpt2-xl, found '", model,
                     "'; choose one and change single numbers with --n_layer, --n_head, --n_embd, "
                     "--seq_len and --vocab_size"));
  }
  ModelConfig config;
  config.n_layer = resolver.ZEROBOX_TAKE(n_layer, "model", std::optional(preset->n_layer));
  config.n_head = resolver.ZEROBOX_TAKE(n_head, "model", std::optional(preset->n_head));
  config.n_embd = resolver.ZEROBOX_TAKE(n_embd, "model", std::optional(preset->n_embd));
  config.seq_len = resolver.ZEROBOX_TAKE(seq_len, "model", std::optional(preset->seq_len));
  config.vocab_size = resolver.ZEROBOX_TAKE(vocab_size, "model", std::optional(preset->vocab_size));
  if (config.n_embd % config.n_head != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--n_embd=", config.n_embd, " with --n_head=", config.n_head,
        ": wanted a width that the heads divide, found a remainder of ",
        config.n_embd % config.n_head,
        "; --n_embd=", (config.n_embd / config.n_head + 1) * config.n_head, " would do"));
  }
  if (model.starts_with("gpt2") && config.seq_len > preset->seq_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seq_len=", config.seq_len, " with --model=", model, ": wanted at most ", preset->seq_len,
        ", the positions that GPT-2 has, found ", config.seq_len,
        "; shorten --seq_len, or describe a shape of your own with --model=tiny and --n_layer, "
        "--n_head, --n_embd"));
  }
  return config;
}

absl::Status ResolveSchedule(Resolver& resolver, TrainSettings& settings) {
  OptimizerSettings& optimizer = settings.optimizer;
  settings.micro_batch = resolver.ZEROBOX_TAKE(micro_batch);
  settings.grad_accum = resolver.ZEROBOX_TAKE(grad_accum);
  settings.steps = resolver.ZEROBOX_TAKE(steps);
  settings.seed = resolver.ZEROBOX_TAKE(seed);
  optimizer.learning_rate = resolver.ZEROBOX_TAKE(lr);
  const bool below_default = optimizer.learning_rate < absl::GetFlag(FLAGS_min_lr);
  if (below_default && !resolver.Given("min_lr")) {
    optimizer.min_learning_rate =
        resolver.ZEROBOX_TAKE(min_lr, "derived", std::optional(optimizer.learning_rate / 10));
  } else {
    optimizer.min_learning_rate = resolver.ZEROBOX_TAKE(min_lr);
  }
  optimizer.warmup_steps =
      resolver.ZEROBOX_TAKE(warmup, "derived", std::optional<int64_t>(settings.steps / 20));
  optimizer.total_steps = settings.steps;
  optimizer.weight_decay = resolver.ZEROBOX_TAKE(weight_decay);
  optimizer.beta1 = resolver.ZEROBOX_TAKE(beta1);
  optimizer.beta2 = resolver.ZEROBOX_TAKE(beta2);
  optimizer.epsilon = resolver.ZEROBOX_TAKE(eps);
  optimizer.clip_norm = resolver.ZEROBOX_TAKE(grad_clip);
  if (!(optimizer.min_learning_rate <= optimizer.learning_rate)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--min_lr=", optimizer.min_learning_rate, " with --lr=", optimizer.learning_rate,
        ": wanted a final learning rate that is not above the peak; lower --min_lr or raise --lr"));
  }
  if (optimizer.warmup_steps > settings.steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--warmup=", optimizer.warmup_steps, " with --steps=", settings.steps,
        ": wanted a warm-up that ends within the run; lower --warmup or raise --steps"));
  }
  return absl::OkStatus();
}

// After the schedule, which says how many steps there are.
absl::Status ResolveTrace(Resolver& resolver, TrainSettings& settings) {
  const std::string trace = resolver.ZEROBOX_TAKE(trace);
  if (trace == "auto") {
    settings.trace_step = kTraceLast;
    return absl::OkStatus();
  }
  if (trace == "off") {
    settings.trace_step = kTraceOff;
    return absl::OkStatus();
  }
  if (absl::SimpleAtoi(trace, &settings.trace_step) && settings.trace_step >= 1 &&
      settings.trace_step <= settings.steps) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--trace=", trace, ": wanted auto, off or the number of a step from 1 to ", settings.steps,
      ", the last of --steps, found '", trace, "'; leave the flag out for the last step"));
}

void ResolveZero(Resolver& resolver, TrainSettings& settings) {
  settings.zero_stage = static_cast<int>(resolver.ZEROBOX_TAKE(zero_stage));
  settings.bucket_bytes = resolver.ZEROBOX_TAKE(bucket_bytes).value;
}

absl::Status UnknownChoice(const char* flag, const std::string& value, const char* wanted,
                           const char* advice) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": wanted ", wanted, ", found '", value, "'; ", advice));
}

// After the batch: auto depends on it.
absl::Status ResolveTypes(Resolver& resolver, ResolvedTrain& resolved) {
  TrainSettings& settings = resolved.settings;
  const bool cuda = settings.device == "cuda";
  const std::string dtype =
      cuda ? resolver.ZEROBOX_TAKE(dtype, "derived", std::optional<std::string>("bf16"))
           : resolver.ZEROBOX_TAKE(dtype);
  if (dtype != "fp32" && dtype != "bf16") {
    return UnknownChoice("dtype", dtype, "fp32 or bf16",
                         cuda ? "leave the flag out for bf16" : "leave the flag out for fp32");
  }
  settings.dtype = dtype == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  settings.tf32 = resolver.ZEROBOX_TAKE(tf32);
  if (settings.tf32 && !cuda) {
    return absl::InvalidArgumentError(
        "--tf32 with --device=host: wanted a GPU, whose tensor cores have TF32, found host "
        "devices; leave --tf32 out, or give --device=cuda");
  }
  const std::string gradients = resolver.ZEROBOX_TAKE(grad_accum_dtype);
  if (gradients != "auto" && gradients != "bf16" && gradients != "fp32") {
    return UnknownChoice("grad_accum_dtype", gradients, "auto, bf16 or fp32",
                         "leave the flag out for auto");
  }
  if (gradients == "bf16" && settings.dtype == DType::kFloat32) {
    return absl::InvalidArgumentError(
        "--grad_accum_dtype=bf16 with --dtype=fp32: wanted gradients at least as precise as the "
        "parameters, found bf16 beside fp32; give --dtype=bf16 too, or leave --grad_accum_dtype "
        "out");
  }
  resolved.auto_grad_accum_dtype = gradients == "auto";
  settings.grad_accum_dtype = gradients == "bf16" ? DType::kBFloat16
                              : gradients == "fp32"
                                  ? DType::kFloat32
                                  : AutoGradAccumDType(settings.dtype, settings.grad_accum);
  if (gradients == "auto") resolver.Derive("grad_accum_dtype", Name(settings.grad_accum_dtype));
  return absl::OkStatus();
}

// optimizer and activations, in any order, each once; or none.
bool ParseOffload(const std::string& text, TrainSettings& settings) {
  const std::vector<std::string> parts = ParseList(text);
  if (parts.size() == 1 && parts[0] == "none") return true;
  for (const std::string& part : parts) {
    bool* const chosen = part == "optimizer"     ? &settings.offload_optimizer
                         : part == "activations" ? &settings.offload_activations
                                                 : nullptr;
    if (chosen == nullptr || *chosen) return false;
    *chosen = true;
  }
  return true;
}

absl::Status ResolveMemory(Resolver& resolver, TrainSettings& settings) {
  const std::string checkpointing = resolver.ZEROBOX_TAKE(activation_checkpointing);
  bool known = false;
  for (const auto choice : {ActivationCheckpointing::kNone, ActivationCheckpointing::kSelective,
                            ActivationCheckpointing::kFull}) {
    if (checkpointing != Name(choice)) continue;
    settings.activation_checkpointing = choice;
    known = true;
  }
  if (!known) {
    return UnknownChoice("activation_checkpointing", checkpointing, "none, selective or full",
                         "leave the flag out for none");
  }
  const std::string offload = resolver.ZEROBOX_TAKE(offload);
  if (!ParseOffload(offload, settings)) {
    return UnknownChoice("offload", offload,
                         "none, or optimizer and activations, each once, with a comma between",
                         "--offload=optimizer,activations has both");
  }
  resolver.Rewrite("offload",
                   OffloadName(settings.offload_optimizer, settings.offload_activations));
  if (settings.offload_activations &&
      settings.activation_checkpointing == ActivationCheckpointing::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--offload=", offload,
        " with --activation_checkpointing=none: wanted checkpoints to "
        "offload, found that every activation stays on the device; give "
        "--activation_checkpointing=selective or full too, or take activations out of --offload"));
  }
  settings.logits_bytes = resolver.ZEROBOX_TAKE(logits_bytes).value;
  const int64_t row = settings.model.vocab_size * SizeOf(settings.dtype);
  if (settings.logits_bytes < row) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--logits_bytes=", settings.logits_bytes,
        ": wanted room for the logits of one token at least, ", settings.model.vocab_size,
        " vocab_size x ", SizeOf(settings.dtype), " bytes in ", std::string(Name(settings.dtype)),
        ", found ", settings.logits_bytes, " bytes; --logits_bytes=", row, " would do"));
  }
  return absl::OkStatus();
}

absl::Status CheckHeads(const TrainSettings& settings) {
  const int64_t n_embd = settings.model.n_embd, n_head = settings.model.n_head;
  if (settings.device != "cuda" || n_embd / n_head <= kMostGpuHeadChannels) {
    return absl::OkStatus();
  }
  int64_t enough = (n_embd + kMostGpuHeadChannels - 1) / kMostGpuHeadChannels;
  while (n_embd % enough != 0) ++enough;
  return absl::InvalidArgumentError(
      absl::StrCat("--n_embd=", n_embd, " with --n_head=", n_head, ": wanted heads of at most ",
                   kMostGpuHeadChannels, " channels on a GPU, found ", n_embd / n_head,
                   "; --n_head=", enough, " would do, or --device=host"));
}

// A plan goes through every chunk.
absl::Status CheckLogits(const TrainSettings& settings) {
  const ModelConfig& model = settings.model;
  const int64_t rows = settings.micro_batch * model.seq_len;
  const int64_t chunk = RowsOfLogits(settings.logits_bytes, model.vocab_size, settings.dtype, rows);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  if (chunks <= kMostChunksOfLogits) return absl::OkStatus();
  const int64_t wanted = (rows + kMostChunksOfLogits - 1) / kMostChunksOfLogits;
  return absl::InvalidArgumentError(absl::StrCat(
      "--logits_bytes=", settings.logits_bytes, " with --micro_batch=", settings.micro_batch,
      " --seq_len=", model.seq_len, " --vocab_size=", model.vocab_size, ": wanted at most ",
      kMostChunksOfLogits, " chunks of logits in a micro-batch, found ", chunks,
      "; --logits_bytes=", wanted * model.vocab_size * SizeOf(settings.dtype),
      " would do, or lower --micro_batch (and raise --grad_accum)"));
}

absl::Status CheckSizes(const TrainSettings& settings) {
  if (const double bytes = RoughBytesOfOneDevice(settings); !(bytes < kAbsurdBytes)) {
    const ModelConfig& model = settings.model;
    return absl::InvalidArgumentError(absl::StrCat(
        "--n_layer=", model.n_layer, " --n_head=", model.n_head, " --n_embd=", model.n_embd,
        " --seq_len=", model.seq_len, " --vocab_size=", model.vocab_size,
        " --micro_batch=", settings.micro_batch, " would need about ", bytes,
        " bytes: wanted a run that fits a machine (below 1e16 bytes); make some of them smaller"));
  }
  // Kernels number the rows of a micro-batch in 32 bits.
  if (const int64_t rows = settings.micro_batch * settings.model.seq_len; rows >> 31 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--micro_batch=", settings.micro_batch, " with --seq_len=", settings.model.seq_len,
        ": wanted fewer than 2^31 tokens in a micro-batch, found ", rows,
        "; lower --micro_batch (and raise --grad_accum) or --seq_len"));
  }
  if (absl::Status status = CheckLogits(settings); !status.ok()) return status;
  const double tokens = static_cast<double>(settings.steps) *
                        static_cast<double>(settings.global_batch()) *
                        static_cast<double>(settings.model.seq_len);
  if (!(tokens < 0x1p62)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--steps=", settings.steps, " of ", settings.global_batch(), " sequences of ",
                     settings.model.seq_len, " tokens are ", tokens,
                     " tokens: wanted fewer than 2^62; lower --steps or the batch"));
  }
  return absl::OkStatus();
}

int64_t FreeMemory() {
  const int64_t available = AvailableMemory();
  return available >= 0 ? available : int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

int Cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

Machine ThisMachine() {
  return {.cores = Cores(),
          .available_memory = FreeMemory(),
          .nvidia_driver = access("/dev/nvidia0", F_OK) == 0};
}

std::string Text(const FlagValue& value) {
  if (const auto* yes = std::get_if<bool>(&value)) return *yes ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  std::array<char, 32> digits;
  std::to_chars_result end{};
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    end = std::to_chars(digits.begin(), digits.end(), *whole);
  } else if (const auto* natural = std::get_if<uint64_t>(&value)) {
    end = std::to_chars(digits.begin(), digits.end(), *natural);
  } else {
    end = std::to_chars(digits.begin(), digits.end(), std::get<double>(value));
  }
  return std::string(digits.begin(), end.ptr);
}

DType AutoGradAccumDType(DType dtype, int64_t grad_accum) {
  return grad_accum == 1 ? dtype : DType::kFloat32;
}

std::optional<ModelConfig> ModelPreset(std::string_view name) {
  for (const auto& [preset, config] : kPresets) {
    if (preset == name) return config;
  }
  return std::nullopt;
}

double RoughBytesOfOneDevice(const TrainSettings& settings) {
  const ModelConfig& model = settings.model;
  const double L = static_cast<double>(model.n_layer), C = static_cast<double>(model.n_embd);
  const double T = static_cast<double>(model.seq_len), V = static_cast<double>(model.vocab_size);
  const double H = static_cast<double>(model.n_head);
  const double B = static_cast<double>(settings.micro_batch);
  const double parameters = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
  const double activations = B * T * (L * 34 * C + 2 * V) + L * B * H * T * T * 2;
  return 24 * parameters + 4 * activations;  // 18 with fp32 gradients; copies on their way
}

absl::StatusOr<ResolvedTrain> ResolveTrain(const CommandLine& line, const Machine& machine) {
  Resolver resolver(line);
  ResolvedTrain resolved;
  TrainSettings& settings = resolved.settings;
  settings.data = resolver.ZEROBOX_TAKE(data);
  settings.val_data = resolver.ZEROBOX_TAKE(val_data);
  settings.out = resolver.ZEROBOX_TAKE(out, "derived");
  settings.dry_run = resolver.ZEROBOX_TAKE(dry_run);
  absl::StatusOr<ModelConfig> model = ResolveModel(resolver, resolved.model);
  if (!model.ok()) return model.status();
  settings.model = *model;
  settings.dropout = resolver.ZEROBOX_TAKE(dropout);
  settings.eval_interval = resolver.ZEROBOX_TAKE(eval_interval);
  settings.eval_batches = resolver.ZEROBOX_TAKE(eval_batches);
  settings.sample_bytes = resolver.ZEROBOX_TAKE(sample_bytes);
  if (absl::Status status = ResolveDevices(resolver, machine, resolved); !status.ok()) {
    return status;
  }
  ResolveZero(resolver, settings);
  if (absl::Status status = ResolveSchedule(resolver, settings); !status.ok()) return status;
  if (absl::Status status = ResolveTrace(resolver, settings); !status.ok()) return status;
  if (absl::Status status = ResolveTypes(resolver, resolved); !status.ok()) return status;
  if (absl::Status status = ResolveMemory(resolver, settings); !status.ok()) return status;
  if (absl::Status status = CheckHeads(settings); !status.ok()) return status;
  if (absl::Status status = CheckSizes(settings); !status.ok()) return status;
  if (settings.data.empty() && !settings.dry_run) {
    return absl::InvalidArgumentError(
        "--data is missing: wanted a file to train on, found none; give --data=FILE (any text "
        "will do)");
  }
  if (line.Given("out") && settings.out.empty()) {
    return absl::InvalidArgumentError(
        "--out is empty: wanted the name of a folder; leave the flag out for a new one in runs/");
  }
  resolved.flags = resolver.TakeFlags();
  return resolved;
}

absl::StatusOr<ResolvedSample> ResolveSample(const CommandLine& line, const Machine& machine) {
  Resolver resolver(line);
  ResolvedSample resolved;
  SampleSettings& settings = resolved.settings;
  settings.run = resolver.ZEROBOX_TAKE(run);
  settings.prompt = resolver.ZEROBOX_TAKE(prompt);
  settings.bytes = resolver.ZEROBOX_TAKE(bytes);
  settings.temperature = resolver.ZEROBOX_TAKE(temperature);
  settings.top_k = resolver.ZEROBOX_TAKE(top_k);
  settings.seed = resolver.ZEROBOX_TAKE(seed);
  settings.threads = static_cast<int>(
      resolver.ZEROBOX_TAKE(threads, "derived", std::optional<int64_t>(machine.cores)));
  if (resolver.Given("prompt") && settings.prompt.empty()) {
    return absl::InvalidArgumentError(
        "--prompt is empty: wanted at least one byte, or token, to go on from; leave the flag out "
        "for a line break, or the token for the end of a text");
  }
  resolved.flags = resolver.TakeFlags();
  return resolved;
}

}  // namespace zerobox
