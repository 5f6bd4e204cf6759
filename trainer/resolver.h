// SPDX-License-Identifier: Apache-2.0
//
// What the parts of resolve.h's functions share.
#ifndef ZEROBOX_TRAINER_RESOLVER_H_
#define ZEROBOX_TRAINER_RESOLVER_H_

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "trainer/command_line.h"
#include "trainer/flags.h"
#include "trainer/resolve.h"

namespace zerobox {

// The value of each flag, with its source, as the checks and the run folder want them.
class Resolver {
 public:
  explicit Resolver(const CommandLine& line) : line_(line) {}

  // The flag's value where it was given, else `otherwise`, whose source is `source`.
  template <typename T>
  T Take(const absl::Flag<T>& flag, std::string_view name, std::string_view source = "default",
         std::optional<T> otherwise = std::nullopt) {
    T value = absl::GetFlag(flag);
    if (const auto given = line_.sources.find(name); given != line_.sources.end()) {
      source = given->second;
    } else if (otherwise) {
      value = *otherwise;
    }
    Note(name, ToValue(value), source);
    return value;
  }

  // The value that a flag comes to, where it was left to the program (auto).
  void Derive(std::string_view name, std::string_view value);
  // The same value, as it is written best.
  void Rewrite(std::string_view name, std::string_view value);
  bool Given(std::string_view name) const { return line_.Given(name); }

  // In the order of definition, whatever the order of Take.
  std::vector<ResolvedFlag> TakeFlags();

 private:
  static FlagValue ToValue(Bytes bytes) { return bytes.value; }
  template <typename T>
  static FlagValue ToValue(const T& value) {
    return FlagValue(std::in_place_type<T>, value);
  }
  void Note(std::string_view name, FlagValue value, std::string_view source);

  const CommandLine& line_;
  std::vector<ResolvedFlag> flags_;
};

#define ZEROBOX_TAKE(name, ...) Take(FLAGS_##name, #name __VA_OPT__(, ) __VA_ARGS__)

// --device, --devices, --virtual, --threads, --device_memory, --collective_timeout.
absl::Status ResolveDevices(Resolver& resolver, const Machine& machine, ResolvedTrain& resolved);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_RESOLVER_H_
