// SPDX-License-Identifier: Apache-2.0
//
// Training on a CUDA device whose kernels are what nvcc makes of them: some of the runs that
// tests/emulation/cuda_train_test.cpp has.
#include "tests/ptx/kernels.h"

int main(int argc, char** argv) {
  return zerobox::ptx::RunKernelTests(
      argc, argv,
      {.architecture = "sm_90",
       .filter = "*GivesTheHosts*/fp32_stage2:*GivesTheHosts*/fp32_odd_width:"
                 "*GivesTheHosts*/bf16_selective:*GivesTheHosts*/bf16_full_all_offloaded",
       .least_instances = 60,
       .every_kernel = false});
}
