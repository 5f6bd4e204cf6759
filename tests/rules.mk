# SPDX-License-Identifier: Apache-2.0
# Each of these is a program of its own, build/<variant>/tests/<name>_test.
tests_sources := \
  tests/abort_test.cpp \
  tests/adamw_test.cpp \
  tests/bf16_ops_test.cpp \
  tests/bfloat16_test.cpp \
  tests/bytes_test.cpp \
  tests/checkpointing_test.cpp \
  tests/collectives_test.cpp \
  tests/command_train_test.cpp \
  tests/count_model_test.cpp \
  tests/dataset_test.cpp \
  tests/device_test.cpp \
  tests/equality_test.cpp \
  tests/events_test.cpp \
  tests/failure_test.cpp \
  tests/fit_test.cpp \
  tests/flags_test.cpp \
  tests/formulas_test.cpp \
  tests/gpt_test.cpp \
  tests/host_ops_test.cpp \
  tests/host_side_test.cpp \
  tests/layout_test.cpp \
  tests/matmul_ops_test.cpp \
  tests/memory_test.cpp \
  tests/mixed_bytes_test.cpp \
  tests/offload_test.cpp \
  tests/ops_optimizer_test.cpp \
  tests/ops_philox_test.cpp \
  tests/ops_test.cpp \
  tests/overlap_test.cpp \
  tests/plan_test.cpp \
  tests/program_test.cpp \
  tests/pytorch_test.cpp \
  tests/reference_ops_test.cpp \
  tests/resolve_test.cpp \
  tests/run_folder_test.cpp \
  tests/safetensors_test.cpp \
  tests/sample_test.cpp \
  tests/screen_test.cpp \
  tests/signals_test.cpp \
  tests/skip_test.cpp \

# Linked into every test program.
tests_support_sources := \
  tests/expected_bytes.cpp \
  tests/model_gradient.cpp \
  tests/process.cpp \
  tests/reference.cpp \
  tests/small_run.cpp \

# Tests of the CUDA kernels, which run without a GPU: BUILD=emu, emu-asan or emu-race, see ops/cuda/build.mk.
tests_emulation_sources := \
  tests/emulation/attention_test.cpp \
  tests/emulation/cross_entropy_test.cpp \
  tests/emulation/elementwise_test.cpp \
  tests/emulation/embedding_test.cpp \
  tests/emulation/gpu_test.cpp \
  tests/emulation/layernorm_test.cpp \
  tests/emulation/optimizer_test.cpp \
  tests/emulation/seeded_bugs_test.cpp \

# Kernels that are for tests alone.
tests_emulation_kernels := \
  tests/emulation/gpu_kernels.cu \
  tests/emulation/seeded_bugs.cu \

# The emulator.
tests_emulation_support := \
  tests/emulation/fiber.cpp \
  tests/emulation/multiprocessor.cpp \
  tests/emulation/race.cpp \
  tests/emulation/race_calls.cpp \
  tests/emulation/shared_memory.cpp \
  tests/emulation/simt.cpp \
  tests/emulation/symbols.cpp \
  tests/emulation/warp.cpp \

# The subset that `make check` runs under a sanitizer, by name without _test (empty: all of them), and the
# GoogleTest filter it runs them with (empty: every test; -Suite.Name leaves one out).
asan_tests :=
asan_filter :=
tsan_tests :=
tsan_filter :=
