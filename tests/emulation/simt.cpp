// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/simt.h"

#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/emulation/access_checker.h"
#include "tests/emulation/multiprocessor.h"
#include "tests/emulation/symbols.h"

namespace zerobox::simt {
namespace {

constexpr size_t kMostReports = 100;
constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kMostBlocksInYAndZ = 65535;

struct Reports {
  std::mutex mutex;
  std::vector<std::string> list;
};
Reports& reports() {
  static Reports reports;
  return reports;
}

struct Allowances {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;
};
Allowances& allowances() {
  static Allowances allowances;
  return allowances;
}

Launcher& launcher() {
  static Launcher launcher;
  return launcher;
}

Runner& runner() {
  static Runner runner;
  return runner;
}

AccessChecker* checker = nullptr;

// Empty if CUDA would take the launch.
std::string Complaint(const KernelLaunch& launch) {
  const dim3 grid = launch.grid, block = launch.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu ||
      grid.y > kMostBlocksInYAndZ || grid.z > kMostBlocksInYAndZ) {
    return absl::StrCat("a grid of (", grid.x, ",", grid.y, ",", grid.z, ") blocks");
  }
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMostThreads || block.z > 64) {
    return absl::StrCat("a block of (", block.x, ",", block.y, ",", block.z, ") threads");
  }
  Allowances& all = allowances();
  std::scoped_lock lock(all.mutex);
  const auto found = all.bytes.find(launch.kernel);
  const size_t allowed = found == all.bytes.end() ? kSharedBytes : found->second;
  if (launch.shared_bytes > allowed) {
    return absl::StrCat(launch.shared_bytes, " bytes of dynamic shared memory, where ", allowed,
                        " are allowed");
  }
  return "";
}

}  // namespace

Options& options() {
  static Options options;
  return options;
}

void Report(std::string what) {
  Reports& all = reports();
  std::scoped_lock lock(all.mutex);
  if (all.list.size() < kMostReports) all.list.push_back(std::move(what));
}

std::vector<std::string> TakeReports() {
  Reports& all = reports();
  std::scoped_lock lock(all.mutex);
  return std::exchange(all.list, {});
}

void Run(const KernelLaunch& launch) {
  if (runner() && runner()(launch)) return;
  Multiprocessor::OfThisThread().Run(launch);
}

void SetRunner(Runner new_runner) { runner() = std::move(new_runner); }

cudaError_t Launch(cudaStream_t stream, KernelLaunch launch) {
  if (std::string complaint = Complaint(launch); !complaint.empty()) {
    Report(absl::StrCat("launch of ", FunctionName(launch.kernel), " with ", complaint));
    return cudaErrorInvalidConfiguration;
  }
  if (launcher()) return launcher()(stream, std::move(launch));
  Run(launch);
  return cudaSuccess;
}

void SetLauncher(Launcher new_launcher) { launcher() = std::move(new_launcher); }

cudaError_t AllowDynamicShared(const void* kernel, size_t bytes) {
  if (bytes > kMostSharedBytes) {
    Report(absl::StrCat(
        bytes, " bytes of shared memory are more than each architecture has: ", kMostSharedBytes));
    return cudaErrorInvalidValue;
  }
  Allowances& all = allowances();
  std::scoped_lock lock(all.mutex);
  all.bytes[kernel] = bytes;
  return cudaSuccess;
}

AccessChecker* access_checker() { return checker; }
void SetAccessChecker(AccessChecker* new_checker) { checker = new_checker; }

}  // namespace zerobox::simt
