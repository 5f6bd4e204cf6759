// SPDX-License-Identifier: Apache-2.0
//
// The tests of the emulator's kernels, with what nvcc makes of them for sm_90.
#include "tests/ptx/kernels.h"

int main(int argc, char** argv) {
  return zerobox::ptx::RunKernelTests(argc, argv,
                                      {.architecture = "sm_90",
                                       .filter = zerobox::ptx::kInEachOrder,
                                       .least_instances = 200,
                                       .every_kernel = true});
}
