#!/bin/sh
# gpu.sh BUILD: what `make check` leaves to `make check-cuda`, counted as skipped: the programs of tests/cuda on a real
# device. Without g++ they have not run on the emulated one either, which is said too. And what the script of their kit
# makes of something that is missing, with programs that do nothing.
cd "$(dirname "$0")/.." || exit 2
b=${1:-build/gcc-release}
n=$(find tests/cuda -name 'c_*.c' | wc -l)
echo "skipped: gpu: $n programs need a GPU: make check-cuda"
if ! command -v g++ >/dev/null 2>&1; then
    m=$(find tests/cuda -name '[ce]_*.c' | wc -l)
    echo "skipped: gpu: no g++: the $m programs for the emulated device were not built"
    n=$((n + m))
elif ! test -x "$b/emu/tests/cuda/c_ops"; then
    echo "gpu: 0 passed, 1 failed: there is g++, and $b has no emulator"
    exit 1
fi
pass=0 fail=0
tell() { # WHAT, 0 good
    if test "$2" = 0; then pass=$((pass + 1)); else fail=$((fail + 1)); echo "gpu: $1"; sed 's/^/    /' "$t/said"; fi
}
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
mkdir -p "$t/kit/bin" "$t/kit/tests" "$t/kit/models"
cp tests/cuda/run.sh tests/cuda/sanitize.sh "$t/kit/"
for p in tests/cuda/c_*.c tests/cuda/bench_cuda.c tests/cuda/plant_cuda.c; do
    printf '#!/bin/sh\necho "PASSED $*"\n' >"$t/kit/bin/$(basename "$p" .c)"
done
printf '#!/bin/sh\necho "content 1"\n' >"$t/kit/bin/q4x"
printf '#!/bin/sh\n' >"$t/kit/sanitize.sh"
chmod +x "$t"/kit/bin/*
kit() { # ARGUMENTS...: rc in $rc, table in $t/said
    sh "$t/kit/run.sh" "$t/out" "$@" >"$t/said" 2>&1
    rc=$?
}
says() { grep -q "$1" "$t/said"; }
kit
test $rc = 1 && says '^FAIL demo-Q4_K_M .*--without demo-Q4_K_M' && test "$(grep -c '^FAIL' "$t/said")" = 1
tell "a kit without a model does not fail, or not for that" $?
kit --without demo-Q4_K_M,cublas
test $rc = 0 && says '^-    demo-Q4_K_M  *left out' && says '^-    cublas  *left out' && ! says '^FAIL' &&
    test "$(grep -c 'PASSED --without-cublas' "$t/said")" = 2
tell "what is to be left out is not, or not said" $?
kit --without demo
test $rc = 2 && says 'it can be: demo-Q4_K_M cublas'
tell "a name that is none is taken" $?
: >"$t/kit/models/demo-Q4_K_M.gguf"
kit
test $rc = 0 && says '^ok   demo-Q4_K_M' && ! says 'left out' && ! says 'without'
tell "a whole kit fails" $?
printf '#!/bin/sh\nexit 1\n' >"$t/kit/bin/c_gemm"
kit
test $rc = 1 && says '^FAIL gemm'
tell "a program that fails goes unseen" $?
for p in tests/cuda/c_*.c; do
    echo "$p" >"$t/said"
    grep -q "bin/$(basename "$p" .c)" tests/cuda/run.sh || tell "the kit does not run" 1
done
echo "gpu: $pass passed, $fail failed, $n skipped"
test $fail = 0
