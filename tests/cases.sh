#!/bin/sh
# cases.sh: the scripts that record a case and that render it again, on copies of them, with a q4x that only answers.
# The words of a call that $FAILS matches end it with 128 after half of what it has to say; behind them stands the
# number of threads, which run.sh gives to its workers alone. Every way to fail must be seen, and must leave what was
# there.
cd "$(dirname "$0")/.." || exit 2
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
pass=0 fail=0
tell() { # WHAT, 0 good
    if test "$2" = 0; then pass=$((pass + 1)); else fail=$((fail + 1)); echo "cases: $1"; sed 's/^/    /' "$t/said"; fi
}
says() { grep -q -e "$1" "$t/said"; }
lines() { wc -l <"$1"; }

mkdir -p "$t/build" "$t/tests" "$t/evidence"
cp tests/evidence.sh "$t/tests/"
cat >"$t/build/q4x" <<'TOOL'
#!/bin/sh
out=
for w; do test "$last" = -o && out=$w; last=$w; done
if test "$FAILS"; then case " $* $OMP_NUM_THREADS " in $FAILS) half=1 ;; esac; fi
case $1 in
version) printf 'q4x 0\ncommit     %s\nkernels    %s\ncuda       %s\n' "$COMMIT" "$KERNELS" "$DEVICE" ;;
run) test -z "$half" || echo "fatal: no cuBLAS" ;;
synth) : >"$3" ;;
tap)
    echo "$*" >"$out"
    case " $* " in
    *" --ids 5,6 "*gemm=cublas,gdn*) echo "ids 1,2,9" ;;
    *"$UNEQUAL"*) echo "ids 1,2,4" ;;
    *) echo "ids 1,2,3" ;;
    esac ;;
bisect) echo "verdict: IDENTICAL (bits_equal) exit 0" ;;
report) echo "# $2 against $3"; test "$half" || cat "$2" "$3" ;;
esac
test -z "$half" || exit 128
TOOL
chmod +x "$t/build/q4x"
unset OMP_NUM_THREADS
export COMMIT=1 KERNELS=2 DEVICE=3 FAILS='' UNEQUAL=none

# Recording: two prompts, nine pairs.
mkdir "$t/evidence/cuda-synth"
cp -r evidence/cuda-case "$t/evidence/" && cp evidence/cuda-synth/*.sh "$t/evidence/cuda-synth/"
printf '3,4\n5,6\n' >"$t/ids"
cp "$t/ids" "$t/evidence/cuda-case/prompts.ids"
o=$t/o
record() {
    sh "$t/evidence/cuda-case/run.sh" "$t/build/q4x" "$o" model.gguf "$t/ids" 3 >"$t/said" 2>&1
    rc=$?
}
anew() { # FAILS: a recording of nothing but dumps of another time
    rm -rf "$o" && mkdir "$o" && echo old >"$o/a.q4d" && echo old >"$o/b.q4d"
    FAILS=$1
    record
    FAILS=
}
none() { ! test -e "$o/rows.tsv" && ! test -e "$o/head.txt" && ! test -e "$o/rows"; }
anew ''
test $rc = 0 && test "$(lines "$o/rows.tsv")" = 18 && grep -q '^commit  *1$' "$o/head.txt" &&
    grep -q '^2	bG	IDENTICAL (bits_equal) exit 0	2	-$' "$o/rows.tsv" &&
    grep -q -e '--ids 5,6 -n 4 --spec cpu:act=bf16 ' "$o/a.q4d" && grep -q -e '--ids 5,6 .*gemm=cublas' "$o/b.q4d" &&
    ! ls "$o"/*.new >/dev/null 2>&1
tell "a recording fails, or lacks something" $?
cp -r "$o" "$t/whole"
FAILS='* bisect *'; record; FAILS=
test $rc = 0 && diff -r "$o" "$t/whole" >"$t/said"
tell "rows of this tool and device do not stay, or are judged again" $?
for other in COMMIT=7 KERNELS=7 DEVICE=7; do
    (export "${other?}"; record; exit $rc)
    test $? = 2 && says 'head.txt: .*7.*: remove .*rows.tsv' && diff -r "$o" "$t/whole" >>"$t/said"
    tell "rows stay, or get a new head, when it is now $other" $?
done
cut_off() { # FILE COMMAND...: as recorded, FILE as the command makes it
    f=$1; shift
    rm -rf "$o" && cp -r "$t/whole" "$o" && "$@" <"$t/whole/$f" >"$o/$f"
}
cut_off head.txt sed 1d; record
test $rc = 2 && says 'head.txt: .*: remove'; tell "rows stay without knowing of how many ids" $?
rm "$o/head.txt"; record
test $rc = 2 && says 'head.txt: .*: remove'; tell "rows stay without a head" $?
cut_off rows.tsv sed 5d; record
test $rc = 2 && says '17 rows, not the 18'; tell "a row that is lost goes unseen" $?
cut_off rows.tsv sed 3s/bg/bG/; record
test $rc = 2 && says '18 rows, not the 18'; tell "a pair that has the row of another goes unseen" $?
anew '* tap * --ids 3,4 *cuda:act=bf16 *'
test $rc = 2 && none && says '^run.sh: prompt 1, cuda:act=bf16: ' && ! says ', pair ' && says 'no row is kept'
tell "an arm that fails is left out" $?
anew '* bisect *b.q4d *'
test $rc = 2 && none && says '^run.sh: prompt 1, pair bB: ' && says 'no row is kept'
tell "a judge that fails is left out" $?
anew '* run *gemm=cublas 2 '
test $rc = 2 && none && says ' 6 rows, not the 18'
tell "pairs are left out that only a worker leaves out" $?
anew '* version *'
test $rc = 2 && none; tell "a tool that does not say what it is gets a head" $?
for way in '*--arm a *' '*--arm b *'; do
    anew "$way"
    test $rc = 2 && says 'no case is kept' && ! test -e "$o/a.q4d" && ! test -e "$o/b.q4d"
    tell "the case is kept though a dump failed: $way" $?
done
anew '* run *gemm=cublas *'
test $rc = 0 && test "$(lines "$o/rows.tsv")" = 6 && grep -q '^cuBLAS left out: fatal' "$o/head.txt" &&
    ! test -e "$o/a.q4d"
tell "cuBLAS is not left out, or not said, or a case of another time is kept" $?
UNEQUAL='--spec cuda:act=bf16 '; anew ''; UNEQUAL=none
test $rc = 1; tell "ids that must be equal are not, and it ends with $rc" $?
sed 's/echo "ids 1,2,3"/:/' "$t/build/q4x" >"$t/mute" && cp "$t/build/q4x" "$t/q4x" && cat "$t/mute" >"$t/build/q4x"
anew ''
test $rc = 2 && says 'no list of ids' && none; tell "runs without ids are equal" $?
cat "$t/q4x" >"$t/build/q4x"
mv "$o" "$t/none"; o=$t/s
synth() { sh "$t/evidence/cuda-synth/run.sh" "$t/build/q4x" "$o" >"$t/said" 2>&1; }
synth; test $? = 0 && test "$(lines "$o/rows.tsv")" = 18 && ! ls "$o"/*.q4d "$o"/*.gguf >/dev/null 2>&1
tell "cuda-synth: a recording fails, or keeps too much" $?
COMMIT=7; synth; test $? = 2 && says 'head.txt: .*7' && grep -q '^commit  *1$' "$o/head.txt"
tell "cuda-synth: rows stay under another commit" $?
COMMIT=1

# Rendering: a case that has all there is, and one with a table alone.
e=$t/evidence/cuda-case
cp "$t/whole"/* "$e/" && cp "$t/s/head.txt" "$t/s/rows.tsv" "$t/evidence/cuda-synth/"
# shellcheck disable=SC2016 # the script's own words
printf '#!/bin/sh\n"$1" report %s/head.txt %s/rows.tsv\n' "$e" "$e" >"$e/detail.sh"
evidence() { # OPTION...
    sh "$t/tests/evidence.sh" "$@" build >"$t/said" 2>&1
    rc=$?
}
rm -f "$e/report.md" "$e/detail.md" "$e/table.txt"
evidence --write
test $rc = 0 && says '^evidence: 17 passed, 0 failed'; tell "outputs that are not there are not written" $?
cp -r "$t/evidence" "$t/rendered"
evidence
test $rc = 0 && says '^evidence: 13 passed, 0 failed'; tell "what was just rendered is not as it was" $?
restore() { rm -rf "$t/evidence" && cp -r "$t/rendered" "$t/evidence"; }
for f in a.q4d b.q4d detail.sh table.sh rows.tsv head.txt report.md detail.md table.txt; do
    rm "$e/$f"; evidence
    test $rc = 1 && says "^FAIL .*$f"; tell "$f is not there, and nobody asks" $?
    restore
done
for f in report.md detail.md table.txt; do
    echo junk >>"$e/$f"; evidence
    test $rc = 1 && says "^FAIL .*$f is not what"; tell "$f has a line too many" $?
    evidence --write
    test $rc = 0 && diff -r "$t/evidence" "$t/rendered" >"$t/said"; tell "$f is not put right" $?
    restore
done
mkdir "$t/evidence/empty" && cp "$e/run.sh" "$t/evidence/empty/"; evidence
test $rc = 1 && says '^FAIL evidence/empty: none of'; tell "a folder without output is a case" $?
restore
for way in '* report a.q4d b.q4d *' '* report *head.txt *'; do
    for option in '' --write; do
        # shellcheck disable=SC2086 # a word, or none
        FAILS=$way; evidence $option; FAILS=
        test $rc = 1 && says '^FAIL .*ended with 128' && diff -r "$t/evidence" "$t/rendered" >>"$t/said"
        tell "evidence.sh $option overwrites, or says nothing: $way" $?
    done
done
printf 'echo half\nexit 1\n' >"$e/table.sh"; evidence --write
test $rc = 1 && says '^FAIL .*table.txt: .*ended with 1' && cmp -s "$e/table.txt" "$t/rendered/cuda-case/table.txt"
tell "half a table is written" $?
echo "cases: $pass passed, $fail failed"
test $fail = 0
