// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_TESTS_PTX_KERNELS_H_
#define ZEROBOX_TESTS_PTX_KERNELS_H_

#include <string>

#include "absl/status/statusor.h"

namespace zerobox::ptx {

// What nvcc made of a source file (ops/cuda/gelu.cu) for an architecture (sm_90), when the tests
// were built.
absl::StatusOr<std::string> ReadPtx(const std::string& source, const std::string& architecture);

// Runs the tests in this program, of kernels, with the PTX that nvcc made for an architecture
// (sm_90); all of them unless told otherwise, and then each kernel must have run. What main
// returns.
int RunKernelTests(int argc, char** argv, const char* architecture);

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_KERNELS_H_
