// SPDX-License-Identifier: Apache-2.0
#include "trainer/resolver.h"

#include <string>

namespace zerobox {

void Resolver::Derive(std::string_view name, std::string_view value) {
  for (ResolvedFlag& flag : flags_) {
    if (flag.name == name) flag.value = std::string(value), flag.source = "derived";
  }
}

void Resolver::Rewrite(std::string_view name, std::string_view value) {
  for (ResolvedFlag& flag : flags_) {
    if (flag.name == name) flag.value = std::string(value);
  }
}

std::vector<ResolvedFlag> Resolver::TakeFlags() {
  std::vector<ResolvedFlag> ordered;
  for (const FlagInfo& info : AllFlags()) {
    for (ResolvedFlag& flag : flags_) {
      if (flag.name == info.name) ordered.push_back(std::move(flag));
    }
  }
  return ordered;
}

void Resolver::Note(std::string_view name, FlagValue value, std::string_view source) {
  flags_.push_back(
      {std::string(name), FindFlag(name)->topic, std::move(value), std::string(source)});
}

}  // namespace zerobox
