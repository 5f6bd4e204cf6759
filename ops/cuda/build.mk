# SPDX-License-Identifier: Apache-2.0
# How the CUDA sources (.cu) are compiled: by nvcc with CUDA=1, and for the emulator (tests/emulation/simt.h) as
# ordinary C++ in the variants emu, emu-asan and emu-race. The toolkit is found and never installed: in CUDA_HOME, which
# if set is the only place; else in /usr/local/cuda or beside the nvcc on PATH. The emulator needs its headers alone.

$(foreach home,CUDA_HOME NCCL_HOME,$(if $(word 2,$($(home))),$(error $(home) is a folder without blanks in its name, at which \
  make parts names; found: $($(home)). Make a link to it, ln -s '$($(home))' LINK, and give $(home)=LINK)))
nvcc_on_path := $(shell command -v nvcc)
cuda_folders := $(or $(CUDA_HOME),/usr/local/cuda $(patsubst %/bin/nvcc,%,$(nvcc_on_path) $(realpath $(nvcc_on_path))))
cuda_include := $(firstword $(patsubst %/cuda_bf16.h,%,$(wildcard $(cuda_folders:%=%/include/cuda_bf16.h))))
nvcc := $(firstword $(wildcard $(cuda_folders:%=%/bin/nvcc)))
nvcc_release := $(if $(nvcc),$(shell $(nvcc) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'))
# What keeps it from compiling C++20 for sm_90; empty: nothing.
nvcc_problem := $(if $(nvcc),$(if $(filter 7.% 8.% 9.% 10.% 11.%,$(nvcc_release)),but $(nvcc) is of $(nvcc_release)),which is in \
  none of: $(cuda_folders:%=%/bin))

# NCCL is not part of the toolkit, so it may be elsewhere, or nowhere: then several GPUs cannot be used.
nccl_folders := $(NCCL_HOME:%=%/include) $(cuda_include) /usr/include /usr/local/include
nccl_include := $(firstword $(patsubst %/nccl.h,%,$(wildcard $(nccl_folders:%=%/nccl.h))))
ops_cuda_device_sources += $(if $(nccl_include),$(ops_cuda_nccl_sources),$(ops_cuda_no_nccl_sources))
ops_cuda_library_sources += $(if $(nccl_include),$(ops_cuda_nccl_library_sources))
tests_emulation_sources += $(if $(nccl_include),$(tests_nccl_sources))
tests_emulation_support += $(if $(nccl_include),$(tests_nccl_support))
nccl_wanted = $(if $(nccl_include),,left out: $(1) the header of NCCL, nccl.h, which is in none of: \
  $(nccl_folders). Install libnccl-dev of NVIDIA's repository, or set NCCL_HOME to where NCCL is)
nccl_missing := $(call nccl_wanted,the tests of collectives between GPUs need)

# CUDA=1 is the default where there is a GPU to run on.
CUDA ?= $(if $(and $(nvcc),$(or $(wildcard /dev/nvidia0),$(shell command -v nvidia-smi))),1,0)
# Machine code for these, as far as nvcc knows them, and PTX of the newest for what comes later.
CUDA_ARCHS = 80 90 100 120
# Of a program for GPUs.
several_gpus_missing := $(if $(filter 1,$(CUDA)),$(call nccl_wanted,training on several GPUs needs))
ifneq (,$(filter-out 0 1,$(CUDA)))
  $(error CUDA is 0 or 1; found: $(CUDA))
endif
ifeq ($(CUDA),1)
  $(if $(nvcc_problem),$(error CUDA=1 needs nvcc of CUDA 12.0 or newer, $(nvcc_problem). Set CUDA_HOME to where the toolkit \
    is; CUDA=0 builds without))
endif

emulation_missing := $(if $(cuda_include),,skipped: the tests that run the CUDA kernels without a GPU need the headers of \
  the CUDA toolkit (cuda_runtime.h, cuda_bf16.h), which are not in $(cuda_folders:%=%/include). Set CUDA_HOME to where it is)
ifneq (,$(nvcc_problem))
nvcc_missing := skipped: compiling the CUDA kernels, and running what comes of it, needs nvcc of CUDA 12.0 or newer, \
  $(nvcc_problem). Set CUDA_HOME to where the CUDA toolkit is
endif
ifeq ($(BUILD),emu-ptx)
emulation_missing := $(or $(emulation_missing),$(nvcc_missing))
endif

# What nvcc compiles for `make check`, beside what is for a program.
nvcc_objects := $(patsubst %.cu,build/nvcc/%.o,$(ops_cuda_sources) tests/emulation/gpu_kernels.cu)

ifeq ($(READY),1)

# For files that include the toolkit's headers. Ours are C++20 without extensions that nvcc lacks. The compiler's own
# folders are not named again, which would change the order in which it looks there.
cuda_flags := $(addprefix -isystem ,$(filter-out $(cuda_include) /usr/include /usr/local/include,$(nccl_include)) \
  $(cuda_include))
$(foreach folder,tests/emulation tests/ptx ops/cuda bench/gpu_check,$(out)/obj/$(folder)/%.o): object_flags = $(cuda_flags)

# The device; not in the library, where ops/cuda/no_cuda.cpp stands for it in every program that does not link these.
cuda_device_objects := $(call objects,$(ops_cuda_device_sources))
-include $(cuda_device_objects:.o=.d)

#---- nvcc ----
comma := ,
ifeq ($(CUDA),1)
known_archs := $(patsubst compute_%,%,$(shell $(nvcc) --list-gpu-arch))
cuda_archs := $(filter $(CUDA_ARCHS),$(known_archs))
ifeq (,$(cuda_archs))
  $(error CUDA_ARCHS wants numbers of architectures that $(nvcc) knows, as in CUDA_ARCHS="80 90"; found: '$(CUDA_ARCHS)'. It knows: \
    $(known_archs). zerobox wants 80 (A100, RTX 30) or newer)
endif
newest_arch := $(lastword $(filter $(cuda_archs),$(CUDA_ARCHS)))
NVCCFLAGS =
nvcc_compile = $(nvcc) -std=c++20 -O3 -lineinfo -I. -ccbin $(lastword $(CXX)) -Werror all-warnings \
  -Xcompiler -Wall,-Wextra,-ffp-contract=off $(foreach arch,$(cuda_archs),-gencode arch=compute_$(arch)$(comma)code=sm_$(arch)) \
  -gencode arch=compute_$(newest_arch),code=compute_$(newest_arch) $(NVCCFLAGS)
cuda_objects := $(ops_cuda_sources:%.cu=$(out)/obj/%.cuda.o)
# As --version says it.
cuda_built := $(nvcc_release) for $(cuda_archs:%=sm_%)
$(call update,$(out)/nvcc_flags,$(shell $(nvcc) --version | tail -n 1) $(nvcc_compile))

$(out)/obj/%.cuda.o: %.cu $(out)/nvcc_flags
	@mkdir -p $(@D)
	$(call say,nvcc  ,$<)
	$(q)$(nvcc_compile) -MD -MP -MF $(@:.o=.d) -c $< -o $@

-include $(cuda_objects:.o=.d)

# The program holds the device too, and needs neither a driver nor the toolkit's libraries to start: the runtime is linked
# statically and looks for the driver when it is first called, and cuBLASLt is loaded then (ops/cuda/cublaslt.cpp).
cuda_program_objects := $(cuda_device_objects) $(call objects,$(ops_cuda_library_sources))
cuda_libraries := $(firstword $(wildcard $(foreach folder,lib64 targets/x86_64-linux/lib \
  targets/sbsa-linux/lib lib,$(cuda_include:%/include=%/$(folder)/libcudart_static.a)))) -ldl -lrt
-include $(cuda_program_objects:.o=.d)

# `make gpu-check`. With libhwy.so.1 beside it, it also runs where none of our packages are: a machine with a GPU may be
# another one. Its parts also run in a test in the emulator.
build/gpu-check: $(call objects,$(gpu_check_main) $(gpu_check_sources) $(gpu_check_support)) $(cuda_program_objects) \
    $(library) $(build_info_object)
	$(call say,link  ,$@)
	$(q)$(link) $^ $(libraries:-labsl_%=-l:libabsl_%.a) $(cuda_libraries) -static-libstdc++ -static-libgcc \
	  -Wl,-rpath,'$$ORIGIN' -o $@
	$(q)cp -L $$($(CXX) -print-file-name=libhwy.so.1) build/
-include $(patsubst %.cpp,$(out)/obj/%.d,$(gpu_check_main))
endif
-include $(patsubst %.cpp,$(out)/obj/%.d,$(gpu_check_sources))

# What is checked without a GPU: the sources compile without warnings for these, and what comes of it, PTX
# (NAME.sm_90.ptx) and what the assembler says of registers (NAME.log).
check_archs := 80 90
nvcc_check = $(nvcc) -std=c++20 -O3 -lineinfo -I. -ccbin $(lastword $(CXX)) -Werror all-warnings \
  -Xcompiler -Wall,-Wextra,-ffp-contract=off $(foreach arch,$(check_archs),-gencode arch=compute_$(arch)$(comma)code=sm_$(arch)) \
  -Xptxas -v --keep --keep-dir $(@:.o=.keep) $(NVCCFLAGS)
$(call update,build/nvcc/flags,$(if $(nvcc),$(shell $(nvcc) --version | tail -n 1)) $(nvcc_check))

build/nvcc/%.o: %.cu build/nvcc/flags
	@rm -rf $(@:.o=.keep)
	@mkdir -p $(@:.o=.keep)
	$(call say,nvcc  ,$<)
	$(q)$(nvcc_check) -MD -MP -MF $(@:.o=.d) -c $< -o $@ >$(@:.o=.log) 2>&1 || { cat $(@:.o=.log); exit 1; }
	@for arch in $(check_archs); do mv $(@:.o=.keep)/$(notdir $*).compute_$$arch.ptx $(@:.o=).sm_$$arch.ptx || exit; done
	@rm -r $(@:.o=.keep)

-include $(nvcc_objects:.o=.d)

# With CUDA=0 after CUDA=1 the library is made again, and so all programs are; and without NCCL after with it.
$(call update,$(out)/cuda,CUDA=$(CUDA) $(ops_cuda_device_sources))

#---- The emulator ----
ifneq (,$(emulated))
# Optimised less where a sanitizer's calls take the time. The checker of accesses gets its calls from the compiler's
# support for the thread sanitizer, but is a run-time library of its own: tests/emulation/race.h. clang is better at
# it: gcc at -O1 makes no call for stores of what a function returns, and none for memcpy.
race_compiler := $(if $(shell command -v clang++),clang++ -O1,$(CXX) -O2)
emu_compile := $(CXX) -O2
emu-ptx_compile := $(emu_compile)
# Thrust's CPP backend forms references from null pointers; one that is followed is a crash, which the sanitizer reports.
emu-asan_compile := $(CXX) -O1 $(asan_flags) -fno-sanitize=null
emu-race_compile := $(race_compiler) -fsanitize=thread
# A tile is written as 16-byte words and read as numbers, which nvcc allows. Registers that are loaded and used under
# the same condition look uninitialised to gcc.
kernel_compile := $($(BUILD)_compile) -x c++ -DGPU_EMULATION -std=c++20 -g -Wall -Wextra -Werror -Wno-unknown-pragmas \
  -Wno-missing-field-initializers -Wno-uninitialized -Wno-maybe-uninitialized -Wno-unknown-warning-option -Wno-pass-failed \
  -ffp-contract=off -fno-strict-aliasing -pthread -I. \
  $(foreach folder,$(cuda_include) $(wildcard $(cuda_include)/cccl),-isystem $(folder))
kernel_compiler := $(shell $(firstword $(filter-out ccache,$($(BUILD)_compile))) --version | head -n 1)
# The tests of PTX take the launchers, and the names of kernels, from the emulator's objects.
kernels_out := $(if $(filter emu-ptx,$(BUILD)),build/emu,$(tests_out))
$(call update,$(kernels_out)/kernel_flags,$(kernel_compiler) $(kernel_compile))

# clang 14 copies 16 bytes by a plain memcpy, which the checker would not see.
watch_copies = objcopy --redefine-sym memcpy=__tsan_memcpy --redefine-sym memmove=__tsan_memmove \
  --redefine-sym memset=__tsan_memset
$(kernels_out)/obj/%.o: %.cu $(kernels_out)/kernel_flags
	@mkdir -p $(@D)
	$(call say,c++   ,$<)
	$(q)$(kernel_compile) -MD -MP -c $< -o $@
	$(if $(filter emu-race,$(BUILD)),$(q)$(watch_copies) $@)

kernel_objects := $(patsubst %.cu,$(kernels_out)/obj/%.o,$(ops_cuda_sources) $(tests_emulation_kernels))
kernels_library := $(kernels_out)/libkernels.a
emulation_library := $(out)/libemulation.a
gpu_check_library := $(out)/libgpu_check.a
$(kernels_library): $(kernel_objects)
$(emulation_library): $(call objects,$(tests_emulation_support)) $(out)/cuda
$(gpu_check_library): $(call objects,$(gpu_check_sources)) bench/rules.mk
$(kernels_library) $(emulation_library): tests/rules.mk
$(kernels_library) $(emulation_library) $(gpu_check_library):
	@mkdir -p $(@D)
	@rm -f $@
	$(q)ar rcs $@ $(filter %.o,$^)

#---- The interpreter of PTX ----
ifeq ($(BUILD),emu-ptx)
ptx_library := $(out)/libptx.a
$(ptx_library): $(call objects,$(tests_ptx_support)) tests/rules.mk
	@mkdir -p $(@D)
	@rm -f $@
	$(q)ar rcs $@ $(filter %.o,$^)

ptx_programs := $(tests_ptx_sources:tests/ptx/%.cpp=$(tests_out)/tests/%)
ptx_libraries := $(ptx_library) $(kernels_library) $(emulation_library) $(tests_library) $(library)
$(ptx_programs): $(tests_out)/tests/%: $(out)/obj/tests/ptx/%.o $(ptx_libraries) $(nvcc_objects) | $(build_info_object)
	@mkdir -p $(@D)
	$(call say,link  ,$@)
	$(q)$(link) $< $(kernel_tests) $(ptx_libraries) $(build_info_object) $(gtest_libraries) $(libraries) -o $@

# Each of these is all tests of the emulator's that run our kernels; and the next those of training.
ptx_kernel_programs := $(filter $(tests_out)/tests/sm_%,$(ptx_programs))
$(ptx_kernel_programs): kernel_tests := $(call objects,$(tests_ptx_kernel_tests))
$(ptx_kernel_programs): $(call objects,$(tests_ptx_kernel_tests))
ptx_training_tests := $(call objects,tests/emulation/cuda_train_test.cpp) $(cuda_device_objects)
$(tests_out)/tests/training_test: kernel_tests := $(ptx_training_tests)
$(tests_out)/tests/training_test: $(ptx_training_tests)

-include $(patsubst %.cpp,$(out)/obj/%.d,$(tests_ptx_support) $(tests_ptx_sources))
endif

$(tests_out)/tests/%: $(out)/obj/tests/emulation/%.o $(cuda_device_objects) $(gpu_check_library) $(kernels_library) \
    $(emulation_library) $(tests_library) $(library) | $(build_info_object)
	@mkdir -p $(@D)
	$(call say,link  ,$@)
	$(q)$(link) $^ $(build_info_object) $(gtest_libraries) $(libraries) -o $@

-include $(kernel_objects:.o=.d) $(patsubst %.cpp,$(out)/obj/%.d,$(tests_emulation_support) $(tests_emulation_sources))
endif

endif
