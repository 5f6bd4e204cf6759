// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/strings/str_cat.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/gpu_thread.h"
#include "ops/cuda/cuda.h"
#include "ops/device/host_device.h"
#include "tests/small_run.h"

namespace zerobox::gpu_check {
namespace {

using Values = OpsNetwork::Values;

absl::StatusOr<Values> Compute(Device& device, const NetworkShape& shape,
                               const NetworkTypes& types) {
  OpsNetwork network(device, shape, types);
  network.Run();
  absl::StatusOr<Values> values = network.Read();
  device.StopStreams();  // before the host memory goes that copies may use after a failure
  return values;
}

absl::StatusOr<Values> ComputeOnHost(const NetworkShape& shape, const NetworkTypes& types) {
  Abort abort;
  auto device = HostDevice::Make({.regions = {NetworkBytes(shape), 0, 0, 0}}, abort);
  if (!device.ok()) return device.status();
  return Compute(**device, shape, types);
}

absl::StatusOr<Values> ComputeOnGpu(const NetworkShape& shape, const NetworkTypes& types) {
  Abort abort;
  auto device = MakeCudaDevice({.regions = {NetworkBytes(shape), 0, 0, 0}}, abort);
  if (!device.ok()) return device.status();
  return Compute(**device, shape, types);
}

void CheckNetwork(const NetworkShape& shape, const NetworkTypes& types, Report& report) {
  const std::string name = absl::StrCat(NameOf(types), ": ", NameOf(shape));
  const absl::StatusOr<Values> expected = ComputeOnHost(shape, types);
  const absl::StatusOr<Values> found = ComputeOnGpu(shape, types);
  const absl::StatusOr<Values> again = ComputeOnGpu(shape, types);
  for (const auto* values : {&expected, &found, &again}) {
    if (!values->ok()) return report.Fail(values->status(), name);
  }
  const NetworkDifference difference = Difference(*found, *expected);
  report.Check(name, difference.value, NetworkTolerance(types.t), difference.where);
  const NetworkDifference repeated = Difference(*again, *found);
  report.Check("  once more: the same bits", repeated.value, 0, repeated.where);
}

}  // namespace

void CheckOps(const Sizes& sizes, Report& report) {
  report.BeginTable("largest difference, relative to a buffer's largest");
  for (const NetworkShape& shape : sizes.networks) {
    for (const NetworkTypes& types : kNetworkTypes) {
      OnGpuThread([&] { CheckNetwork(shape, types, report); });
    }
  }
}

void CheckRun(const CudaRunKind& kind, Report& report) {
  const SmallRun host = RunSmall(SettingsOf(kind, "host"));
  const SmallRun gpu = RunSmall(SettingsOf(kind, "cuda"));
  for (const SmallRun* run : {&host, &gpu}) {
    if (!run->result.status.ok()) return report.Fail(run->result.status, NameOf(kind));
  }
  const LossDifference difference = Difference(gpu.result, host.result);
  report.Check(NameOf(kind), difference.value, LossTolerance(kind.dtype), difference.where);
}

void CheckTraining(const Sizes& sizes, Report& report) {
  report.BeginTable("largest relative difference of losses");
  for (const CudaRunKind& kind : sizes.runs) CheckRun(kind, report);
}

}  // namespace zerobox::gpu_check
