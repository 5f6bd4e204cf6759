// SPDX-License-Identifier: Apache-2.0
#include "ops/host/openblas.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace zerobox {
namespace {

constexpr const char* kHint = "Install the Debian package libopenblas0-pthread.";

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool IsOpenBlasVariable(std::string_view name) {
  return name.starts_with("OMP_") || name.starts_with("OPENBLAS_") || name.starts_with("GOTO_");
}

void ClearEnvironment() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (IsOpenBlasVariable(name)) names.emplace_back(name);
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

template <typename Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

std::span<const char* const> OpenBlasFiles() {
  static constexpr std::array kFiles = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu/openblas-pthread/libopenblas.so.0",
#endif
    "libopenblas.so.0",
  };
  return kFiles;
}

std::string_view OpenBlasCore() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return "";
}

absl::Status CheckOpenBlas(std::string_view file, int parallel, std::string_view core,
                           std::string_view wanted_core) {
  if (parallel != 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        View(file), " is the ", parallel == 0 ? "serial" : "OpenMP", " build of OpenBLAS, which ",
        parallel == 0 ? "gives wrong results when several threads call it"
                      : "starts threads of its own",
        "; the pthread build is needed. ", kHint));
  }
  // The answer is in capitals for some kernels.
  if (!wanted_core.empty() && (core.size() != wanted_core.size() ||
                               strncasecmp(core.data(), wanted_core.data(), core.size()) != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat(View(file), " runs its kernels for ", View(core), ", but those for ",
                     View(wanted_core), " are needed on this CPU. ", kHint));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenBlas> OpenOpenBlas(std::span<const char* const> files, std::string_view core) {
  ClearEnvironment();
  // The library reads this once, while it is opened.
  if (!core.empty()) setenv("OPENBLAS_CORETYPE", std::string(core).c_str(), 1);
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // else it starts a thread for every core
  void* library = nullptr;
  OpenBlas blas;
  std::vector<std::string> errors;
  for (const char* file : files) {
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      blas.file = file;
      break;
    }
    const char* error = dlerror();
    errors.emplace_back(error == nullptr ? file : error);
  }
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_NUM_THREADS");
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("OpenBLAS could not be opened: ", absl::StrJoin(errors, "; "), ". ", kHint));
  }
  blas.sgemm = Find<Sgemm>(library, "cblas_sgemm");
  auto* set_threads = Find<void(int)>(library, "openblas_set_num_threads");
  auto* get_parallel = Find<int()>(library, "openblas_get_parallel");
  auto* get_core = Find<char*()>(library, "openblas_get_corename");
  if (blas.sgemm == nullptr || set_threads == nullptr || get_parallel == nullptr ||
      get_core == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(blas.file, " lacks functions of OpenBLAS. ", kHint));
  }
  blas.core = get_core();
  const absl::Status status = CheckOpenBlas(blas.file, get_parallel(), blas.core, core);
  if (!status.ok()) return status;
  set_threads(1);
  return blas;
}

}  // namespace zerobox
