// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_TESTS_PTX_KERNELS_H_
#define ZEROBOX_TESTS_PTX_KERNELS_H_

namespace zerobox::ptx {

// Runs the tests in this program, of kernels, with the PTX that nvcc made for an architecture
// (sm_90); all of them unless told otherwise, and then each kernel must have run. What main
// returns.
int RunKernelTests(int argc, char** argv, const char* architecture);

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_KERNELS_H_
