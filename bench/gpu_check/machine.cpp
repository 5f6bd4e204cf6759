// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/command.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/status.h"
#include "trainer/build_info.h"

namespace zerobox::gpu_check {
namespace {

// 13000 is 13.0.
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

double NominalFlops(std::string_view name) {
  const absl::string_view text(name.data(), name.size());
  const auto has = [&](absl::string_view part) { return absl::StrContains(text, part); };
  if (has("A100") || has("A800")) return 312e12;
  if (has("H100 PCIe")) return 756e12;
  if (has("H100 NVL")) return 835e12;
  if (has("H100") || has("H200") || has("H800")) return 989e12;
  return 0;
}

absl::StatusOr<Gpu> DescribeMachine(Report& report) {
  const absl::StatusOr<int> gpus = CountGpus();
  if (!gpus.ok()) return gpus.status();
  cudaDeviceProp properties{};
  absl::Status status =
      cuda::ToStatus(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0;
  int runtime = 0;
  if (status.ok()) status = cuda::ToStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  if (status.ok()) {
    status = cuda::ToStatus(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  }
  if (!status.ok()) return status;
  const Gpu gpu = {.name = properties.name,
                   .count = *gpus,
                   .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                   .cache_bytes = properties.l2CacheSize,
                   .nominal_flops = NominalFlops(properties.name)};
  report.Say(absl::StrFormat("zerobox %s (%s), %s", kVersion, kCommit, kCompiler));
  report.Say(absl::StrFormat(
      "%s, the first of %d: %s, L2 %s, %d multiprocessors, compute capability %d.%d", gpu.name,
      *gpus, BytesText(static_cast<double>(gpu.memory_bytes)),
      BytesText(static_cast<double>(gpu.cache_bytes)), properties.multiProcessorCount,
      properties.major, properties.minor));
  report.Say(absl::StrFormat("CUDA: the driver's %s, the runtime's %s; %d cores of the machine",
                             VersionText(driver), VersionText(runtime),
                             std::thread::hardware_concurrency()));
  const CommandResult smi = RunCommand(
      "nvidia-smi --id=0 --query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit,"
      "temperature.gpu,memory.used,utilization.gpu --format=csv 2>/dev/null");
  if (smi.exit_code == 0) {
    for (const std::string& line : smi.lines) report.Say(line);
  }
  report.Say(gpu.nominal_flops > 0
                 ? absl::StrCat("peak used: ", FlopsText(gpu.nominal_flops), " (nominal, bf16)")
                 : "peak used: that of a large matrix product, measured below");
  return gpu;
}

}  // namespace zerobox::gpu_check
