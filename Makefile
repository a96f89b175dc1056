# q4x. `make help` lists the targets.
ifeq ($(origin CC),default)
CC := gcc
endif
V ?= release
CUDA ?= auto
NVCC := $(shell command -v nvcc 2>/dev/null)
ifeq ($(CUDA),auto)
CUDA := $(if $(NVCC),1,0)
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1 but no nvcc on PATH: install the CUDA toolkit or say CUDA=0)
endif

MARCH := $(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v3,)
ARITH := -std=c17 -ffp-contract=off -fno-math-errno $(MARCH)
WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
OPT_release := -O3 -g
OPT_asan := -O1 -g -fsanitize=address -fno-omit-frame-pointer
OPT_ubsan := -O1 -g -fsanitize=undefined -fno-sanitize-recover=all
OPT_tsan := -O1 -g -fsanitize=thread
OMP := $(if $(filter tsan,$(V)),,-fopenmp)
OPT := $(OPT_$(V))
$(if $(OPT),,$(error V=$(V): one of release asan ubsan tsan))

B := build/$(notdir $(CC))-$(V)$(if $(filter 1,$(CUDA)),-cuda)
CFLAGS += $(ARITH) $(OPT) $(WARN) $(OMP) -D_GNU_SOURCE -I. -MMD -MP
LDLIBS := -ljansson -lxxhash -lz -lm -ldl -lpthread

LIBSRC := $(wildcard kernels/*.c lib/*.c bisect/*.c)
BINSRC := $(wildcard bin/*.c)
LIBOBJ := $(LIBSRC:%.c=$B/%.o)
BINOBJ := $(BINSRC:%.c=$B/%.o)
TESTS := $(patsubst tests/%.c,$B/tests/%,$(wildcard tests/t_*.c))

all: bin/q4x

$B/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

bin/q4x: $B/q4x
	@ln -sf ../$B/q4x $@
$B/q4x: $(BINOBJ) $(LIBOBJ)
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

# tests/t_x.c is one program; helpers that tests share are tests/h_*.c
HELP := $(patsubst %.c,$B/%.o,$(wildcard tests/h_*.c))
$B/tests/%: $B/tests/%.o $(HELP) $(LIBOBJ)
	$(CC) $(CFLAGS) -o $@ $^ -lcmocka -lmpfr -lgmp $(LDLIBS)

check: $(TESTS)
	@set -e; for t in $(TESTS); do echo "== $$t"; $$t; done

clean:
	rm -rf build bin/q4x

-include $(LIBOBJ:.o=.d) $(BINOBJ:.o=.d) $(TESTS:=.d) $(HELP:.o=.d)
.PHONY: all check clean
.SECONDARY:
