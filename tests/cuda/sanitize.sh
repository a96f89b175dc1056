#!/bin/sh
# sanitize.sh OUT: the tiny models under compute-sanitizer, from a kit: out of bounds and leaks, races in shared memory,
# reads of what nothing wrote; untapped, tapped and with levers. Twin: each tool finds the fault that plant_cuda has.
# Where the machine has no such tool, or the tool cannot look at its device, that is said and nothing is claimed.
out=$1
cs=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if test -z "$cs"; then echo "sanitize: skipped: no compute-sanitizer here"; exit 0; fi
ids=1,2,3,4,5,6,7,8,9,10,11,12
OMP_NUM_THREADS=2
export OMP_NUM_THREADS
passed=0 failed=0
tell() { # WHAT, 0 good
    if test "$2" = 0; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1"; fi
}
check() { # TOOL COMMAND...: 0 clean, 9 a finding
    tool=$1; shift
    leaks=; test "$tool" = memcheck && leaks="--leak-check full"
    # shellcheck disable=SC2086 # words
    "$cs" --tool "$tool" $leaks --error-exitcode 9 --print-limit 5 "$@" >"$out/sanitize.log" 2>&1
    rc=$?
    grep -q 'Device not supported' "$out/sanitize.log" && { echo "sanitize: skipped: device not supported"; exit 0; }
    test $rc = 0 || { echo "== $tool $*: exit $rc"; head -n 12 "$out/sanitize.log"; }
    return $rc
}

for tool in memcheck racecheck initcheck; do
    check "$tool" bin/plant_cuda "$tool" >/dev/null
    test $? = 9; tell "$tool does not find the fault planted for it" $?
    for m in micro-a micro-b dense-a; do
        model=tests/golden/$m
        check "$tool" bin/q4x run "$model" --ids $ids -n 3 --device cuda
        tell "$tool: run $m" $?
        check "$tool" bin/q4x tap "$model" --ids $ids -n 2 --device cuda --bands --controls -o "$out/sanitize.q4d"
        tell "$tool: tap $m" $?
        check "$tool" bin/q4x tap "$model" --ids $ids -n 2 --mode full -o "$out/sanitize.q4d" \
            --spec cuda:act=bf16,gdn=chunk64-bf16,attn.softmax=online,dot=q8_1
        tell "$tool: tap $m with levers" $?
        rm -f "$out/sanitize.q4d"
    done
done
rm -f "$out/sanitize.log"
echo "sanitize: $passed passed, $failed failed, $cs"
test $failed = 0
