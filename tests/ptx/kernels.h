// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_TESTS_PTX_KERNELS_H_
#define ZEROBOX_TESTS_PTX_KERNELS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace zerobox::ptx {

// Tests of the emulator's kernels, in the orders of threads that the interpreter has.
constexpr char kInEachOrder[] = "*Forward*:*Reverse*";

// What nvcc made of a source file (ops/cuda/gelu.cu) for an architecture (sm_90), when the tests
// were built.
absl::StatusOr<std::string> ReadPtx(const std::string& source, const std::string& architecture);

// Runs the tests in this program with the kernels as PTX: those of the filter, unless the command
// line has one, and then so many instances of kernels must have run, and, if `every_kernel`, one at
// least of each. What main returns.
struct KernelTests {
  const char* architecture;  // sm_90
  const char* filter;
  size_t least_instances;
  bool every_kernel;
};
int RunKernelTests(int argc, char** argv, const KernelTests& tests);

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_KERNELS_H_
