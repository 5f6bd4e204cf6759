// SPDX-License-Identifier: Apache-2.0
//
// The small runs that a GPU trains as the host does: each stage, what is computed again, and all
// that moves to the host.
#ifndef ZEROBOX_TESTS_CUDA_RUNS_H_
#define ZEROBOX_TESTS_CUDA_RUNS_H_

#include <string>
#include <vector>

#include "trainer/results.h"
#include "trainer/settings.h"

namespace zerobox {

struct CudaRunKind {
  const char* name;
  DType dtype = DType::kFloat32;
  int stage = 0;  // with one device all are the same code
  ActivationCheckpointing checkpointing = ActivationCheckpointing::kNone;
  bool offload_optimizer = false, offload_activations = false;
  bool odd_width = false;  // to which cuBLASLt fuses no GELU
  int devices = 1;
  bool on_one_gpu = false;  // else each has one
};
// "bf16_selective_offloaded"
std::string NameOf(const CudaRunKind& kind);
std::vector<CudaRunKind> CudaRunKinds();

// Those whose ranks do something else at each stage: all stages, on so many devices.
std::vector<CudaRunKind> SeveralDevicesKinds(int devices, bool on_one_gpu);

// Ten steps and two evaluations on devices "host" or "cuda".
TrainSettings SettingsOf(const CudaRunKind& kind, const char* device);

// How far losses may be apart, relatively. In bf16 the GPU rounds at other places than the host.
constexpr double LossTolerance(DType dtype) { return dtype == DType::kFloat32 ? 1e-5 : 2e-3; }
// The largest relative difference between losses, of steps and of evaluations. Infinite where one
// is NaN, or their numbers differ.
struct LossDifference {
  double value = 0;
  std::string where;  // "step 3: loss 4.5 is not 4.25"
};
LossDifference Difference(const RunResult& found, const RunResult& expected);

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_CUDA_RUNS_H_
