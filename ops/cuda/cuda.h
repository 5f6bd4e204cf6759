// SPDX-License-Identifier: Apache-2.0
//
// GPUs as devices: what the rest of the program sees of them. It needs nothing of the CUDA toolkit,
// so it is there in every build; one without CUDA answers with an error that says so.
#ifndef ZEROBOX_OPS_CUDA_CUDA_H_
#define ZEROBOX_OPS_CUDA_CUDA_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/collectives/group.h"
#include "ops/device/abort.h"
#include "ops/device/device.h"
#include "ops/device/recorder.h"
#include "ops/ops.h"

namespace zerobox {

// Of a micro-batch, what the size of the ops' workspace depends on.
struct CudaOpsSizes {
  SequenceShape shape{};
  int64_t heads = 1, vocabulary = 1;
};

inline constexpr int64_t kGpuWorkspaceBytes = int64_t{32} << 20;

struct CudaDeviceOptions {
  int rank = 0;                // names the device in messages and in the recorder
  int gpu = 0;                 // its number on this machine
  RegionBytes regions{};       // what to reserve, from the plan
  RegionBytes host_regions{};  // the same of the host side: pinned memory
  int threads = 1;             // of the kernels on the host side
  // Beside the regions: what cuBLASLt and the kernels of the compute stream use as they like. At
  // least so much, and more where ops of these sizes want it.
  int64_t workspace_bytes = kGpuWorkspaceBytes;
  CudaOpsSizes sizes{};
  int ops_ahead = 32;  // the GPU is at most three times so many ops of a stream behind
  bool tf32 = false;   // fp32 matrix products in TF32
  Recorder* recorder = nullptr;
  // For tests. Wait and HostWait ignore this edge: "EVENT -> STREAM", or "EVENT -> host".
  std::string drop_wait = {};
};

// Channels of the largest attention head that the kernels are made for.
inline constexpr int64_t kMostGpuHeadChannels = 128;

// This build has the CUDA device.
bool BuiltWithCuda();
// The GPUs of this machine, 1 or more. Unimplemented in a build without CUDA; Unavailable, with the
// reason, where there is no GPU, no driver or no cuBLASLt. Called before the program has threads:
// it asks the driver to load every kernel when a device is made, not when it is first used.
absl::StatusOr<int> CountGpus();
// Bytes that are free now.
absl::StatusOr<int64_t> FreeGpuMemory(int gpu);

// What a device with ops of these sizes takes of its GPU besides its regions, at most.
int64_t GpuWorkspaceBytes(const CudaOpsSizes& sizes);

// How GPUs 0 to `gpus` - 1 reach each other's memory: of their pairs, how many do so directly, and
// over NVLink. NCCL sends through the machine's memory where they do not.
struct GpuLinks {
  int pairs = 0, peers = 0, nvlinks = 0;
};
absl::StatusOr<GpuLinks> FindGpuLinks(int gpus);

// OK when NCCL, which carries what several GPUs send each other, is here; else says where it was
// looked for.
absl::Status CheckNccl();

// Called on the worker's thread: that thread is the GPU's from then on. ResourceExhausted when the
// GPU, or the machine, does not give the memory. `abort` outlives the device.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options,
                                                       Abort& abort);

// Where the ranks of a run on GPUs meet.
struct CudaGroupOptions {
  int size = 1;
  // All ranks are on one GPU (NCCL refuses that): their collectives are copies and sums there.
  bool on_one_gpu = false;
  // Of the buffers that the calls of the run will have.
  int64_t largest_call_bytes = 0;
  CallHook hook = {};
};
// For devices of MakeCudaDevice. `abort` outlives the group, and the group its communicators.
absl::StatusOr<std::unique_ptr<Group>> MakeCudaGroup(const CudaGroupOptions& options, Abort& abort);

}  // namespace zerobox

#endif  // ZEROBOX_OPS_CUDA_CUDA_H_
