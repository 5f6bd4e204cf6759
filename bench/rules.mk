# SPDX-License-Identifier: Apache-2.0
# Each source is a program of its own, build/release/bench/<name>.
bench_sources := \
  bench/collectives.cpp \
  bench/kernels.cpp \
  bench/training.cpp \

# Of one program, build/gpu-check, which needs the CUDA toolkit: see ops/cuda/build.mk.
gpu_check_sources := \
  bench/gpu_check/check.cpp \
  bench/gpu_check/command.cpp \
  bench/gpu_check/correctness.cpp \
  bench/gpu_check/kernel_bench.cpp \
  bench/gpu_check/kernels.cpp \
  bench/gpu_check/machine.cpp \
  bench/gpu_check/matmuls.cpp \
  bench/gpu_check/pytorch.cpp \
  bench/gpu_check/report.cpp \
  bench/gpu_check/several.cpp \
  bench/gpu_check/step_profile.cpp \
  bench/gpu_check/timer.cpp \
  bench/gpu_check/training.cpp \
  bench/gpu_check/trial.cpp \

gpu_check_main := \
  bench/gpu_check/main.cpp \

# What it shares with tests.
gpu_check_support := \
  tests/cuda_runs.cpp \
  tests/ops_network.cpp \
  tests/small_run.cpp \

