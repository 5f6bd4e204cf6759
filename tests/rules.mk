# SPDX-License-Identifier: Apache-2.0
# Each of these is a program of its own, build/<variant>/tests/<name>_test.
tests_sources := \
  tests/abort_test.cpp \
  tests/adamw_test.cpp \
  tests/bf16_ops_test.cpp \
  tests/bfloat16_test.cpp \
  tests/board_test.cpp \
  tests/bytes_test.cpp \
  tests/checkpointing_test.cpp \
  tests/collectives_failures_test.cpp \
  tests/collectives_test.cpp \
  tests/combinations_test.cpp \
  tests/command_compare_test.cpp \
  tests/command_report_test.cpp \
  tests/command_train_test.cpp \
  tests/comparison_test.cpp \
  tests/count_model_test.cpp \
  tests/dataset_test.cpp \
  tests/device_failures_test.cpp \
  tests/device_test.cpp \
  tests/docs_test.cpp \
  tests/equality_test.cpp \
  tests/events_test.cpp \
  tests/failure_test.cpp \
  tests/fit_test.cpp \
  tests/flags_test.cpp \
  tests/formulas_test.cpp \
  tests/given_up_test.cpp \
  tests/gpt_test.cpp \
  tests/host_ops_test.cpp \
  tests/host_side_test.cpp \
  tests/layout_test.cpp \
  tests/matmul_ops_test.cpp \
  tests/memory_test.cpp \
  tests/mixed_bytes_test.cpp \
  tests/mixed_precision_test.cpp \
  tests/new_file_test.cpp \
  tests/offload_test.cpp \
  tests/ops_optimizer_test.cpp \
  tests/ops_philox_test.cpp \
  tests/ops_test.cpp \
  tests/overlap_test.cpp \
  tests/padding_test.cpp \
  tests/picture_test.cpp \
  tests/plan_test.cpp \
  tests/program_test.cpp \
  tests/pytorch_test.cpp \
  tests/reference_ops_test.cpp \
  tests/report_identities_test.cpp \
  tests/report_merge_test.cpp \
  tests/report_test.cpp \
  tests/resolve_devices_test.cpp \
  tests/resolve_test.cpp \
  tests/run_bytes_test.cpp \
  tests/run_equality_test.cpp \
  tests/run_folder_test.cpp \
  tests/safetensors_test.cpp \
  tests/sample_test.cpp \
  tests/screen_test.cpp \
  tests/signals_test.cpp \
  tests/skip_test.cpp \
  tests/tables_test.cpp \
  tests/tracer_test.cpp \
  tests/trace_events_test.cpp \
  tests/watch_test.cpp \

# Linked into every test program.
tests_support_sources := \
  tests/cuda_runs.cpp \
  tests/expected_bytes.cpp \
  tests/model_gradient.cpp \
  tests/ops_network.cpp \
  tests/process.cpp \
  tests/reference.cpp \
  tests/small_report.cpp \
  tests/small_run.cpp \
  tests/trace_checks.cpp \

# Fuzz targets: each is a program of its own, build/fuzz/tests/<name>_fuzz; and what they share.
tests_fuzz_sources := \
  tests/fuzz/command_line_fuzz.cpp \
  tests/fuzz/data_fuzz.cpp \
  tests/fuzz/model_fuzz.cpp \
  tests/fuzz/report_fuzz.cpp \
  tests/fuzz/safetensors_fuzz.cpp \
  tests/fuzz/text_fuzz.cpp \

tests_fuzz_support := \
  tests/fuzz/target.cpp \
  tests/process.cpp \
  tests/small_report.cpp \

# Tests of the CUDA kernels, which run without a GPU: BUILD=emu, emu-asan or emu-race, see ops/cuda/build.mk.
tests_emulation_sources := \
  tests/emulation/attention_test.cpp \
  tests/emulation/call_log_test.cpp \
  tests/emulation/cross_entropy_test.cpp \
  tests/emulation/cuda_device_failures_test.cpp \
  tests/emulation/cuda_device_test.cpp \
  tests/emulation/cuda_matmul_test.cpp \
  tests/emulation/cuda_ops_test.cpp \
  tests/emulation/cuda_train_test.cpp \
  tests/emulation/elementwise_test.cpp \
  tests/emulation/embedding_test.cpp \
  tests/emulation/fake_runtime_test.cpp \
  tests/emulation/gpu_check_test.cpp \
  tests/emulation/gpu_test.cpp \
  tests/emulation/layernorm_test.cpp \
  tests/emulation/optimizer_test.cpp \
  tests/emulation/rank_sums_test.cpp \
  tests/emulation/residual_layernorm_test.cpp \
  tests/emulation/seeded_bugs_test.cpp \
  tests/emulation/several_edges_test.cpp \
  tests/emulation/several_failures_test.cpp \
  tests/emulation/several_faults_test.cpp \
  tests/emulation/several_gpus_test.cpp \
  tests/emulation/simt_test.cpp \
  tests/emulation/virtual_group_test.cpp \

# And where NCCL's header is, these.
tests_nccl_sources := \
  tests/emulation/fake_nccl_test.cpp \
  tests/emulation/nccl_failures_test.cpp \
  tests/emulation/nccl_test.cpp \

# Kernels that are for tests alone.
tests_emulation_kernels := \
  tests/emulation/gpu_kernels.cu \
  tests/emulation/seeded_bugs.cu \

# The emulator, and the fakes of the toolkit's libraries.
tests_emulation_support := \
  tests/emulation/edges.cpp \
  tests/emulation/fake_cublaslt.cpp \
  tests/emulation/fake_machine.cpp \
  tests/emulation/fake_memory.cpp \
  tests/emulation/fake_runtime.cpp \
  tests/emulation/fiber.cpp \
  tests/emulation/multiprocessor.cpp \
  tests/emulation/race.cpp \
  tests/emulation/race_calls.cpp \
  tests/emulation/shared_memory.cpp \
  tests/emulation/simt.cpp \
  tests/emulation/symbols.cpp \
  tests/emulation/warp.cpp \

tests_nccl_support := \
  tests/emulation/fake_collective.cpp \
  tests/emulation/fake_nccl.cpp \

# Tests of what nvcc makes of the kernels, by an interpreter of PTX, BUILD=emu-ptx: of the interpreter; and the
# emulator's tests of kernels, and of training, with the PTX for an architecture.
tests_ptx_sources := \
  tests/ptx/ptx_test.cpp \
  tests/ptx/sm_80_test.cpp \
  tests/ptx/sm_90_test.cpp \
  tests/ptx/training_test.cpp \

tests_ptx_kernel_tests := $(filter-out $(addprefix tests/emulation/,cuda_%_test.cpp gpu_check_test.cpp seeded_bugs_test.cpp \
  several_%_test.cpp simt_test.cpp virtual_%_test.cpp call_log_test.cpp), $(tests_emulation_sources))

tests_ptx_support := \
  tests/ptx/comparison.cpp \
  tests/ptx/conversion.cpp \
  tests/ptx/data.cpp \
  tests/ptx/decode.cpp \
  tests/ptx/float.cpp \
  tests/ptx/integer.cpp \
  tests/ptx/kernels.cpp \
  tests/ptx/lexer.cpp \
  tests/ptx/library.cpp \
  tests/ptx/machine.cpp \
  tests/ptx/memory.cpp \
  tests/ptx/opcodes.cpp \
  tests/ptx/parser.cpp \
  tests/ptx/thread.cpp \
  tests/ptx/warp.cpp \

# The subset that `make check` runs under a sanitizer, by name without _test (empty: all of them), and the
# GoogleTest filter it runs them with (empty: every test; -Suite.Name leaves one out). Left out is what a
# sanitizer would only see again: matrices on many devices; and under the thread sanitizer also on one, or on two
# where three are tried, what one thread computes, and SIMD targets that share memory between threads as the others do.
empty :=
many_devices := *Equality.*/7_* *Equality.*/8_* Devices/Bytes.*/8
same_threads := *Equality.*/1_* Devices/Equality.*/2_* *Equality.*/4_* *Equality.IsOfRuns* GlobalBatch.Cut* \
  *Checkpointing.*/1_* *Checkpointing.*/3_* *Checkpointing.*/4_* *OptimizerOffload.*/1_* *OptimizerOffload.*/2_* \
  Devices/Bytes.*/1 *Events.LetA*/Stage1* *Events.LetA*/Stage2_* \
  MatmulTest.AgreesWith* MatmulTest.InBf16Is* MatmulTest.AnElement* */SSE* */SSSE3 */SCALAR
leave_out = -$(subst $(empty) $(empty),:,$(strip $(1)))
# Training runs in the emulator that others have the code of, and what they show by values alone.
emulated_again := CudaTrain.*stage0 CudaTrain.*stage2 CudaTrain.*stage3 CudaTrain.*odd_width CudaTrain.*_selective \
  CudaTrain.*_full CudaTrain.*fp32_optimizer* CudaTrain.*fp32_selective* CudaMemory.* CudaEdges.*
# Of several ranks: all are left out but three kinds, which have all that only several ranks do.
emulated_again += SeveralGpus.*/1_* SeveralGpus.*/4_* SeveralGpus.*_3_micro_batches* SeveralGpus.*_stage1_* \
  SeveralGpus.*_stage2_* SeveralGpus.*/2_gpus_fp32_* SeveralGpus.*/2_gpus_*_full* SeveralGpus.*/2_on_one_gpu_*_optimizer* \
  VirtualRanks.* SeveralGpusEdges.*
emu-asan_filter := $(call leave_out,$(emulated_again))
# The checker of accesses looks at kernels; these have none, or those of other tests.
emu-race_filter := $(call leave_out,$(emulated_again) CudaDeviceTest.* CallLogTest.* VirtualGroupTest.AnError* \
  VirtualGroupTest.Ranks* NcclTest.AnError* NcclRanks.* SeveralGpusFaults.* SeveralGpusFailures.*)
emu-ptx_tests := $(tests_ptx_sources:tests/ptx/%_test.cpp=%)
asan_tests :=
asan_filter := $(call leave_out,$(many_devices))
tsan_tests :=
tsan_filter := $(call leave_out,$(many_devices) $(same_threads))
