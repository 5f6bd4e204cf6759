# SPDX-License-Identifier: Apache-2.0
# The sources of ops/, one a line, sorted.
ops_sources := \
  ops/collectives/communicator.cpp \
  ops/collectives/group.cpp \
  ops/collectives/host_communicator.cpp \
  ops/collectives/plan_communicator.cpp \
  ops/collectives/posted_call.cpp \
  ops/collectives/reduce.cpp \
  ops/cuda/no_cuda.cpp \
  ops/device/abort.cpp \
  ops/device/device.cpp \
  ops/device/host_device.cpp \
  ops/device/host_memory.cpp \
  ops/device/host_stream.cpp \
  ops/device/memory.cpp \
  ops/device/plan_device.cpp \
  ops/device/thread_team.cpp \
  ops/host/adamw.cpp \
  ops/host/attention.cpp \
  ops/host/cross_entropy.cpp \
  ops/host/embedding.cpp \
  ops/host/fill.cpp \
  ops/host/gelu.cpp \
  ops/host/host_ops.cpp \
  ops/host/layernorm.cpp \
  ops/host/linear.cpp \
  ops/host/matmul.cpp \
  ops/host/residual.cpp \
  ops/host/sums.cpp \
  ops/optimizer.cpp \
  ops/philox.cpp \
  ops/plan_ops.cpp \

# The CUDA device, which needs the toolkit's headers: in the program with CUDA=1, and in the tests of BUILD=emu.
ops_cuda_device_sources := \
  ops/cuda/affinity.cpp \
  ops/cuda/call_log.cpp \
  ops/cuda/cuda_copies.cpp \
  ops/cuda/cuda_device.cpp \
  ops/cuda/cuda_group.cpp \
  ops/cuda/cuda_ops.cpp \
  ops/cuda/cuda_time_marks.cpp \
  ops/cuda/matmul.cpp \
  ops/cuda/virtual_group.cpp \
  ops/cuda/wait_times.cpp \

# And what tests have a fake of instead.
ops_cuda_library_sources := \
  ops/cuda/cublaslt.cpp \
  ops/cuda/library.cpp \

# The same two, of NCCL, where its header is; and what stands for them where it is not. See ops/cuda/build.mk.
ops_cuda_nccl_sources := \
  ops/cuda/nccl_group.cpp \

ops_cuda_nccl_library_sources := \
  ops/cuda/nccl_library.cpp \

ops_cuda_no_nccl_sources := \
  ops/cuda/no_nccl.cpp \

# Those that nvcc compiles, and for tests the emulator's compiler: see ops/cuda/build.mk.
ops_cuda_sources := \
  ops/cuda/adamw.cu \
  ops/cuda/attention_bf16.cu \
  ops/cuda/attention_fp32.cu \
  ops/cuda/column_sums.cu \
  ops/cuda/cross_entropy.cu \
  ops/cuda/embedding.cu \
  ops/cuda/fill.cu \
  ops/cuda/gelu.cu \
  ops/cuda/layernorm.cu \
  ops/cuda/rank_sums.cu \
  ops/cuda/residual.cu \
  ops/cuda/residual_layernorm.cu \
  ops/cuda/sums.cu \

