# q4x. `make help` lists the targets; `make info` says what this machine has.
ifeq ($(origin CC),default)
CC := gcc
endif
V ?= release
CUDA ?= auto
TEXT ?= auto
SECONDS ?= 600
# The verdict that the demo must reach.
DEMO_VERDICT := TIE

# The CUDA room needs nvcc, a host g++ and the static runtime, which is a package of its own: auto asks for all three.
NVCC := $(shell command -v nvcc 2>/dev/null)
CUDA_DIR := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC))))
CUDART := $(if $(NVCC),$(firstword $(wildcard $(foreach d,lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib,\
	$(CUDA_DIR)/$d/libcudart_static.a))))
ifeq ($(CUDA),auto)
CUDA := $(if $(filter release,$V),$(if $(CUDART),$(if $(shell command -v g++ 2>/dev/null),1,0),0),0)
endif
ifeq ($(CUDA)$(CUDART),1)
$(error CUDA=1 but there is no $(if $(NVCC),libcudart_static.a beside $(NVCC),nvcc on PATH): install the CUDA toolkit, or say CUDA=0)
endif

# Text prompts need PCRE2 and utf8proc: auto asks for their headers. Without them token ids are the prompt.
header = $(shell printf '\043define PCRE2_CODE_UNIT_WIDTH 8\n\043include <%s>\n' $1 | $(CC) -E - >/dev/null 2>&1 && echo 1)
HAVE_TEXT := $(if $(call header,pcre2.h),$(if $(call header,utf8proc.h),1,0),0)
WITH_TEXT := $(if $(filter auto,$(TEXT)),$(HAVE_TEXT),$(TEXT))
TEXTDEPS := $(if $(filter 0,$(TEXT)),,text)

# The arithmetic is part of the contract: no contraction, no fast math. x86-64-v3 has FMA and AVX2.
MARCH := $(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v3,)
ARITH := -std=c17 -ffp-contract=off -fno-math-errno
WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
OPT_release := -O3 -g
OPT_asan := -O1 -g -fsanitize=address -fno-omit-frame-pointer
OPT_ubsan := -O1 -g -fsanitize=undefined -fno-sanitize-recover=all
OPT_tsan := -O1 -g -fsanitize=thread
OPT_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
OPT := $(OPT_$V)
ifeq ($(OPT),)
$(error V=$V: one of release asan ubsan tsan)
endif

# Libraries: the static one where it exists, else the shared one. Nothing here fails when one is missing.
static = $(or $(filter /%,$(shell $(CC) -print-file-name=lib$1.a 2>/dev/null)),-l$1)
LDLIBS := $(call static,jansson) $(call static,xxhash) $(call static,z) \
	$(if $(filter 1,$(WITH_TEXT)),$(call static,pcre2-8) $(call static,utf8proc)) -lm -ldl -lpthread
# OpenMP: gcc's own, clang's when libomp is there, none under the thread sanitizer (libgomp is noisy there).
CLANG := $(findstring clang,$(notdir $(CC)))
ifneq ($(filter tsan fuzz,$V),)
OMP :=
else ifneq ($(CLANG),)
OMP := $(if $(filter /%,$(shell $(CC) -print-file-name=libomp.so 2>/dev/null)),-fopenmp,)
LDOMP := $(OMP)
else
OMP := -fopenmp
LDOMP := $(call static,gomp)
endif
OMPWARN := $(if $(OMP),,-Wno-unknown-pragmas)

B := build/$(notdir $(CC))-$V$(if $(filter 1,$(CUDA)),-cuda)
# $(EXTRA) is for the caller: EXTRA=-Werror
CFLAGS += $(ARITH) $(OPT) $(WARN) $(OMPWARN) $(OMP) -D_GNU_SOURCE -I. -MMD -MP $(EXTRA)

# The CUDA room: one object per kernels/*.cu, or dev_none.c, which answers "no GPU".
# nvcc's host part keeps out of libstdc++, so that the C compiler can link it.
CUSRC := $(wildcard kernels/*.cu)
ifeq ($(CUDA),1)
NVFLAGS := -std=c++17 -O3 --fmad=false -I. -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80 \
	-Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off,-Wall
CUOBJ := $(CUSRC:%.cu=$B/%.cu.o)
LDLIBS += $(CUDART) -lrt -ldl
endif

# The same .cu files for a C++ compiler of the host, with a device that tests/emu emulates: `make check` proves there that
# kernels give the CPU's bits. tests/cuda/c_x.c is one program on either device; e_x.c asks more of the emulated one.
CXX_EMU := $(shell command -v g++ 2>/dev/null)
EMUFLAGS := -std=c++17 -O2 -g -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -fno-threadsafe-statics \
	-Wall -Wextra -Wno-unused-function -Wno-unknown-pragmas -Itests/emu -I. -MMD -MP \
	$(if $(filter ubsan,$V),$(filter -fsanitize% -fno-sanitize%,$(OPT)))
CUSRC_T := $(wildcard tests/cuda/*.cu)
EMUOBJ := $(if $(CXX_EMU),$(CUSRC:%.cu=$B/emu/%.o) $(patsubst %.cpp,$B/emu/%.o,$(wildcard tests/emu/*.cpp)))
CUTESTS := $(patsubst tests/cuda/%.c,$B/tests/cuda/%,$(wildcard tests/cuda/c_*.c tests/cuda/*_cuda.c))
EMUTESTS := $(if $(CXX_EMU),$(patsubst tests/cuda/%.c,$B/emu/tests/cuda/%,$(wildcard tests/cuda/[ce]_*.c)))
CUHELP := $(patsubst %.c,$B/%.o,$(wildcard tests/cuda/h_*.c))

LIBSRC := $(filter-out $(if $(CUOBJ),kernels/dev_none.c) lib/tok_pre$(if $(filter 1,$(WITH_TEXT)),_none).c,$(wildcard kernels/*.c lib/*.c bisect/*.c))
BINSRC := $(wildcard bin/*.c)
LIBOBJ := $(LIBSRC:%.c=$B/%.o) $(CUOBJ)
BINOBJ := $(BINSRC:%.c=$B/%.o)
# helpers that tests share (tests/h_*.c) come from an archive, so that a program takes just what it names
HELP := $(patsubst %.c,$B/%.o,$(wildcard tests/h_*.c))
HELPLIB := $(if $(HELP),$B/tests/libhelp.a)
TESTS := $(patsubst tests/%.c,$B/tests/%,$(wildcard tests/t_*.c))
# tests that have a long form, reached by the argument "long"
LONG := $(patsubst tests/%.c,$B/tests/%,$(shell grep -ls 'argv\[1\], "long"' tests/t_*.c))
FUZZ := $(patsubst tests/fuzz/%.c,$B/tests/fuzz/%,$(wildcard tests/fuzz/fz_*.c))
MINE := $(wildcard bin/*.[ch] bisect/*.[ch] lib/*.[ch] kernels/*.[ch] kernels/*.cu kernels/*.cuh tests/*.[ch] tests/fuzz/*.[ch] tests/cuda/*.[ch] \
	tests/cuda/*.cu tests/emu/*.h tests/emu/*.cpp)
Q := $(if $(VERBOSE),,@)
NPROC := $(shell nproc 2>/dev/null || echo 2)
# A build of ours in parallel, unless the caller said how.
SUB = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(NPROC))

all: bin/q4x ## build bin/q4x (V=asan|ubsan|tsan CC=clang CUDA=0|1 TEXT=0|1 VERBOSE=1)
.PHONY: FORCE
FORCE:

# Generated text whose time moves only when it changes: everything is rebuilt when a flag changes, version.o when the
# commit or a kernel does. The kernels' hash covers names and bytes: equal hash, equal arithmetic.
keep = >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$B/flags: FORCE
	$(if $(filter 10,$(WITH_TEXT)$(HAVE_TEXT)),$(error TEXT=1 but pcre2.h or utf8proc.h is missing: make deps, or TEXT=0))
	@mkdir -p $(@D); echo '$(CC) $(MARCH) $(CFLAGS) $(NVFLAGS) $(LDLIBS)' $(keep)
$B/build.h: FORCE
	@mkdir -p $(@D); export LC_ALL=C; { \
	printf '#define Q4X_COMMIT "%s"\n' "$$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"; \
	printf '#define Q4X_KERNELS "%s"\n' "$$(sha256sum kernels/*.* | sha256sum | cut -c1-32)"; \
	printf '#define Q4X_FLAGS "%s"\n' '$(strip $(ARITH) $(OPT) $(MARCH) $(OMP))'; \
	printf '#define Q4X_CUDA %s\n#define Q4X_TEXT %s\n' '$(CUDA)' '$(WITH_TEXT)'; } $(keep)
$B/lib/version.o $B/tests/t_tok_pre.o: $B/build.h
$B/lib/version.o $B/tests/t_tok_pre.o: CFLAGS += -include $B/build.h
# What runs before the processor has been checked must run on any x86-64.
$B/bin/main.o $B/lib/machine.o: MARCH := $(if $(MARCH),-march=x86-64,)
$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(if $Q,@echo '  CC    $<')
	$Q$(CC) $(MARCH) $(CFLAGS) -c -o $@ $<
$B/%.cu.o: %.cu $B/flags
	@mkdir -p $(@D)
	$(if $Q,@echo '  NVCC  $<')
	$Q$(NVCC) $(NVFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

bin/q4x: $B/q4x FORCE
	@ln -sf ../$B/q4x $@
$B/q4x: $(BINOBJ) $(LIBOBJ)
	$(if $Q,@echo '  LINK  $@')
	$Q$(CC) $(OPT) -o $@ $^ $(LDOMP) $(LDLIBS)
$B/tests/libhelp.a: $(HELP)
	@rm -f $@; $(AR) rcs $@ $^
# tests/t_x.c is one program
$B/tests/%: $B/tests/%.o $(HELPLIB) $(LIBOBJ)
	$(if $Q,@echo '  LINK  $@')
	$Q$(CC) $(OPT) -o $@ $^ -lcmocka -lmpfr -lgmp $(LDOMP) $(LDLIBS)
# tests/fuzz/fz_x.c holds LLVMFuzzerTestOneInput; driver.c replays files where there is no fuzzer
$B/tests/fuzz/fz_%: $B/tests/fuzz/fz_%.o $(if $(filter fuzz,$V),,$B/tests/fuzz/driver.o) $(HELPLIB) $(LIBOBJ)
	$(if $Q,@echo '  LINK  $@')
	$Q$(CC) $(OPT) $(if $(filter fuzz,$V),-fsanitize=fuzzer) -o $@ $^ -lcmocka $(LDOMP) $(LDLIBS)
$B/emu/%.o: %.cu $B/flags
	@mkdir -p $(@D)
	$(if $Q,@echo '  EMU   $<')
	$Q$(CXX_EMU) $(MARCH) $(EMUFLAGS) -x c++ -c -o $@ $<
$B/emu/%.o: %.cpp $B/flags
	@mkdir -p $(@D)
	$(if $Q,@echo '  CXX   $<')
	$Q$(CXX_EMU) $(MARCH) $(EMUFLAGS) -c -o $@ $<
EMULIB := $(filter-out $(CUOBJ) $B/kernels/dev_none.o,$(LIBOBJ)) $(EMUOBJ)
# commands for tests that call one: an archive without main
$B/libdoor.a: $(filter-out %/main.o,$(BINOBJ))
	@rm -f $@; $(AR) rcs $@ $^
$(EMUTESTS) $B/emu/tests/cuda/bench_cuda: $B/emu/tests/cuda/%: $B/tests/cuda/%.o $(CUHELP) $B/libdoor.a $(HELPLIB) $(EMULIB) $(CUSRC_T:%.cu=$B/emu/%.o)
	$(if $Q,@echo '  LINK  $@')
	@mkdir -p $(@D)
	$Q$(CC) $(OPT) -o $@ $^ -lcmocka $(LDOMP) $(LDLIBS)
$B/emu/q4x: $(BINOBJ) $(EMULIB)
	$(if $Q,@echo '  LINK  $@')
	$Q$(CC) $(OPT) -o $@ $^ $(LDOMP) $(LDLIBS)
# where there is a GPU
$(CUTESTS): $B/tests/cuda/%: $B/tests/cuda/%.o $(CUHELP) $(HELPLIB) $(LIBOBJ) $(if $(CUOBJ),$(CUSRC_T:%.cu=$B/%.cu.o))
	$(if $Q,@echo '  LINK  $@')
	$Q$(CC) $(OPT) -o $@ $^ -lcmocka $(LDOMP) $(LDLIBS)
test-programs: $(TESTS) $(FUZZ) $(EMUTESTS) bin/q4x

demo: ## install what is missing, build, find where two arms part, write evidence.md
	@sh .ci/deps.sh build $(TEXTDEPS)
	+@$(SUB) all
	@sh .ci/demo.sh $(DEMO_VERDICT)

check: ## every test that needs no GPU: units, command line, docs, layers, headers, limits, corpora
	@CC=$(CC) sh .ci/deps.sh build test $(TEXTDEPS)
	+@$(SUB) test-programs
	@CC=$(CC) sh tests/check.sh $B $(TESTS) $(FUZZ) $(EMUTESTS)

check-long: ## the exhaustive forms of the tests (minutes)
	@CC=$(CC) sh .ci/deps.sh build test $(TEXTDEPS)
	+@$(SUB) $(LONG)
	@sh tests/check.sh --long $B $(LONG)

ifneq ($(filter check-cuda cuda-kit,$(MAKECMDGOALS)),)
ifneq ($(CUDA),1)
$(error $(filter check-cuda cuda-kit,$(MAKECMDGOALS)): this build has no CUDA: it takes nvcc on PATH, its static runtime, g++, V=release and not CUDA=0)
endif
endif
check-cuda: ## the tests that need a GPU; fails without one, or without a model or cuBLAS (WITHOUT=demo-Q4_K_M,cublas)
	+@$(SUB) cuda-kit DIR=$B/kit
	@sh tests/cuda.sh $B/kit $B/log-cuda $(WITHOUT)

evidence: all ## the finished cases of evidence/ once more from what they keep: needs no GPU
	@sh tests/evidence.sh --write $B

DIR ?= build/gpu
cuda-kit: all $(CUTESTS) ## check-cuda's programs and models in one folder, for a machine without compilers: DIR=build/gpu LEAN=1
	@sh tests/cuda/kit.sh $B $(DIR) $(if $(LEAN),lean)

fuzz: ## fuzz a parser: T=gguf SECONDS=600; finds go to build/, see fuzz-merge
	@test -f tests/fuzz/fz_$T.c || { echo "make fuzz: T=NAME, one of:" $(patsubst tests/fuzz/fz_%.c,%,$(wildcard tests/fuzz/fz_*.c)); exit 2; }
	@sh .ci/deps.sh build test fuzz $(TEXTDEPS)
	+@$(SUB) CC=clang V=fuzz CUDA=0 build/clang-fuzz/tests/fuzz/fz_$T
	@mkdir -p build/clang-fuzz/corpus/$T tests/fuzz/corpus/$T
	build/clang-fuzz/tests/fuzz/fz_$T -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix=build/clang-fuzz/$T- build/clang-fuzz/corpus/$T tests/fuzz/corpus/$T

fuzz-merge: ## add what fuzzing T=... found to the tracked corpus, minimised
	build/clang-fuzz/tests/fuzz/fz_$T -merge=1 tests/fuzz/corpus/$T build/clang-fuzz/corpus/$T

bench: ## rates and ratios on the demo model; never fails on time
	+@$(SUB) all
	@sh tests/bench.sh

lint: ## clang's warnings as errors, clang-format, clang-tidy, cppcheck, shellcheck, limits, repeated code
	@sh .ci/deps.sh build test fuzz lint text
	+@$(SUB) CC=clang CUDA=0 EXTRA=-Werror test-programs
	@sh tests/lint.sh $(MINE)

format: ## clang-format every C file in place
	@clang-format -i $(MINE)

info: ## what this build has and lacks
	@CC=$(CC) sh .ci/info.sh "$V" "$(CUDA)" "$(NVCC)" "$(OMP)" "$(MARCH)" "$(LDOMP) $(LDLIBS)" "$(WITH_TEXT)"

deps: ## install with apt what build and tests need and lack (DEPS='build test text fuzz lint' for more)
	@CC=$(CC) sh .ci/deps.sh $(or $(DEPS),build test text)

PREFIX ?= /usr/local
install: all ## copy q4x to PREFIX=/usr/local, with the models of its selftest
	install -D -m 755 $B/q4x $(DESTDIR)$(PREFIX)/bin/q4x
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/q4x tests/models/demo.gguf tests/models/micro-a-bf16.gguf

clean: ## remove what was built
	rm -rf build bin/q4x

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

-include $(EMUOBJ:.o=.d) $(CUHELP:.o=.d) $(CUTESTS:=.d) $(EMUTESTS:$B/emu/%=$B/%.d) $(CUSRC_T:%.cu=$B/%.cu.d) $(CUSRC_T:%.cu=$B/emu/%.d)
-include $(LIBOBJ:.o=.d) $(BINOBJ:.o=.d) $(TESTS:=.d) $(FUZZ:=.d) $(HELP:.o=.d) $B/tests/fuzz/driver.d
.PHONY: all demo check check-long check-cuda cuda-kit fuzz fuzz-merge bench lint format info deps install clean help test-programs
.SECONDARY:
.DELETE_ON_ERROR:
