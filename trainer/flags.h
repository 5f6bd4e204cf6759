// SPDX-License-Identifier: Apache-2.0
//
// The flags of the program. Each is defined once, in flags.cpp: type, default, help, and what
// Abseil's registry has no place for: its topic, its commands and the numbers it accepts.
#ifndef ZEROBOX_TRAINER_FLAGS_H_
#define ZEROBOX_TRAINER_FLAGS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace zerobox {

// A number of bytes: plain, or with a unit (512MiB, 1.5GiB, 25 MB; K, M, G mean KiB, MiB, GiB).
struct Bytes {
  int64_t value = 0;
};
absl::StatusOr<Bytes> ParseBytes(std::string_view text);
bool AbslParseFlag(absl::string_view text, Bytes* bytes, std::string* error);
std::string AbslUnparseFlag(Bytes bytes);

// What stands between the commas, without blanks around it. There is always a first one, maybe "".
std::vector<std::string> ParseList(std::string_view text);

// Bit mask of the commands that take a flag.
enum CommandMask : unsigned {
  kNoCommand = 0,
  kTrainCommand = 1,
  kSampleCommand = 2,
  kReportCommand = 4,
  kCompareCommand = 8
};
// 0 for a name that is no command with flags.
CommandMask CommandByName(std::string_view name);

enum class Topic : uint8_t {
  kDataAndOutput,
  kDevicesAndMemory,
  kZero,
  kPrecisionAndMemory,
  kModel,
  kBatchAndSchedule,
  kOptimizer,
  kEvaluationAndSampling,
};
std::string_view Title(Topic topic);

// Numbers that a flag accepts. NaN is in no range.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool without_min = false;
  bool without_max = false;

  bool Contains(double number) const {
    return (without_min ? number > min : number >= min) &&
           (without_max ? number < max : number <= max);
  }
};

// What a flag is in help.
struct FlagMeaning {
  std::string_view placeholder;     // of the value
  std::string_view default_text{};  // where the default is derived; else the registry's value
  std::string_view help{};          // "": the registry's
};

struct FlagInfo {
  std::string_view name;
  Topic topic;
  unsigned commands;             // CommandMask
  std::string_view placeholder;  // of the value, in help
  NumberRange range{};
  std::string_view default_text{};       // where the default is derived; else the registry's value
  unsigned other_commands = kNoCommand;  // in these of its commands it means
  FlagMeaning other{};                   // something else
  FlagMeaning MeaningIn(unsigned command) const {
    return (other_commands & command) != 0 ? other : FlagMeaning{placeholder, default_text};
  }
};
// In the order of definition, which is that of help.
const std::vector<FlagInfo>& AllFlags();
// nullptr for an unknown name.
const FlagInfo* FindFlag(std::string_view name);

// "a whole number from 1 to 64", "a number above 0 up to 1000", "a size in bytes such as
// 512MiB or 8GiB", "true or false", "text": what the flag accepts, for messages and help.
std::string Wanted(const FlagInfo& flag);

// The names of flags of `commands` nearest to a mistyped one, best first; at most three.
std::vector<std::string> NearestFlags(std::string_view name, unsigned commands);
// How many insertions, deletions, replacements and swaps of neighbours lead from a to b.
int EditDistance(std::string_view a, std::string_view b);

}  // namespace zerobox

ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, val_data);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(bool, dry_run);
ABSL_DECLARE_FLAG(std::string, device);
ABSL_DECLARE_FLAG(int64_t, devices);
ABSL_DECLARE_FLAG(bool, virtual);
ABSL_DECLARE_FLAG(int64_t, collective_timeout);
ABSL_DECLARE_FLAG(int64_t, threads);
ABSL_DECLARE_FLAG(zerobox::Bytes, device_memory);
ABSL_DECLARE_FLAG(int64_t, zero_stage);
ABSL_DECLARE_FLAG(std::string, zero_stages);
ABSL_DECLARE_FLAG(zerobox::Bytes, bucket_bytes);
ABSL_DECLARE_FLAG(std::string, dtype);
ABSL_DECLARE_FLAG(bool, tf32);
ABSL_DECLARE_FLAG(std::string, grad_accum_dtype);
ABSL_DECLARE_FLAG(std::string, activation_checkpointing);
ABSL_DECLARE_FLAG(std::string, activation_checkpointings);
ABSL_DECLARE_FLAG(std::string, offload);
ABSL_DECLARE_FLAG(std::string, offloads);
ABSL_DECLARE_FLAG(zerobox::Bytes, logits_bytes);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(int64_t, n_layer);
ABSL_DECLARE_FLAG(int64_t, n_head);
ABSL_DECLARE_FLAG(int64_t, n_embd);
ABSL_DECLARE_FLAG(int64_t, seq_len);
ABSL_DECLARE_FLAG(int64_t, vocab_size);
ABSL_DECLARE_FLAG(double, dropout);
ABSL_DECLARE_FLAG(int64_t, micro_batch);
ABSL_DECLARE_FLAG(int64_t, grad_accum);
ABSL_DECLARE_FLAG(int64_t, steps);
ABSL_DECLARE_FLAG(double, lr);
ABSL_DECLARE_FLAG(double, min_lr);
ABSL_DECLARE_FLAG(int64_t, warmup);
ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(double, weight_decay);
ABSL_DECLARE_FLAG(double, beta1);
ABSL_DECLARE_FLAG(double, beta2);
ABSL_DECLARE_FLAG(double, eps);
ABSL_DECLARE_FLAG(double, grad_clip);
ABSL_DECLARE_FLAG(int64_t, eval_interval);
ABSL_DECLARE_FLAG(int64_t, eval_batches);
ABSL_DECLARE_FLAG(int64_t, sample_bytes);
ABSL_DECLARE_FLAG(std::string, run);
ABSL_DECLARE_FLAG(std::string, runs);
ABSL_DECLARE_FLAG(std::string, prompt);
ABSL_DECLARE_FLAG(int64_t, bytes);
ABSL_DECLARE_FLAG(double, temperature);
ABSL_DECLARE_FLAG(int64_t, top_k);

#endif  // ZEROBOX_TRAINER_FLAGS_H_
