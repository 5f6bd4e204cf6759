// SPDX-License-Identifier: Apache-2.0
#include "trainer/flags.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ops/view.h"

namespace zerobox {
namespace {

std::vector<FlagInfo>& Registry() {
  static auto* flags = new std::vector<FlagInfo>;
  return *flags;
}

bool List(const FlagInfo& flag) {
  Registry().push_back(flag);
  return true;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr NumberRange kPositiveUpTo1000 = {.min = 0, .max = 1000, .without_min = true};
constexpr NumberRange kFractionBelow1 = {.min = 0, .max = 1, .without_max = true};
constexpr unsigned kTraining = kTrainCommand | kCompareCommand;

}  // namespace
}  // namespace zerobox

// A flag in Abseil's registry, listed beside it. The upper ends of the ranges keep every product
// that is computed before the model's size is checked inside 64 bits.
#define ZEROBOX_FLAG(flag_type, flag_name, default_value, help_text, ...)                       \
  ABSL_FLAG(flag_type, flag_name, default_value, help_text);                                    \
  namespace zerobox {                                                                           \
  [[maybe_unused]] static const bool kListed_##flag_name = /* NOLINT: the name is one flag's */ \
      List(FlagInfo{.name = #flag_name, __VA_ARGS__});                                          \
  }                                                                                             \
  static_assert(true, "")

//---- Data and output

ZEROBOX_FLAG(
    std::string, data, "",
    "What to train on (required): a file or a quoted glob. A file is read as bytes, one token a "
    "byte, unless it begins with the header of llm.c's token files.",
    .topic = Topic::kDataAndOutput, .commands = kTraining, .placeholder = "FILE",
    .default_text = "none");
ZEROBOX_FLAG(std::string, val_data, "", "Held-out data for evaluation, a file or glob like --data.",
             .topic = Topic::kDataAndOutput, .commands = kTraining, .placeholder = "FILE",
             .default_text = "the last 10% of --data, never trained on");
ZEROBOX_FLAG(
    std::string, out, "", "Folder for everything that the run writes. It must be absent or empty.",
    .topic = Topic::kDataAndOutput, .commands = kTraining | kReportCommand, .placeholder = "FOLDER",
    .default_text = "runs/<UTC time>-<short name>", .other_commands = kReportCommand,
    .other = {.placeholder = "FILE",
              .default_text = "report.html in the run's folder; of several runs "
                              "compare.html in the first one's",
              .help = "The page. A report that is there is replaced, another file never."});
ZEROBOX_FLAG(std::string, trace, "auto",
             "Which step the report plays and trace.json has: auto, the last whole one; off; or "
             "the step of that number.",
             .topic = Topic::kDataAndOutput, .commands = kTraining, .placeholder = "auto|off|STEP");
ZEROBOX_FLAG(bool, dry_run, false,
             "Show the resolved settings, the memory plan, the predicted traffic and the step "
             "program, and train nothing. --data may be left out.",
             .topic = Topic::kDataAndOutput, .commands = kTraining, .placeholder = "",
             .other_commands = kCompareCommand,
             .other = {.help = "Show the table as planned, and train nothing. --data may be left "
                               "out."});
ZEROBOX_FLAG(std::string, run, "runs/latest", "The run folder whose model writes.",
             .topic = Topic::kDataAndOutput, .commands = kSampleCommand, .placeholder = "FOLDER");

ZEROBOX_FLAG(std::string, runs, "runs/latest",
             "The folders of the runs to show, with commas between; all of one model, on as many "
             "devices.",
             .topic = Topic::kDataAndOutput, .commands = kReportCommand,
             .placeholder = "FOLDER[,FOLDER...]");

//---- Devices and memory

ZEROBOX_FLAG(std::string, device, "auto",
             "What computes: host (threads of this machine), cuda (GPUs, one a device), or auto: "
             "GPUs where this build and this machine have as many as --devices asks for, or "
             "--virtual is given. CUDA_VISIBLE_DEVICES decides which GPUs there are.",
             .topic = Topic::kDevicesAndMemory, .commands = kTraining,
             .placeholder = "auto|host|cuda");
ZEROBOX_FLAG(int64_t, devices, 4,
             "How many devices share the work: the N of ZeRO. GPUs are taken from the first that "
             "CUDA_VISIBLE_DEVICES shows.",
             .topic = Topic::kDevicesAndMemory, .commands = kTraining, .placeholder = "N",
             .range = {.min = 1, .max = 64},
             .default_text = "4; with GPUs, and no --virtual, all of them");
ZEROBOX_FLAG(bool, virtual, false,
             "Put all devices on one GPU, however many --devices asks for. Slower than one device "
             "that has the GPU to itself: it is for watching ZeRO, and for trying a run out.",
             .topic = Topic::kDevicesAndMemory, .commands = kTraining, .placeholder = "");
ZEROBOX_FLAG(
    int64_t, threads, 0,
    "Threads of this machine that compute. Host devices share them; with GPUs they compute "
    "what is offloaded.",
    .topic = Topic::kDevicesAndMemory, .commands = kTraining | kSampleCommand, .placeholder = "N",
    .range = {.min = 1, .max = 1024}, .default_text = "the cores of this process");
ZEROBOX_FLAG(zerobox::Bytes, device_memory, {},
             "Memory of each device; a run whose plan does not fit does not begin.",
             .topic = Topic::kDevicesAndMemory, .commands = kTraining, .placeholder = "SIZE",
             .range = {.min = 1, .max = 0x1p50},
             .default_text =
                 "90% of the free memory / devices; with GPUs 90% of what each has free, with "
                 "--virtual / devices");
ZEROBOX_FLAG(int64_t, collective_timeout, 600,
             "Seconds that a device may wait for the others before the run fails, with a report of "
             "where each was; 0: for ever. Evaluating and saving do not count.",
             .topic = Topic::kDevicesAndMemory, .commands = kTraining, .placeholder = "SECONDS",
             .range = {.min = 0, .max = 1e9});

//---- ZeRO

ZEROBOX_FLAG(int64_t, zero_stage, 0,
             "What the devices share instead of each keeping it whole: 0 nothing, 1 optimizer "
             "states, 2 and gradients, 3 and parameters.",
             .topic = Topic::kZero, .commands = kTraining, .placeholder = "0|1|2|3",
             .range = {.min = 0, .max = 3}, .other_commands = kCompareCommand,
             .other = {.placeholder = "0|1|2|3",
                       .default_text = "none",
                       .help = "The stage of every run, where --zero_stages is not given."});
ZEROBOX_FLAG(std::string, zero_stages, "", "The stages to run, with commas between.",
             .topic = Topic::kZero, .commands = kCompareCommand, .placeholder = "0,1,2,3",
             .default_text = "0,1,2,3");
ZEROBOX_FLAG(zerobox::Bytes, bucket_bytes, {int64_t{25} << 20},
             "The most gradient that one reduction carries, unless one parameter is larger.",
             .topic = Topic::kZero, .commands = kTraining, .placeholder = "SIZE",
             .range = {.min = 1, .max = 0x1p40});

//---- Precision and memory

ZEROBOX_FLAG(std::string, dtype, "fp32",
             "Type of parameters and activations. bf16 is mixed precision: arithmetic and the "
             "optimizer's master weights stay in fp32.",
             .topic = Topic::kPrecisionAndMemory, .commands = kTraining, .placeholder = "fp32|bf16",
             .default_text = "fp32; with a GPU bf16");
ZEROBOX_FLAG(bool, tf32, false,
             "On a GPU, fp32 matrix products in TF32: inputs with 10 bits of mantissa, on tensor "
             "cores. bf16 products are the same with and without.",
             .topic = Topic::kPrecisionAndMemory, .commands = kTraining, .placeholder = "");
ZEROBOX_FLAG(std::string, grad_accum_dtype, "auto",
             "Type in which gradients are kept and sent; auto is that of --dtype with one "
             "micro-batch a step, else fp32.",
             .topic = Topic::kPrecisionAndMemory, .commands = kTraining,
             .placeholder = "auto|bf16|fp32");
ZEROBOX_FLAG(
    std::string, activation_checkpointing, "none",
    "What backward computes again instead of keeping it from forward: none; selective, what "
    "is cheap to compute (norms, GELU); full, all of a block but its input.",
    .topic = Topic::kPrecisionAndMemory, .commands = kTraining,
    .placeholder = "none|selective|full", .other_commands = kCompareCommand,
    .other = {.placeholder = "none|selective|full",
              .default_text = "none",
              .help = "What every run does, where --activation_checkpointings is not given."});
ZEROBOX_FLAG(std::string, activation_checkpointings, "",
             "What backward computes again, with commas between the runs: none, selective, full.",
             .topic = Topic::kPrecisionAndMemory, .commands = kCompareCommand,
             .placeholder = "none,selective,full", .default_text = "none");
ZEROBOX_FLAG(std::string, offload, "none",
             "What leaves the device for the machine's memory: the optimizer's states, which are "
             "updated there, or what activation checkpointing keeps, or both.",
             .topic = Topic::kPrecisionAndMemory, .commands = kTraining,
             .placeholder = "none|optimizer|activations|optimizer,activations",
             .other_commands = kCompareCommand,
             .other = {
                 .placeholder = "none|optimizer|activations|optimizer,activations",
                 .default_text = "none",
                 .help = "What leaves the device in every run, where --offloads is not given."});
ZEROBOX_FLAG(
    std::string, offloads, "",
    "What leaves the device, with commas between the runs, and a plus where both leave: none, "
    "optimizer, activations, optimizer+activations.",
    .topic = Topic::kPrecisionAndMemory, .commands = kCompareCommand,
    .placeholder = "none,optimizer,optimizer+activations", .default_text = "none");
ZEROBOX_FLAG(zerobox::Bytes, logits_bytes, {int64_t{64} << 20},
             "The most that the head's logits take at a time; it computes a chunk of rows after "
             "the other. One row is the least.",
             .topic = Topic::kPrecisionAndMemory, .commands = kTraining, .placeholder = "SIZE",
             .range = {.min = 1, .max = 0x1p40});

//---- Model

ZEROBOX_FLAG(std::string, model, "tiny",
             "The shape: tiny (4 layers of width 128), gpt2 (124M parameters), gpt2-medium (355M), "
             "gpt2-large (774M) or gpt2-xl (1.6B). The flags below change single numbers of it.",
             .topic = Topic::kModel, .commands = kTraining, .placeholder = "NAME");
ZEROBOX_FLAG(int64_t, n_layer, 0, "Transformer blocks.", .topic = Topic::kModel,
             .commands = kTraining, .placeholder = "N", .range = {.min = 1, .max = 1024},
             .default_text = "from --model");
ZEROBOX_FLAG(int64_t, n_head, 0, "Attention heads; they divide the width.", .topic = Topic::kModel,
             .commands = kTraining, .placeholder = "N", .range = {.min = 1, .max = 1024},
             .default_text = "from --model");
ZEROBOX_FLAG(int64_t, n_embd, 0, "Width: numbers that stand for one token.", .topic = Topic::kModel,
             .commands = kTraining, .placeholder = "N", .range = {.min = 1, .max = 65536},
             .default_text = "from --model");
ZEROBOX_FLAG(int64_t, seq_len, 0, "Tokens of one sequence; at most 1024 with a gpt2 shape.",
             .topic = Topic::kModel, .commands = kTraining, .placeholder = "N",
             .range = {.min = 1, .max = 65536}, .default_text = "from --model");
ZEROBOX_FLAG(int64_t, vocab_size, 0, "Different tokens; 256 covers every byte.",
             .topic = Topic::kModel, .commands = kTraining, .placeholder = "N",
             .range = {.min = 1, .max = 0x1p20}, .default_text = "from --model");
ZEROBOX_FLAG(double, dropout, 0, "The share of activations that is dropped while training.",
             .topic = Topic::kModel, .commands = kTraining, .placeholder = "X",
             .range = {.min = 0, .max = 0.99});

//---- Batch and schedule

ZEROBOX_FLAG(int64_t, micro_batch, 4,
             "Sequences that one device computes at a time. A step trains on micro_batch x "
             "grad_accum x devices sequences.",
             .topic = Topic::kBatchAndSchedule, .commands = kTraining, .placeholder = "N",
             .range = {.min = 1, .max = 65536});
ZEROBOX_FLAG(int64_t, grad_accum, 1, "Micro-batches whose gradients are added up in one step.",
             .topic = Topic::kBatchAndSchedule, .commands = kTraining, .placeholder = "N",
             .range = {.min = 1, .max = 65536});
ZEROBOX_FLAG(int64_t, steps, 400, "Optimizer steps.", .topic = Topic::kBatchAndSchedule,
             .commands = kTraining, .placeholder = "N", .range = {.min = 1, .max = 1e9});
ZEROBOX_FLAG(double, lr, 1e-3, "Learning rate at the end of the warm-up.",
             .topic = Topic::kBatchAndSchedule, .commands = kTraining, .placeholder = "X",
             .range = kPositiveUpTo1000);
ZEROBOX_FLAG(double, min_lr, 1e-4,
             "Learning rate at the end of the run; between the two it falls along a cosine.",
             .topic = Topic::kBatchAndSchedule, .commands = kTraining, .placeholder = "X",
             .range = {.min = 0, .max = 1000},
             .default_text = "0.0001; lr / 10 where --lr is below that");
ZEROBOX_FLAG(int64_t, warmup, 0, "Steps in which the learning rate rises from 0.",
             .topic = Topic::kBatchAndSchedule, .commands = kTraining, .placeholder = "N",
             .range = {.min = 0, .max = 1e9}, .default_text = "5% of --steps");
ZEROBOX_FLAG(uint64_t, seed, 1337, "Everything random follows from this number.",
             .topic = Topic::kBatchAndSchedule, .commands = kTraining | kSampleCommand,
             .placeholder = "N", .range = {.min = 0, .max = kInfinity});

//---- Optimizer

ZEROBOX_FLAG(double, weight_decay, 0.1, "AdamW's decay, applied to matrices only.",
             .topic = Topic::kOptimizer, .commands = kTraining, .placeholder = "X",
             .range = {.min = 0, .max = 1000});
ZEROBOX_FLAG(double, beta1, 0.9, "Decay of AdamW's mean of gradients.", .topic = Topic::kOptimizer,
             .commands = kTraining, .placeholder = "X", .range = kFractionBelow1);
ZEROBOX_FLAG(double, beta2, 0.95, "Decay of AdamW's mean of squared gradients.",
             .topic = Topic::kOptimizer, .commands = kTraining, .placeholder = "X",
             .range = kFractionBelow1);
ZEROBOX_FLAG(double, eps, 1e-8, "AdamW's guard against division by zero.",
             .topic = Topic::kOptimizer, .commands = kTraining, .placeholder = "X",
             .range = {.min = 1e-30, .max = 1});  // not 0 in fp32 either
ZEROBOX_FLAG(double, grad_clip, 1.0, "Gradients are scaled down to this norm; 0: never.",
             .topic = Topic::kOptimizer, .commands = kTraining, .placeholder = "X",
             .range = {.min = 0, .max = 1e9});

//---- Evaluation and sampling

ZEROBOX_FLAG(int64_t, eval_interval, 100,
             "Evaluate on held-out data after every so many steps and after the last; 0: never.",
             .topic = Topic::kEvaluationAndSampling, .commands = kTraining, .placeholder = "N",
             .range = {.min = 0, .max = 1e9});
ZEROBOX_FLAG(int64_t, eval_batches, 20, "Batches of one evaluation.",
             .topic = Topic::kEvaluationAndSampling, .commands = kTraining, .placeholder = "N",
             .range = {.min = 1, .max = 1e6});
ZEROBOX_FLAG(int64_t, sample_bytes, 300, "Bytes of text that the model writes at the end; 0: none.",
             .topic = Topic::kEvaluationAndSampling, .commands = kTrainCommand, .placeholder = "N",
             .range = {.min = 0, .max = 1e6});
ZEROBOX_FLAG(std::string, prompt, "",
             "Text to go on from; for a model with more than 256 tokens their numbers, with blanks "
             "between.",
             .topic = Topic::kEvaluationAndSampling, .commands = kSampleCommand,
             .placeholder = "TEXT", .default_text = "a line break; 50256, the end of a text");
ZEROBOX_FLAG(int64_t, bytes, 300, "Bytes to write.", .topic = Topic::kEvaluationAndSampling,
             .commands = kSampleCommand, .placeholder = "N", .range = {.min = 1, .max = 1e7});
ZEROBOX_FLAG(double, temperature, 0.8,
             "Below 1: likelier bytes more often; above 1: more surprise; 0: always the likeliest.",
             .topic = Topic::kEvaluationAndSampling, .commands = kSampleCommand, .placeholder = "X",
             .range = {.min = 0, .max = 100});
ZEROBOX_FLAG(int64_t, top_k, 0, "Choose among the K likeliest only; 0: among all.",
             .topic = Topic::kEvaluationAndSampling, .commands = kSampleCommand, .placeholder = "K",
             .range = {.min = 0, .max = 0x1p20});

namespace zerobox {

CommandMask CommandByName(std::string_view name) {
  if (name == "train") return kTrainCommand;
  if (name == "sample") return kSampleCommand;
  if (name == "report") return kReportCommand;
  if (name == "compare") return kCompareCommand;
  return kNoCommand;
}

std::string_view Title(Topic topic) {
  switch (topic) {
    case Topic::kDataAndOutput:
      return "Data and output";
    case Topic::kDevicesAndMemory:
      return "Devices and memory";
    case Topic::kZero:
      return "ZeRO";
    case Topic::kPrecisionAndMemory:
      return "Precision and memory";
    case Topic::kModel:
      return "Model";
    case Topic::kBatchAndSchedule:
      return "Batch and schedule";
    case Topic::kOptimizer:
      return "Optimizer";
    case Topic::kEvaluationAndSampling:
      return "Evaluation and sampling";
  }
  return "";
}

const std::vector<FlagInfo>& AllFlags() { return Registry(); }

const FlagInfo* FindFlag(std::string_view name) {
  for (const FlagInfo& flag : AllFlags()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted a size in bytes such as 512MiB, 8GiB or 1000000, found '", View(text), "'"));
  };
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
      {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
      {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12},
  };
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string number(text.substr(0, digits));
  std::string unit = absl::AsciiStrToLower(std::string(text.substr(digits)));
  absl::StripLeadingAsciiWhitespace(&unit);
  double factor = 0;
  for (const auto& [name, bytes] : kUnits) {
    if (unit == name) factor = bytes;
  }
  int64_t whole = 0;
  if (factor == 1 && absl::SimpleAtoi(number, &whole)) return Bytes{whole};
  double value = 0;
  if (factor <= 1 || number.empty() || !absl::SimpleAtod(number, &value)) return refuse();
  value = std::floor(value * factor);
  if (!(value < 0x1p63)) return refuse();
  return Bytes{static_cast<int64_t>(value)};
}

bool AbslParseFlag(absl::string_view text, Bytes* bytes, std::string* error) {
  const absl::StatusOr<Bytes> parsed = ParseBytes(std::string_view(text.data(), text.size()));
  if (!parsed.ok()) {
    *error = std::string(parsed.status().message());
    return false;
  }
  *bytes = *parsed;
  return true;
}

std::string AbslUnparseFlag(Bytes bytes) {
  constexpr std::pair<int, const char*> kUnits[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& [shift, name] : kUnits) {
    const int64_t unit = int64_t{1} << shift;
    if (bytes.value >= unit && bytes.value % unit == 0) {
      return absl::StrCat(bytes.value / unit, name);
    }
  }
  return absl::StrCat(bytes.value);
}

std::vector<std::string> ParseList(std::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(View(text), ',');
  for (std::string& part : parts) absl::StripAsciiWhitespace(&part);
  return parts;
}

namespace {

std::string NumberText(double number) {
  if (number >= 1 && number <= 0x1p53 && number == std::floor(number)) {
    return absl::StrCat(static_cast<int64_t>(number));
  }
  return absl::StrCat(number);
}

}  // namespace

std::string Wanted(const FlagInfo& flag) {
  const absl::CommandLineFlag* const registered = absl::FindCommandLineFlag(View(flag.name));
  if (registered->IsOfType<bool>()) return "true or false";
  if (registered->IsOfType<std::string>()) {
    const bool choice = flag.placeholder.find('|') != std::string_view::npos;
    return choice ? absl::StrReplaceAll(std::string(flag.placeholder), {{"|", ", "}}) : "text";
  }
  std::string kind = registered->IsOfType<double>() ? "a number" : "a whole number";
  if (registered->IsOfType<Bytes>()) kind = "a size in bytes such as 512MiB or 8GiB,";
  const NumberRange& range = flag.range;
  const std::string max = registered->IsOfType<Bytes>()
                              ? AbslUnparseFlag({static_cast<int64_t>(range.max)})
                              : NumberText(range.max);
  if (range.max == kInfinity) return absl::StrCat(kind, " from 0 to 2^64 - 1");
  return absl::StrCat(kind, range.without_min ? " above " : " from ", NumberText(range.min),
                      range.without_max   ? " to below "
                      : range.without_min ? " up to "
                                          : " to ",
                      max);
}

int EditDistance(std::string_view a, std::string_view b) {
  // Optimal string alignment, a row at a time.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

std::vector<std::string> NearestFlags(std::string_view name, unsigned commands) {
  const std::string wanted = absl::StrReplaceAll(absl::AsciiStrToLower(View(name)), {{"-", "_"}});
  std::vector<std::pair<int, std::string>> found;
  for (const FlagInfo& flag : AllFlags()) {
    if ((flag.commands & commands) == 0) continue;
    int distance = EditDistance(wanted, flag.name);
    // A beginning or a part of a name ("layers", "memory") is a near miss too.
    if (wanted.size() >= 3 && flag.name.find(wanted) != std::string_view::npos) {
      distance = std::min(distance, 2);
    }
    if (distance <= std::max<int>(1, static_cast<int>(wanted.size()) / 3)) {
      found.emplace_back(distance, flag.name);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min<size_t>(found.size(), 3); ++i) names.push_back(found[i].second);
  return names;
}

}  // namespace zerobox
