#!/bin/sh
# evidence.sh [--write] BUILD: the finished cases once more from what they keep, no GPU: report.md from a.q4d and b.q4d,
# detail.md by detail.sh, table.txt by table.sh. A case has one of them or more, and what makes it stands beside it.
# Outside the provenance block each must be what stands there, byte for byte; --write puts what is not there, if its
# maker ended with 0: what differs in its provenance alone stays as it is. Twins: the report on one arm twice is another, and so is the table without its first row.
cd "$(dirname "$0")/.." || exit 2
write=0
if test "$1" = --write; then write=1; shift; fi
b=${1:-build/gcc-release}
case $b in /*) q4x=$b/q4x ;; *) q4x=$(pwd)/$b/q4x ;; esac
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
put() { # NEW FILE: whole or not at all
    if cp "$1" "$2.new" && mv "$2.new" "$2"; then return 0; fi
    rm -f "$2.new"
    return 1
}

makers() { # OUTPUT: the files that it is made from
    case $1 in
    report.md) echo a.q4d b.q4d ;;
    detail.md) echo detail.sh ;;
    table.txt) echo table.sh head.txt rows.tsv ;;
    esac
}
render() { # CASE OUTPUT
    case $2 in
    report.md) (cd "$1" && "$q4x" report a.q4d b.q4d) ;;
    detail.md) sh "$1/detail.sh" "$q4x" ;;
    table.txt) sh "$1/table.sh" "$1" ;;
    esac
}
render_other() { # CASE OUTPUT: the same from something else
    case $2 in
    report.md) (cd "$1" && "$q4x" report a.q4d a.q4d) ;;
    table.txt) mkdir -p "$t/cut" && cp "$1/head.txt" "$t/cut/" && sed 1d "$1/rows.tsv" >"$t/cut/rows.tsv" &&
        sh "$1/table.sh" "$t/cut" ;;
    esac
}

output() { # CASE OUTPUT: fails where there is nothing of it; whatever is there must be whole
    there=
    for f in $2 $(makers "$2"); do if test -e "$1/$f"; then there=$f; fi; done
    test -n "$there" || return 1
    for f in $(makers "$2"); do
        test -s "$1/$f" || { tell "$1: there is no $f, of which $2 is made" 1; return 0; }
    done
    render "$1" "$2" >"$t/new"
    rc=$?
    test $rc = 0 && test -s "$t/new"
    tell "$1/$2: what makes it ended with $rc, or said nothing" $?
    if test $rc != 0 || ! test -s "$t/new"; then return 0; fi
    if test $write = 1 && ! same "$1/$2" "$t/new"; then put "$t/new" "$1/$2"; tell "$1/$2 was not written" $?; fi
    same "$1/$2" "$t/new"; tell "$1/$2 is not what $(makers "$2") give" $?
    test "$2" != detail.md || return 0 # which takes as long as all others
    render_other "$1" "$2" >"$t/other" && test -s "$t/other" && ! same "$1/$2" "$t/other"
    tell "$1/$2 is no other when it is made from something else" $?
}

for d in evidence/*/; do
    d=${d%/} found=0
    for o in report.md detail.md table.txt; do output "$d" $o && found=1; done
    test $found = 1; tell "$d: none of report.md, detail.md, table.txt" $?
done
echo "evidence: $passed passed, $failed failed"
test $failed = 0 && test $passed -gt 0
