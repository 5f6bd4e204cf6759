// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/library.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/emulation/symbols.h"
#include "tests/ptx/machine.h"

namespace zerobox::ptx {
namespace {

// Those of the algorithms behind ops/cuda/device_algorithms.h are not ours to test.
bool IsOurs(const std::string& kernel) {
  return kernel.find(" cub::") == kernel.npos && kernel.find(" thrust::") == kernel.npos;
}

// Without return type, namespaces, template arguments and parameters.
std::string ShortName(const std::string& kernel) {
  const std::string unnamed = "(anonymous namespace)::";
  const size_t end = kernel.find_first_of(
      "<(", std::min(kernel.find(unnamed), kernel.size() - unnamed.size()) + unnamed.size());
  const std::string name = kernel.substr(0, end);
  return name.substr(name.rfind(':') + 1);
}

Size3 ToSize3(dim3 size) { return {size.x, size.y, size.z}; }

}  // namespace

absl::Status Library::Add(const std::string& text, const std::string& file) {
  auto module = Module::Parse(text);
  if (!module.ok()) return module.status();
  for (const auto& [variable, bytes] : (*module)->variables())
    memory_.Add(bytes.data(), bytes.size());
  for (const FunctionText& function : (*module)->text().functions) {
    const std::string kernel = simt::Demangle(function.name);
    if (!function.is_entry || !IsOurs(kernel)) continue;
    const auto [other, is_new] =
        kernels_.try_emplace(kernel, Kernel{module->get(), file, function.name});
    if (!is_new)
      return absl::AlreadyExistsError(
          absl::StrCat(kernel, " is in ", file, " and in ", other->second.file,
                       ": which one a launch means would not be known"));
  }
  modules_.push_back(std::move(*module));
  return absl::OkStatus();
}

void Library::Install() {
  simt::SetRunner([this](const simt::KernelLaunch& launch) { return Run(launch); });
  simt::SetAccessChecker(this);
}

bool Library::Run(const simt::KernelLaunch& launch) {
  if (simt::FullName(launch.kernel).find("::SortPairsKernel(") != std::string::npos) return false;
  std::scoped_lock lock(mutex_);
  if (absl::Status status = RunKernel(launch); !status.ok()) {
    simt::Report(absl::StrCat(simt::FunctionName(launch.kernel), ": ", status.message()));
  }
  return true;
}

absl::Status Library::RunKernel(const simt::KernelLaunch& launch) {
  const std::string name = simt::FullName(launch.kernel);
  const auto found = kernels_.find(name);
  if (found == kernels_.end())
    return absl::NotFoundError(absl::StrCat("no PTX has the kernel ", name));
  Kernel& kernel = found->second;
  kernel.ran = true;
  const auto function = kernel.module->Find(kernel.mangled);
  if (!function.ok()) return function.status();
  return ptx::Run(**function,
                  {.grid = ToSize3(launch.grid),
                   .block = ToSize3(launch.block),
                   .dynamic_shared_bytes = launch.shared_bytes,
                   .arguments = launch.arguments,
                   .reverse = simt::options().order == simt::Order::kReverse},
                  memory_);
}

std::vector<std::string> Library::MissedKernels() const {
  std::set<std::string> ran, all;
  for (const auto& [name, kernel] : kernels_) {
    const std::string short_name = absl::StrCat(kernel.file, ": ", ShortName(name));
    all.insert(short_name);
    if (kernel.ran) ran.insert(short_name);
  }
  std::vector<std::string> missed;
  std::set_difference(all.begin(), all.end(), ran.begin(), ran.end(), std::back_inserter(missed));
  return missed;
}

std::vector<std::string> Library::MissedInstances() const {
  std::vector<std::string> missed;
  for (const auto& [name, kernel] : kernels_) {
    if (!kernel.ran) missed.push_back(absl::StrCat(kernel.file, ": ", name));
  }
  return missed;
}

void Library::Watch(const void* memory, size_t bytes, simt::MemoryKind) {
  std::scoped_lock lock(mutex_);
  memory_.Add(memory, bytes);
}

void Library::Forget(const void* memory) {
  std::scoped_lock lock(mutex_);
  memory_.Remove(memory);
}

}  // namespace zerobox::ptx
