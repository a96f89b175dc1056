#!/bin/sh
# evidence.sh [--write] BUILD: the finished cases once more from what they keep, no GPU: report.md from a.q4d and b.q4d,
# detail.md by detail.sh, table.txt by table.sh. Outside the provenance block each must be what stands there, byte for byte; --write
# puts it there. Twin: the same report on one arm twice is another.
cd "$(dirname "$0")/.." || exit 2
write=0
if test "$1" = --write; then write=1; shift; fi
q4x=$(pwd)/${1:-build/gcc-release}/q4x
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
passed=0 failed=0
tell() { # WHAT, 0 good
    if test "$2" = 0; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1"; fi
}
bare() { sed '/^<!-- provenance -->$/,/^<!-- \/provenance -->$/d' "$1"; }
same() { # FILE NEW
    bare "$1" >"$t/was" 2>/dev/null && bare "$2" >"$t/is" && test -s "$t/is" && cmp -s "$t/was" "$t/is"
}
report() { (cd "$1" && "$q4x" report "$2" "$3"); }

for d in evidence/*/; do
    d=${d%/}
    if test -e "$d/a.q4d"; then
        report "$d" a.q4d b.q4d >"$t/new" || tell "$d: q4x report" 1
        test $write = 0 || cp "$t/new" "$d/report.md"
        same "$d/report.md" "$t/new"; tell "$d/report.md is not what its dumps give" $?
        report "$d" a.q4d a.q4d >"$t/new"
        ! same "$d/report.md" "$t/new"; tell "$d: the report on one arm twice is no other" $?
    fi
    if test -e "$d/detail.sh"; then
        sh "$d/detail.sh" "$q4x" >"$t/new" || tell "$d/detail.sh" 1
        test $write = 0 || cp "$t/new" "$d/detail.md"
        same "$d/detail.md" "$t/new"; tell "$d/detail.md is not what detail.sh gives" $?
    fi
    if test -e "$d/table.sh" && test -e "$d/rows.tsv"; then
        sh "$d/table.sh" "$d" >"$t/new"
        test $write = 0 || cp "$t/new" "$d/table.txt"
        same "$d/table.txt" "$t/new"; tell "$d/table.txt is not what its rows give" $?
        mkdir "$t/cut" && cp "$d/head.txt" "$t/cut/" && sed 1d "$d/rows.tsv" >"$t/cut/rows.tsv"
        sh "$d/table.sh" "$t/cut" >"$t/new"
        ! same "$d/table.txt" "$t/new"; tell "$d: the table of fewer rows is no other" $?
        rm -rf "$t/cut"
    fi
done
echo "evidence: $passed passed, $failed failed"
test $failed = 0 && test $passed -gt 0
