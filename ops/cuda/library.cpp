// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace zerobox::cuda {
namespace {

// "" where a variable is not set.
std::string Expand(const std::string& folder) {
  if (folder.empty() || folder[0] != '$') return folder;
  const size_t slash = folder.find('/');
  const std::string variable = folder.substr(1, slash - 1);
  const char* const value = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value + folder.substr(slash);
}

}  // namespace

Library::Library(const std::string& name, const std::vector<std::string>& folders,
                 const char* needed) {
  std::vector<std::string> places;
  for (const std::string& folder : folders) {
    if (folder == kLoadersPath) {
      places.push_back(name);
    } else if (const std::string expanded = Expand(folder); !expanded.empty()) {
      places.push_back(absl::StrCat(expanded, "/", name));
    }
  }
  std::string last_error;
  for (const std::string& place : places) {
    handle_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      last_error = dlerror();  // NOLINT(concurrency-mt-unsafe)
      continue;
    }
    if (needed == nullptr || FindAddress(needed) != nullptr) return;
    last_error = absl::StrCat(place, " is too old: it has no ", needed);
    dlclose(handle_);
    handle_ = nullptr;
  }
  problem_ = absl::StrCat(name, " was looked for in ", absl::StrJoin(folders, ", "),
                          ", and not found: ", last_error);
}

void* Library::FindAddress(const char* function) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, function);
}

}  // namespace zerobox::cuda
