#!/bin/sh
# gpu.sh BUILD: what `make check` leaves to `make check-cuda`, counted as skipped: the programs of tests/cuda on a real
# device. Without g++ they have not run on the emulated one either, which is said too. And what the scripts of their kit
# make of something that is missing or fails, with programs that do nothing and a compute-sanitizer that only answers.
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
# compute-sanitizer: $ANSWERS to its calls in turn, the last one to the rest; only clean finds what is planted
mkdir "$t/tool"
cat >"$t/tool/compute-sanitizer" <<'TOOL'
#!/bin/sh
call=$*
read -r n <"$CALLS"
echo $((n + 1)) >"$CALLS"
set -- $ANSWERS
while test $# -gt 1 && test "$n" -gt 0; do shift; n=$((n - 1)); done
case $1 in
clean) case $call in *plant_cuda*) exit 9 ;; esac ;;
blind) ;;
finding) echo "========= Invalid __global__ write"; exit 9 ;;
unsupported) echo "========= Error: Device not supported"; exit "$UNSUPPORTED" ;;
esac
TOOL
chmod +x "$t"/kit/bin/* "$t/tool/compute-sanitizer"
PATH=$t/tool:$PATH
export ANSWERS=unsupported UNSUPPORTED=1 CALLS="$t/calls"
kit() { # ARGUMENTS...: rc in $rc, table in $t/said
    echo 0 >"$CALLS"
    sh "$t/kit/run.sh" "$t/out" "$@" >"$t/said" 2>&1
    rc=$?
}
sanitize() { # ANSWER..., of which the first is to the question whether the device is supported
    ANSWERS=$*
    echo 0 >"$CALLS"
    (cd "$t/kit" && sh sanitize.sh "$t/out") >"$t/said" 2>&1
    rc=$?
}
says() { grep -q "$1" "$t/said"; }
kit
test $rc = 1 && says '^FAIL demo-Q4_K_M .*--without demo-Q4_K_M' && test "$(grep -c '^FAIL' "$t/said")" = 1
tell "a kit without a model does not fail, or not for that" $?
kit --without demo-Q4_K_M,cublas
test $rc = 0 && says '^-    demo-Q4_K_M  *left out' && says '^-    cublas  *left out' && ! says '^FAIL' &&
    says '^-    sanitize .* skipped: device not supported' && says ' 0 failed, 3 skipped$' &&
    test "$(grep -c 'PASSED --without-cublas' "$t/said")" = 2
tell "what is to be left out, or cannot run here, is not, or is not said and counted" $?
kit --without demo
test $rc = 2 && says 'it can be: demo-Q4_K_M cublas'
tell "a name that is none is taken" $?
: >"$t/kit/models/demo-Q4_K_M.gguf"
ANSWERS=clean
kit
test $rc = 0 && says '^ok   demo-Q4_K_M' && ! says 'left out' && ! says 'without' && says ' 0 failed, 0 skipped$' &&
    says '^ok   sanitize .* 30 passed, 0 failed'
tell "a whole kit fails" $?
printf '#!/bin/sh\nexit 1\n' >"$t/kit/bin/c_gemm"
printf '#!/bin/sh\nexit 77\n' >"$t/kit/bin/c_topk"
ANSWERS=unsupported
kit
test $rc = 1 && says '^FAIL gemm' && says '^FAIL topk' && says ' 2 failed, 1 skipped$'
tell "a program that fails goes unseen, or is a skip that it did not say" $?
sanitize clean
test $rc = 0 && says '^sanitize: 30 passed, 0 failed'
tell "sanitize.sh: a clean run fails" $?
sanitize clean clean finding clean
test $rc = 1 && says '^FAIL memcheck: run micro-a: exit 9' && says '^sanitize: 29 passed, 1 failed'
tell "sanitize.sh: a finding goes unseen" $?
sanitize clean blind clean
test $rc = 1 && says '^FAIL memcheck does not find the fault' && says '^sanitize: 29 passed, 1 failed'
tell "sanitize.sh: a tool that does not find what is planted goes unseen" $?
for UNSUPPORTED in 0 1; do
    sanitize unsupported
    test $rc = 77 && says '^sanitize: skipped: device not supported'
    tell "sanitize.sh: a device that is not supported is a failure, or not said" $?
    sanitize clean clean finding finding finding unsupported
    test $rc = 1 && says '^FAIL memcheck: run micro-a: exit 9' && says '^sanitize: 1 passed, 29 failed'
    tell "sanitize.sh: three findings are lost when the device is refused after them" $?
    sanitize clean clean clean unsupported
    test $rc = 1 && says '^sanitize: 2 passed, 28 failed'
    tell "sanitize.sh: a device that is refused after the first run is clean, or skipped" $?
done
for p in tests/cuda/c_*.c; do
    echo "$p" >"$t/said"
    grep -q "bin/$(basename "$p" .c)" tests/cuda/run.sh || tell "the kit does not run" 1
done
echo "gpu: $pass passed, $fail failed, $n skipped"
test $fail = 0
