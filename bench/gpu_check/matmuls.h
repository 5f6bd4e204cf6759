// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_BENCH_GPU_CHECK_MATMULS_H_
#define ZEROBOX_BENCH_GPU_CHECK_MATMULS_H_

#include <cstdint>

#include "bench/gpu_check/kernel_bench.h"

namespace zerobox::gpu_check {

// A large product, which is the bound of others where the nominal peak is not known.
void MeasureSquare(KernelBench& bench, int64_t size);
// The products of a model's layers and head, forward, to the input and to the weight; and the sums
// over rows that are the biases' gradients.
void MeasureMatmuls(KernelBench& bench, const KernelSizes& sizes, Report& report);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_MATMULS_H_
