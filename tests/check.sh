#!/bin/sh
# check.sh [--long] BUILD PROGRAM...: run every test, count what passed, what was skipped and what the emulated device
# has not got the time for on the last line.
# Programs are cmocka's (t_*) or replays of a fuzz corpus (fz_*). With --long the programs get the argument "long" and
# the scripts are left out. A job that prints no count and a job that dies are failures.
# --one JOB BUILD LONG is the worker's form.
cd "$(dirname "$0")/.." || exit 2

count() { # log -> "passed failed skipped left", from cmocka's summaries and from lines "NAME: N passed, N failed[, N
    # skipped]" and "NAME: N shapes left to a GPU"
    awk '/^\[  PASSED  \] [0-9]+ test/ { p += $4 }
         /^\[  FAILED  \] [0-9]+ test/ { f += $4 }
         /^\[  SKIPPED \] [0-9]+ test/ { s += $4 }
         /^[a-z_0-9]+: [0-9]+ passed, [0-9]+ failed/ { p += $2; f += $4; s += $6 }
         /^[a-z_0-9]+: [0-9]+ [a-z ]+ left to a GPU$/ { g += $2 }
         END { print p + 0, f + 0, s + 0, g + 0 }' "$1"
}

one() { # JOB BUILD LONG
    job=$1 b=$2 long=$3
    name=$(basename "$job" .sh)
    case $job in tests/cli/run.sh) name=cli ;; esac
    log=$b/log/$name t0=$(date +%s.%N)
    case $job in
    *.sh) sh "$job" "$b" ;;
    */fz_*) "$job" tests/fuzz/corpus/"${name#fz_}" ;;
    *) if test "$long" = 1; then "$job" long; else "$job"; fi ;;
    esac >"$log" 2>&1
    rc=$?
    read -r p f s g <<COUNTED
$(count "$log")
COUNTED
    test $rc = 0 || test "$f" -gt 0 || { f=1; echo "check: $name ended with exit code $rc" >>"$log"; }
    test $rc != 0 || test $((p + f + s)) -gt 0 || { f=1; echo "check: $name ran no test" >>"$log"; }
    echo "$p $f $s $g" >"$log.count"
    word=ok; test "$f" = 0 || word=FAIL
    secs=$(awk -v a="$t0" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    printf '%-5s%-18s %4d passed' "$word" "$name" "$p"
    test "$f" = 0 || printf ', %d failed' "$f"
    test "$s" = 0 || printf ', %d skipped' "$s"
    test "$g" = 0 || printf ', %d left to a GPU' "$g"
    printf '  (%s s)\n' "$secs"
    test "$f" = 0 || sed 's/^/     | /' "$log" | tail -n 80
}

if test "$1" = --one; then
    one "$2" "$3" "$4"
    exit 0
fi
long=0
if test "$1" = --long; then long=1; shift; fi
b=$1; shift
jobs="$*"
test $long = 1 || jobs="$jobs tests/cli/run.sh tests/docs.sh tests/layers.sh tests/headers.sh tests/limits.sh \
    tests/evidence.sh tests/cases.sh tests/gpu.sh"
rm -rf "$b/log"; mkdir -p "$b/log"
# threads that wait should sleep: two jobs share the cores
export OMP_WAIT_POLICY=passive
# shellcheck disable=SC2086 # a list of words
printf '%s\n' $jobs | xargs -P "$(nproc 2>/dev/null || echo 2)" -I{} sh tests/check.sh --one {} "$b" $long
sed -n '/^\[  SKIPPED \] [^0-9]/s/^\[  SKIPPED \]/skipped:/p; /^skipped: /p; / left to a GPU$/p' "$b"/log/* | sort -u
# shellcheck disable=SC2086
printf '%s\n' $jobs | wc -l | { read -r want; cat "$b"/log/*.count | awk -v want="$want" '
    { p += $1; f += $2; s += $3; g += $4; n++ }
    END { if (n != want) { f++; printf "check: %d of %d jobs left no result\n", want - n, want }
          printf "%d passed, %d failed, %d skipped%s\n", p, f, s, (g ? ", " g " left to a GPU" : "")
          exit f != 0 || p == 0 }'; }
