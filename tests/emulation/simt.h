// SPDX-License-Identifier: Apache-2.0
//
// The emulator of a GPU's execution model (SIMT: single instruction, multiple threads), which runs
// the kernels of ops/cuda, compiled by an ordinary C++ compiler, without a GPU. This header is what
// tests see of it; device code sees tests/emulation/device_code.h.
//
// A grid runs on the OS thread that launches it, block after block; a CUDA thread is a fiber. A
// fiber runs until it ends or waits, at a barrier or for the other lanes of a warp collective;
// which one runs then, and in what order the blocks run, is the test's choice: what is correct must
// be so in every order, and each order finds faults that the others hide. The emulator is an
// adversary where CUDA promises nothing:
//   - shared memory is NaN (all bits set) when a block begins, and as long as it was declared,
//     so that the address sanitizer sees an access behind it;
//   - cp.async copies at the last moment that its wait allows; until then its target is NaN;
//   - a barrier or a warp collective that not all its threads reach is reported, with their places
//     in the source, and ends the block.
// It does not see what depends on the hardware: weak memory order, bank conflicts, registers, or
// the rounding of approximate instructions and tensor cores.
#ifndef ZEROBOX_TESTS_EMULATION_SIMT_H_
#define ZEROBOX_TESTS_EMULATION_SIMT_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace zerobox::simt {

// In which order threads that could run do, and blocks. Reverse is last in, first out: one warp
// runs as far ahead of the others as barriers let it.
enum class Order { kForward, kReverse, kRandom };
struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;  // of kRandom
};
Options& options();  // set before a launch, not during one

// What the emulator found wrong, since the last call. From any OS thread.
std::vector<std::string> TakeReports();
void Report(std::string what);

// One kernel launch: `thread` runs the kernel as the current CUDA thread, with the arguments that
// were copied at the launch.
struct KernelLaunch {
  const void* kernel = nullptr;  // the function's address, for its name
  dim3 grid, block;
  size_t shared_bytes = 0;  // of dynamic shared memory
  std::function<void()> thread;
  std::vector<std::string> arguments;  // the bytes of each
};

template <typename... Ts>
std::vector<std::string> BytesOf(const std::tuple<Ts...>& values) {
  static_assert((std::is_trivially_copyable_v<Ts> && ...), "CUDA copies a kernel's arguments");
  const auto bytes_of = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  return std::apply([&](const Ts&... each) { return std::vector{bytes_of(each)...}; }, values);
}

// Runs it on this OS thread, to the end: by what SetRunner was given, which may run the same kernel
// from something else than this program's code (tests/ptx); unless that returns false, or is
// nothing, by the emulator.
void Run(const KernelLaunch& launch);
using Runner = std::function<bool(const KernelLaunch&)>;
void SetRunner(Runner runner);

// What gpu::Launch calls. Checks the launch as CUDA does, and then runs it at once; or hands it to
// what SetLauncher was given, a runtime with streams.
cudaError_t Launch(cudaStream_t stream, KernelLaunch launch);
using Launcher = std::function<cudaError_t(cudaStream_t, KernelLaunch)>;
void SetLauncher(Launcher launcher);

// Lets launches of this kernel have more dynamic shared memory than 48 KiB.
cudaError_t AllowDynamicShared(const void* kernel, size_t bytes);

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_SIMT_H_
