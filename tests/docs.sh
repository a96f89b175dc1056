#!/bin/sh
# docs.sh [--update] BUILD: the README is tested like code.
# shellcheck disable=SC2016,SC2013 # backquotes are meant, words too
#
# 1. `<!-- from: COMMAND -->` .. `<!-- end -->` holds what COMMAND (q4x ... or make help) prints.
# 2. Every `$ q4x ...` in a fenced block prints what stands below it. A line `...` stands for any number of lines. All run
#    in order in one empty folder, where `tests` leads to ours.
# 3. Every command, lever and tap of the program stands in the README, and no tap that does not exist.
# 4. Every path of ours that the README names is there. Every op has a contract with all its fields.
# --update rewrites 1 and 2 in place; read the diff before you commit it.
update=0
if test "$1" = --update; then update=1; shift; fi
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
build=${1:-build/gcc-release-cuda}
case $build in /*) ;; *) build=$root/$build ;; esac
test -x "$build/q4x" || { echo "docs: there is no $build/q4x: run make"; exit 1; }
PATH=$build:$PATH
unset MAKEFLAGS MAKELEVEL
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
pass=0 fail=0
good() { pass=$((pass + 1)); }
bad() { fail=$((fail + 1)); echo "docs: $*"; }

# A build without text prompts gives the ids of the text instead; what shows text itself stays as it is, and is counted.
has_text=$(q4x version --json | grep -c '"text": true')
shows_text() { case $1 in *'q4x run '*' -p '* | *'q4x tokenize '*' -p '*) test "$has_text" = 0 ;; *) false ;; esac }
as_ids() { test "$has_text" = 0 && set -- "$(echo "$1" | sed 's/-p "The day after Monday is"/--ids 366,380,486,573,261/')"; echo "$1"; }

# produce COMMAND: its output, in the examples' folder
produce() { (cd "$tmp/run" && sh -c "$(as_ids "$1")" 2>&1 </dev/null); }

# rewrite README: print it with every generated block and example output made anew
rewrite() {
    rm -rf "$tmp/run"; mkdir "$tmp/run"; ln -s "$root/tests" "$tmp/run/tests"; ln -s "$root/Makefile" "$tmp/run/Makefile"
    fence=0 skip=0
    while IFS= read -r line || test -n "$line"; do
        case $line in
        '<!-- from: '*' -->')
            printf '%s\n' "$line"
            cmd=${line#'<!-- from: '}; produce "${cmd%' -->'}"
            skip=1; continue ;;
        '<!-- end -->') skip=0 ;;
        '```'*) if test $fence = 1; then fence=0 skip=0; else fence=1; fi ;;
        '$ q4x '*)
            if test $fence = 1; then
                printf '%s\n' "$line"; skip=0
                if ! shows_text "$line"; then produce "${line#'$ '}"; skip=1; fi
                continue
            fi ;;
        '$ '*) if test $fence = 1; then skip=0; fi ;;
        esac
        test $skip = 1 || printf '%s\n' "$line"
    done <"$1"
}

# fits EXPECTED ACTUAL: the same lines, `...` in EXPECTED standing for any number of them
fits() {
    awk -v expected="$1" '
        function rest(i, j) {
            for (; i <= nw; i++) {
                if (want[i] == "...") { for (; j <= ng + 1; j++) if (rest(i + 1, j)) return 1; return 0 }
                if (j > ng || want[i] != got[j]) { if (j > far) far = j; if (i > wfar) wfar = i; return 0 }
                j++
            }
            return j == ng + 1
        }
        { got[++ng] = $0 }
        END {
            while ((getline line < expected) > 0) want[++nw] = line
            if (rest(1, 1)) exit 0
            printf "line %d is\n    %s\nit says now\n    %s\n", wfar, want[wfar], got[far]
            exit 1
        }' "$2"
}

if test $update = 1; then
    rewrite README.md >"$tmp/new"
    if fits README.md "$tmp/new" >/dev/null; then echo "docs: README.md is up to date"
    else cat "$tmp/new" >README.md; echo "docs: README.md rewritten; lines '...' in examples are lost where it differed"; fi
    exit 0
fi

rewrite README.md >"$tmp/new"
if why=$(fits README.md "$tmp/new"); then good; else bad "README.md: $why"; fi

for c in $(q4x help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    if grep -q "q4x $c" README.md; then good; else bad "README.md: command $c is missing"; fi
done
for l in $(q4x levers --json | tr -d ' ",' | sed -n 's/^name://p'); do
    if grep -q "\`$l\`" README.md; then good; else bad "README.md: lever or profile $l is missing"; fi
done
sed -n 's/^VERDICT(\([A-Z_]*\), \([0-9]*\),.*/| `\1` | \2 |/p' bisect/verdicts.def >"$tmp/verdicts"
while IFS= read -r v; do
    if grep -qF "$v" README.md; then good; else bad "README.md: no row of verdicts begins $v"; fi
done <"$tmp/verdicts"
# taps: names without "Lxx."; the README's table is between the marks
for m in tests/models/demo.gguf tests/golden/dense-a; do q4x info --nodes $m; done |
    sed 's/ .*//; s/^L[0-9]*\.//' | sort -u >"$tmp/taps"
sed -n '/^<!-- taps -->/,/^<!-- end -->/p' README.md | grep -o '`[a-z][a-z.]*`' | tr -d '\140' | sort -u >"$tmp/listed"
if test -s "$tmp/taps" && why=$(diff "$tmp/taps" "$tmp/listed"); then good; else bad "README.md: taps (< in the program, > in the README): $why"; fi
for p in $(grep -o '`\(bin\|lib\|kernels\|bisect\|tests\|evidence\|\.ci\)/[A-Za-z0-9_./*-]*`' README.md | tr -d '\140' | sort -u); do
    # shellcheck disable=SC2086 # a glob
    if ls -d $p >/dev/null 2>&1; then good; else bad "README.md: there is no $p"; fi
done

# contracts: the first comment of the header that declares an op's function says its class, order, roundings, where it
# uses fma, what becomes of special values, its bound, the levers it reads. `alias` is never executed.
fields='MOVE|EXACT|ORDERED|BOUNDED order rounds?|rounding|rounded fmaf?|FMA special|NaN bounds?|bands?|Bands? levers?'
contract() { # HEADER OP: what its contract lacks
    sed '/\*\//q' "$1" >"$tmp/contract"
    for field in "$2" $fields; do grep -qwE "$field" "$tmp/contract" || printf ' %s' "$field"; done
}
for op in $(sed -n 's/^OP(\([a-z0-9_]*\),.*/\1/p' kernels/ops.def); do
    test "$op" != alias || continue
    h=$(grep -lw "${op}_cpu" kernels/*.h | head -n 1)
    if test -z "$h"; then bad "kernels: no header declares ${op}_cpu"; continue; fi
    lacks=$(contract "$h" "$op")
    if test -z "$lacks"; then good; else bad "$h: the contract of $op lacks:$lacks"; fi
done
printf '/* x.h: EXACT. order, rounds, fma, NaN, bound */\n/* levers */\n' >"$tmp/x.h"
if test "$(contract "$tmp/x.h" x)" = ' levers?'; then good; else bad "twin: a contract without levers passed"; fi

# The twins: a wrong table, a wrong example, a missing line must be seen; an honest text must pass.
twin() { # text fits?
    printf '%b' "$1" >"$tmp/t.md"
    rewrite "$tmp/t.md" >"$tmp/t.new"
    if fits "$tmp/t.md" "$tmp/t.new" >/dev/null; then r=yes; else r=no; fi
    if test $r = "$2"; then good; else bad "twin: '$1' fits: $r"; fi
}
twin 'text\n<!-- from: q4x levers | head -n 1 | cut -c1-3 -->\nact\n<!-- end -->\ntext\n' yes
twin 'text\n<!-- from: q4x levers | head -n 1 | cut -c1-3 -->\nacr\n<!-- end -->\ntext\n' no
twin '```\n$ q4x help | head -n 1\nusage: q4x COMMAND [ARGUMENT...]\n```\n' yes
twin '```\n$ q4x help | head -n 1\nusage: q4x\n```\n' no
twin '```\n$ q4x help\nusage: q4x COMMAND [ARGUMENT...]\n...\n```\n' yes
twin '```\n$ q4x help\nusage: q4x COMMAND [ARGUMENT...]\n```\n' no
skipped=0
if test "$has_text" = 0; then
    skipped=$(grep -cE '^\$ q4x (tokenize|run) .* -p ' README.md)
    echo "skipped: docs: $skipped examples: this build has no text prompts"
fi
echo "docs: $pass passed, $fail failed, $skipped skipped"
test $fail = 0
