# SPDX-License-Identifier: Apache-2.0
# Builds, tests and runs zerobox; `make help` lists the goals.
#
# One make without recursion, in two passes over this file. A goal that a person types installs the missing packages
# (.ci/setup) and then calls make again with READY=1: only the second pass asks pkg-config and compiles.

VERSION = 0.1.0

# What `make run` trains, on what, and how.
DATA = build/data/jargon.txt
STAGE = 3
DEVICES = 4
RUN_ARGS = --dtype=bf16 --steps=600 --lr=4e-3 --beta2=0.99
ARGS =
# And what `make compare` does with it.
STAGES = 0,1,2,3
COMPARE_ARGS = --device=host --dtype=bf16 --steps=500 --lr=4e-3 --beta2=0.99

# Has PyTorch, for `make bench-pytorch`.
PYTHON = python3

BUILD ?= release
V =

variants := release asan tsan fuzz emu emu-asan emu-race emu-ptx
ifeq (,$(filter $(BUILD),$(variants)))
  $(error BUILD is one of: $(variants); found: $(BUILD))
endif

folders := ops zero data checkpoints trainer
include $(folders:%=%/rules.mk) tests/rules.mk bench/rules.mk

main_source := trainer/main.cpp
library_sources := $(filter-out $(main_source),$(foreach folder,$(folders),$($(folder)_sources)))
all_sources := $(library_sources) $(main_source) $(tests_support_sources) $(tests_sources) $(bench_sources)

# These run the CUDA kernels without a GPU: in the emulator, or what nvcc made of them in the interpreter of PTX.
# Everything else that their tests need is that of another variant.
host_of_emu := release
host_of_emu-asan := asan
host_of_emu-race := release
host_of_emu-ptx := release
host := $(or $(host_of_$(BUILD)),$(BUILD))

out := build/$(host)
tests_out := build/$(BUILD)
program := $(if $(filter release,$(host)),build/zerobox,$(out)/zerobox)

# TESTS="layout equality" builds and runs these alone; BENCH and FUZZ likewise.
emulated := $(filter emu%,$(BUILD))
known_tests = $(or $(if $(emulated),$($(BUILD)_tests)),$(if \
  $(emulated),$(tests_emulation_sources:tests/emulation/%_test.cpp=%),$(tests_sources:tests/%_test.cpp=%)))
TESTS = $(or $($(BUILD)_tests),$(known_tests))
known_bench = $(bench_sources:bench/%.cpp=%)
BENCH = $(known_bench)
known_fuzz = $(tests_fuzz_sources:tests/fuzz/%_fuzz.cpp=%)
FUZZ = $(known_fuzz)
test_programs = $(TESTS:%=$(tests_out)/tests/%_test)
bench_programs = $(BENCH:%=$(out)/bench/%)
fuzz_programs = $(FUZZ:%=build/fuzz/tests/%_fuzz)

default: all
.PHONY: default

ifneq ($(READY),1)
ifeq (fuzz,$(BUILD))
  $(error BUILD=fuzz is what `make fuzz` builds; call that)
endif
include ops/cuda/build.mk
#---- First pass: the goals that people type -------------------------------------------------------------------------

.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# All cores, unless the caller said how many.
inner = $(MAKE) READY=1 $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
# $(call build,goals): says how many files will be compiled, if any, and compiles them.
build = files=$$($(inner) -n GOALS='$(1)' goals 2>/dev/null | grep -c "^echo '  \(c++\|nvcc\)") || true; \
  [ "$$files" = 0 ] || echo "build: $$files files ($(BUILD))"; $(inner) GOALS='$(1)' goals
quote = '$(subst ','\'',$(1))'

run_command = $(program) train --data=$(call quote,$(DATA)) --zero_stage=$(STAGE) --devices=$(DEVICES)$(if \
  $(strip $(RUN_ARGS)), $(RUN_ARGS))$(if $(strip $(ARGS)), $(ARGS))

compare_command = $(program) compare --data=$(call quote,$(DATA)) --zero_stages=$(STAGES) --devices=$(DEVICES)$(if \
  $(strip $(COMPARE_ARGS)), $(COMPARE_ARGS))$(if $(strip $(ARGS)), $(ARGS))

.PHONY: all setup run compare test check fuzz browser nvcc registers bench bench-pytorch gpu-check format lint clean help

all: ## the program, build/zerobox
	@.ci/setup build
	$(if $(several_gpus_missing),@echo $(call quote,$(several_gpus_missing)))
	+@$(call build,$(program))

run: ## trains on the Jargon File; DATA=my.txt STAGE=2 DEVICES=8 ARGS="--steps=200" change what and how
	@.ci/setup build
	+@$(call build,$(program))
	@$(if $(filter-out build/data/jargon.txt,$(DATA)),:,.ci/corpus $(DATA))
	@printf '%s\n' $(call quote,$(run_command))
	@exec $(run_command)

compare: ## the same with every stage, side by side, in minutes; DATA, DEVICES, STAGES=0,3 and ARGS change what and how
	@.ci/setup build
	+@$(call build,$(program))
	@$(if $(filter-out build/data/jargon.txt,$(DATA)),:,.ci/corpus $(DATA))
	@printf '%s\n' $(call quote,$(compare_command))
	@exec $(compare_command)

test: ## builds and runs the tests; TESTS="layout" only these, BUILD=asan|tsan under a sanitizer, =emu the CUDA kernels
	@.ci/names TESTS 'tests/rules.mk (each BUILD has its own)' '$(known_tests)' $(TESTS)
	@.ci/setup build test $(if $(filter emu-race,$(BUILD)),race)
ifneq (,$(and $(emulated),$(emulation_missing)))
	@echo $(call quote,$(emulation_missing))
else
	$(if $(and $(emulated),$(nccl_missing)),@echo $(call quote,$(nccl_missing)))
	+@$(call build,$(if $(emulated),,$(program)) $(test_programs))
	@GTEST_FILTER="$${GTEST_FILTER:-$($(BUILD)_filter)}" .ci/run_tests $(tests_out) $(TESTS)
endif

check: ## the tests under sanitizers, those of the CUDA kernels and of the page, fuzzing, lint, the rules for files
	@.ci/setup build test race lint browser
	+@MAKE='$(MAKE)' .ci/check

fuzz: BUILD = fuzz
fuzz: inner += BUILD=fuzz CUDA=0
fuzz: ## tries made-up inputs on what reads files and flags; FUZZ="data" only these, FUZZ_SECONDS=600 for so long each
	@.ci/names FUZZ tests/rules.mk '$(known_fuzz)' $(FUZZ)
	@.ci/setup build fuzz
	+@$(call build,$(fuzz_programs))
	@tests/fuzz/run $(FUZZ)

browser: ## opens reports in a headless Chromium and checks what they show
	@.ci/setup build browser
	+@$(call build,$(program))
	@tests/browser/reports $(program)
	@tests/browser/run

nvcc: ## compiles the CUDA kernels for sm_80 and sm_90, as `make check` does, and compares their registers with docs/
registers: ## the same, and writes docs/registers.md
nvcc registers:
ifneq (,$(nvcc_missing))
	@echo $(call quote,$(nvcc_missing))
else
	@.ci/setup build
	+@$(call build,$(nvcc_objects))
	@.ci/registers $(if $(filter registers,$@),write,check) $(nvcc) $(ops_cuda_sources)
endif

bench: ## builds and runs the measurements; BENCH="kernels" only these
	@.ci/names BENCH bench/rules.mk '$(known_bench)' $(BENCH)
	@.ci/setup build
	+@$(call build,$(program) $(bench_programs))
	@for bench in $(BENCH); do echo "bench: $$bench"; $(out)/bench/$$bench || exit; done

bench-pytorch: ## the same training steps by zerobox and by PyTorch, on the CPU; PYTHON=DIR/bin/python has PyTorch
	@.ci/setup build
	+@$(call build,$(program))
	@$(PYTHON) bench/beside_pytorch.py --program=$(program) $(ARGS)

gpu-check: export CUDA = 1
gpu-check: ## on a GPU: is it right, then how fast, in minutes; GPU_CHECK="--parts=4,5" these parts, or --tiny
ifneq (,$(nvcc))
	@.ci/setup build
	+@$(call build,build/gpu-check)
endif
	@[ -x build/gpu-check ] || { echo "gpu-check: wanted nvcc, or build/gpu-check built elsewhere; found neither." \
	  "Set CUDA_HOME to where the toolkit is"; exit 1; }
	@build/gpu-check $(GPU_CHECK)

format: ## lays out every source file by .clang-format
	@.ci/setup lint
	@.ci/source_files cpp h cu cuh | xargs clang-format -i

lint: ## clang-format and clang-tidy, warnings are errors
	@.ci/setup build test lint
	+@unformatted=$$(.ci/source_files cpp h cu cuh | xargs clang-format --dry-run 2>&1 | \
	    sed -n 's/:.*clang-format-violations.*//p' | sort -u); \
	  [ -z "$$unformatted" ] || printf '%s: not laid out by .clang-format; run: make format\n' $$unformatted; \
	  $(inner) -k GOALS=tidy goals && [ -z "$$unformatted" ]

setup: ## installs the Debian packages of all these goals
	@.ci/setup build test race fuzz lint browser

clean: ## removes build/ (trained runs stay)
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | sed 's/make all/make/' | expand -t 22
	@echo '  CUDA=1 builds for GPUs too (the default where there is one), CUDA=0 does not; CUDA_HOME=DIR is where the toolkit is,'
	@echo '  NCCL_HOME=DIR where NCCL is; CUDA_ARCHS="80 90" are the architectures (default: $(CUDA_ARCHS), as far as nvcc knows them).'
	@echo '  V=1 shows whole commands; BUILD=asan or tsan builds with sanitizers, BUILD=emu, emu-asan, emu-race or emu-ptx runs the'
	@echo '  tests of the CUDA kernels without a GPU; -jN uses N cores (default: all).'

# A single file, such as build/asan/tests/layout_test.
build/%: FORCE
	@.ci/setup build test
	+@$(inner) BUILD=$(or $(filter $(variants),$(firstword $(subst /, ,$*))),$(BUILD)) $@
.PHONY: FORCE

else
#---- Second pass: compiling and linking -----------------------------------------------------------------------------

CXX = g++
packages := absl_flags absl_flags_parse absl_flags_usage absl_flags_reflection absl_status absl_statusor absl_strings \
  absl_str_format absl_time libhwy nlohmann_json

release_flags :=
asan_flags := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS
tsan_flags := -fsanitize=thread -fno-omit-frame-pointer
# The sanitizers' instrumentation makes this warning unreliable.
asan_flags += -Wno-maybe-uninitialized
tsan_flags += -Wno-maybe-uninitialized
# libFuzzer is clang's, and finds its way by counters in all code; but in ops/, whose threads would make them differ
# from run to run. Warnings are those of gcc alone.
FUZZ_CXX = clang++
fuzz_flags := $(asan_flags) -fsanitize=fuzzer-no-link,float-cast-overflow -w
ifeq ($(BUILD),fuzz)
  override CXX = $(FUZZ_CXX)
  build/fuzz/obj/ops/%.o: object_flags = -fno-sanitize=fuzzer-no-link
endif

# pkg-config takes a second over Abseil's many modules, so its answer is kept.
include build/packages.mk
build/packages.mk: Makefile
	@mkdir -p build
	@cflags=$$(pkg-config --cflags $(packages)) && libraries=$$(pkg-config --libs $(packages)) && \
	  printf '%s\n' "package_cflags := $$cflags" "package_libraries := $$libraries" >$@

cpp_flags := -I. $(package_cflags)
cxx_flags := -std=c++20 -O2 -g1 -Wall -Wextra -Wno-missing-field-initializers -Werror -ffp-contract=off -pthread \
  $($(host)_flags)
libraries := $(package_libraries)
# Only what needs GoogleTest asks for it: a plain `make` does without.
gtest_libraries = $(shell pkg-config --libs gmock gtest_main)

# These delete the checks for NaN, or change sums, on which the promise of equal bits rests.
forbidden := -ffast-math -Ofast -ffinite-math-only -funsafe-math-optimizations -fassociative-math -freciprocal-math \
  -ffp-contract=fast -ffp-contract=on
found := $(filter $(forbidden),$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(LDFLAGS) $(cxx_flags))
ifneq (,$(found))
  $(error zerobox is not built with $(found): its results would depend on the compiler. Take it out of CXXFLAGS)
endif

compile := $(CXX) $(cpp_flags) $(CPPFLAGS) $(cxx_flags) $(CXXFLAGS)
link := $(CXX) $(cxx_flags) $(CXXFLAGS) $(LDFLAGS)

q := $(if $(V),,@)
say = @$(if $(V),:,echo '  $(1)$(2)')

# $(call update,file,text): writes the file only when its text changes, so that nothing is made again without need.
update = $(if $(filter-out x$(subst $(space),_,$(subst $(newline),_,$(file <$(1)))),x$(subst $(space),_,$(subst \
  $(newline),_,$(2)))),$(shell mkdir -p $(dir $(1)))$(file >$(1),$(2)))
space := $(subst ,, )
define newline


endef

compiler := $(shell $(CXX) --version | head -n 1)
commit := $(or $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null),unknown)
$(call update,$(out)/flags,$(compiler) $(compile) $(link) $(libraries))

objects = $(1:%.cpp=$(out)/obj/%.o)
library := $(out)/libzerobox.a
tests_library := $(out)/libtests.a
# Not in the library, and order-only for tests: a new commit links the program again, and no test.
build_info_object := $(out)/obj/build_info.o

.PHONY: goals tidy
.DELETE_ON_ERROR:
.SECONDARY:
goals: $(GOALS) ; @:

# -MD and not -MMD: what Highway's foreach_target.h includes again counts as a system header.
$(out)/obj/%.o: %.cpp $(out)/flags
	@mkdir -p $(@D)
	$(call say,c++   ,$<)
	$(q)$(compile) $(object_flags) -MD -MP -c $< -o $@

$(build_info_object): $(out)/build_info.cpp $(out)/flags
	@mkdir -p $(@D)
	$(q)$(compile) -MD -MP -c $< -o $@

# The embedded files, and a table of them that trainer/embedded.cpp reads.
embedded_object := $(out)/obj/embedded_files.o
define embedded_source
# Generated by the Makefile.
.macro embed path
.section .rodata
.balign 16
1: .incbin "\path"
2: .byte 0
3: .ascii "\path"
4:
.section .data.rel.ro,"aw"
.8byte 3b, 4b - 3b, 1b, 2b - 1b
.endm
.section .data.rel.ro,"aw"
.balign 8
.globl kZeroboxEmbeddedFiles
kZeroboxEmbeddedFiles:
$(foreach path,$(embedded_files),embed "$(path)"$(newline))
.section .rodata
.balign 8
.globl kZeroboxEmbeddedCount
kZeroboxEmbeddedCount: .8byte $(words $(embedded_files))
.section .note.GNU-stack,"",%progbits
endef
$(call update,$(out)/embedded_files.s,$(embedded_source))

# Where Debian's package has them.
FONTS ?= /usr/share/fonts/truetype/dejavu
build/fonts/%.ttf: $(FONTS)/%.ttf
	@mkdir -p $(@D)
	$(q)cp $< $@

$(embedded_object): $(out)/embedded_files.s $(embedded_files)
	@mkdir -p $(@D)
	$(q)$(CXX) -c $< -o $@

include ops/cuda/build.mk

define build_info
// Generated by the Makefile.
#include "trainer/build_info.h"

namespace zerobox {
const char kVersion[] = "$(VERSION)";
const char kCommit[] = "$(commit)";
const char kCompiler[] = "$(compiler)";
const char kCuda[] = "$(or $(cuda_built),none)";
}  // namespace zerobox
endef
$(call update,$(out)/build_info.cpp,$(build_info))

$(library): $(call objects,$(library_sources)) $(embedded_object) $(cuda_objects) $(out)/cuda $(folders:%=%/rules.mk)
$(tests_library): $(call objects,$(tests_support_sources)) tests/rules.mk
$(library) $(tests_library):
	@mkdir -p $(@D)
	@rm -f $@
	$(q)ar rcs $@ $(filter %.o,$^)

$(out)/zerobox: $(call objects,$(main_source)) $(cuda_program_objects) $(library) $(build_info_object)
	$(call say,link  ,$@)
	$(q)$(link) $^ $(libraries) $(cuda_libraries) -o $@

# It runs the program.
$(out)/tests/program_test: | $(out)/zerobox

build/zerobox: build/release/zerobox
	@ln -f $< $@ 2>/dev/null || cp -f $< $@

$(out)/tests/%: $(out)/obj/tests/%.o $(tests_library) $(library) | $(build_info_object)
	@mkdir -p $(@D)
	$(call say,link  ,$@)
	$(q)$(link) $^ $(build_info_object) $(gtest_libraries) $(libraries) -o $@

build/fuzz/tests/%_fuzz: build/fuzz/obj/tests/fuzz/%_fuzz.o $(call objects,$(tests_fuzz_support)) $(library) \
    | $(build_info_object)
	@mkdir -p $(@D)
	$(call say,link  ,$@)
	$(q)$(link) -fsanitize=fuzzer $^ $| $(libraries) -o $@

$(out)/bench/%: $(out)/obj/bench/%.o $(library) | $(build_info_object)
	@mkdir -p $(@D)
	$(call say,link  ,$@)
	$(q)$(link) $^ $| $(libraries) -o $@

# clang-tidy takes seconds a file, so a file that passed is looked at again only when it or a header of it changes.
tidy_sources := $(library_sources) $(main_source) $(bench_sources) $(if $(cuda_include),$(ops_cuda_device_sources))
tidy_flags = $(cpp_flags) $(cuda_flags) -std=c++20
tidy: $(tidy_sources:%=build/tidy/%.passed)
build/tidy/%.passed: % .clang-tidy
	@mkdir -p $(@D)
	$(call say,tidy  ,$<)
	@$(CXX) $(tidy_flags) -MM -MP -MT $@ -MF $(@:.passed=.d) $<
	@clang-tidy --quiet $< -- $(tidy_flags) -Wall -Wextra -Wno-missing-field-initializers >$(@:.passed=.log) 2>&1 \
	  || { grep -v 'warnings generated' $(@:.passed=.log); exit 1; }
	@touch $@

-include $(patsubst %.cpp,$(out)/obj/%.d,$(all_sources) $(tests_fuzz_sources) $(tests_fuzz_support))
-include $(tidy_sources:%=build/tidy/%.d)

endif
