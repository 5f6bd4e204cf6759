// SPDX-License-Identifier: Apache-2.0
//
// The check of a GPU: is what it computes right, then how fast is it, against what bounds it. In
// parts, the most important first; all of them in minutes on one GPU of the Hopper generation.
//
// The parts are functions of sizes, so that tests run all of their code in the emulator.
#ifndef ZEROBOX_BENCH_GPU_CHECK_CHECK_H_
#define ZEROBOX_BENCH_GPU_CHECK_CHECK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/report.h"
#include "tests/cuda_runs.h"
#include "tests/ops_network.h"
#include "trainer/settings.h"

namespace zerobox::gpu_check {

// A model's kernels, in bf16.
struct KernelSizes {
  std::string name;
  SequenceShape shape;
  int64_t heads;
  int64_t vocabulary;
  int64_t logit_rows;    // that the head takes at a time
  double matmul_target;  // share of the peak
};

struct TrainingSizes {
  std::string name;
  ModelConfig model;
  std::vector<int64_t> micro_batches;  // the first that fits is taken
  int64_t warm_up, steps;              // the median of `steps` counts
  double target;                       // MFU
};

struct Sizes {
  std::vector<NetworkShape> networks;
  std::vector<CudaRunKind> runs;
  std::vector<CudaRunKind> several_runs;  // of several ranks
  std::vector<int> virtual_ranks;         // on one GPU

  int64_t memory_bytes;  // of the GPU, for the buffers of kernels
  int64_t copy_bytes;
  int64_t square;  // of the matrix product that stands for the peak: rows, columns, inner
  int64_t adamw_elements;
  int launches;  // of which the median counts
  std::vector<KernelSizes> kernels;

  std::vector<TrainingSizes> training;
};
// Those of GPT-2 with 124 and 1558 million parameters, and small ones of everything.
Sizes FullSizes();
Sizes TinySizes();

struct Gpu {
  std::string name;
  int count = 1;  // of such
  int64_t memory_bytes = 0;
  int64_t cache_bytes = 0;   // L2
  double nominal_flops = 0;  // bf16, dense; 0: not known here
};
// By the name that the driver gives; 0 for others than A100, H100, H200 and their variants.
double NominalFlops(std::string_view name);

// What to run beside zerobox, for comparison.
struct PyTorch {
  std::string python = "python3";
  std::string script = "bench/gpu_check/pytorch.py";
  int64_t limit_seconds = 240;
};

// Part 1, to be called before the program has threads. Unavailable where there is no GPU.
absl::StatusOr<Gpu> DescribeMachine(Report& report);
// Part 2: every op against the host's, and twice with equal bits.
void CheckOps(const Sizes& sizes, Report& report);
// Part 3: training at every stage, with checkpoints and offload, against the host device.
void CheckTraining(const Sizes& sizes, Report& report);
void CheckRun(const CudaRunKind& kind, Report& report);  // one of them
// Part 4: each kernel's rate. Of memory-bound ones in bytes that have to move, against a copy on
// the device, measured here; of attention and matrix products in operations, against the nominal
// peak, or where that is not known a large product, measured here.
void MeasureKernels(const Gpu& gpu, const Sizes& sizes, Report& report);

// Part 5: tokens a second of whole steps.
struct Trained {
  const TrainingSizes* sizes;
  int64_t micro_batch;
  double tokens_per_second;
};
std::vector<Trained> MeasureTraining(const Gpu& gpu, const Sizes& sizes, Report& report);
// Part 6: the same by PyTorch, where it is there; else says why not.
void ComparePyTorch(const PyTorch& pytorch, const std::vector<Trained>& trained, Report& report);

// Part 7: several ranks against as many host devices, at all stages: on several GPUs by NCCL where
// there are some, and on one GPU. Then how training gets faster from 1 to all GPUs.
void CheckSeveral(const Gpu& gpu, const Sizes& sizes, Report& report);

// Parts as asked for; 1 always. The report then has all that was found.
struct Options {
  Sizes sizes = FullSizes();
  std::vector<int> parts = {1, 2, 3, 4, 5, 6, 7};
  PyTorch pytorch;
};
void RunCheck(const Options& options, Report& report);

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_CHECK_H_
