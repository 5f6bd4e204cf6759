// SPDX-License-Identifier: Apache-2.0
//
// The kernels that nvcc compiled, in place of the emulator's: what is launched through gpu::Launch
// in a test runs as PTX, and the tests of the emulator are tests of that.
#ifndef ZEROBOX_TESTS_PTX_LIBRARY_H_
#define ZEROBOX_TESTS_PTX_LIBRARY_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/emulation/access_checker.h"
#include "tests/emulation/simt.h"
#include "tests/ptx/memory.h"
#include "tests/ptx/program.h"

namespace zerobox::ptx {

class Library : public simt::AccessChecker {
 public:
  // Adds all kernels of this PTX. `file` is the source's name in what Missed... returns.
  absl::Status Add(const std::string& text, const std::string& file);
  // Runs launches from now on, and learns from tests which memory there is.
  void Install();

  // Runs the kernel of the launch's name; what goes wrong is reported (simt::Report). False for the
  // emulator's stand-ins for CUB, of which there is no PTX.
  bool Run(const simt::KernelLaunch& launch);

  // The instances of kernels that did not run; and the kernels of which no instance did, by file
  // and name.
  std::vector<std::string> MissedInstances() const;
  std::vector<std::string> MissedKernels() const;
  size_t instances() const { return kernels_.size(); }

  // Memory that kernels may access.
  void Watch(const void* memory, size_t bytes, simt::MemoryKind kind) override;
  void Forget(const void* memory) override;
  void Access(const simt::Instant&, const void*, size_t, simt::AccessKind, const void*) override {}
  void HostAccess(const void*, size_t, simt::AccessKind) override {}
  void SetOperation(uint32_t) override {}
  void SetStreamOrder(bool (*)(uint32_t, uint32_t), std::string (*)(uint32_t)) override {}

 private:
  struct Kernel {
    Module* module;
    std::string file, mangled;
    bool ran = false;
  };

  absl::Status RunKernel(const simt::KernelLaunch& launch);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Module>> modules_;
  std::map<std::string, Kernel> kernels_;  // by demangled name
  GlobalMemory memory_;
};

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_LIBRARY_H_
