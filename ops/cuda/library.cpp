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
  std::vector<std::string> places = {name};
  for (const std::string& folder : folders) {
    const std::string expanded = Expand(folder);
    if (!expanded.empty()) places.push_back(absl::StrCat(expanded, "/", name));
  }
  std::string last_error;
  for (const std::string& place : places) {
    handle_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) break;
    last_error = dlerror();  // NOLINT(concurrency-mt-unsafe)
  }
  if (handle_ == nullptr) {
    problem_ = absl::StrCat(name, " is neither where the loader looks (LD_LIBRARY_PATH) nor in ",
                            absl::StrJoin(folders, ", "), ": ", last_error);
  } else if (needed != nullptr && FindAddress(needed) == nullptr) {
    problem_ = absl::StrCat("the ", name, " that is here is too old: it has no ", needed);
    handle_ = nullptr;
  }
}

void* Library::FindAddress(const char* function) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, function);
}

}  // namespace zerobox::cuda
