#!/bin/sh
# sanitize.sh OUT: the tiny models under compute-sanitizer, from a kit: out of bounds and leaks, races in shared memory,
# reads of what nothing wrote; untapped, tapped and with levers. Twin: each tool finds the fault that plant_cuda has.
# Where the machine has no such tool, or the tool cannot look at its device, that is said and it ends with 77. The tool
# is asked once, before anything is checked: a device that it refuses later is a failure.
out=$1
log=$out/sanitize.log
ids=1,2,3,4,5,6,7,8,9,10,11,12
OMP_NUM_THREADS=2
export OMP_NUM_THREADS
passed=0 failed=0
skip() { # WHY
    echo "sanitize: skipped: $1"
    exit 77
}
under() { # TOOL COMMAND...: 0 clean, 9 a finding, or as the command itself ends; what was said is in the log
    tool=$1; shift
    leaks=; test "$tool" = memcheck && leaks="--leak-check full"
    # shellcheck disable=SC2086 # words
    "$cs" --tool "$tool" $leaks --error-exitcode 9 --print-limit 5 "$@" >"$log" 2>&1
}
refused() { grep -q 'Device not supported' "$log"; }
tell() { # WHAT, EXIT STATUS, the one WANTED
    if test "$2" = "$3" && ! refused; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAIL $1: exit $2"
    head -n 12 "$log"
}

cs=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
test -n "$cs" || skip "no compute-sanitizer here"
under memcheck bin/q4x run tests/golden/micro-a --ids 1 -n 1 --device cuda
if refused; then skip "device not supported by $cs"; fi
for tool in memcheck racecheck initcheck; do
    under "$tool" bin/plant_cuda "$tool"
    tell "$tool does not find the fault planted for it" $? 9
    for m in micro-a micro-b dense-a; do
        model=tests/golden/$m
        under "$tool" bin/q4x run "$model" --ids $ids -n 3 --device cuda
        tell "$tool: run $m" $? 0
        under "$tool" bin/q4x tap "$model" --ids $ids -n 2 --device cuda --bands --controls -o "$out/sanitize.q4d"
        tell "$tool: tap $m" $? 0
        under "$tool" bin/q4x tap "$model" --ids $ids -n 2 --mode full -o "$out/sanitize.q4d" \
            --spec cuda:act=bf16,gdn=chunk64-bf16,attn.softmax=online,dot=q8_1
        tell "$tool: tap $m with levers" $? 0
        rm -f "$out/sanitize.q4d"
    done
done
rm -f "$log"
echo "sanitize: $passed passed, $failed failed, $cs"
test $failed = 0
