#!/bin/sh
# run.sh Q4X OUT [MODEL [IDS [N]]]: the same 50 prompts on both devices, and under one lever after the other on the way
# from cpu:act=bf16 to a GPU as engines use it. Prompt k of prompts.ids is sentences k, k+1, k+2 of sentences.txt
# through the demo model's tokenizer, fixed before any of this was run. For each pair of arms: how many prompts give
# another list of ids, and what the judge says of each. All rows of all nodes are kept while a pair is judged: most read
# gemm. OUT gets head.txt and rows.tsv, table.txt that table.sh makes of them, and one case: a.q4d, b.q4d. Rows that are
# in OUT already stay, if head.txt says that this tool on this device gave them. Ends with 1 when a pair that must be
# IDENTICAL is not, with 2 when anything failed: then no row is kept. Give OUT as a relative path: the kept dumps record
# the commands as they were typed.
q4x=$1 out=$2 model=${3:-tests/models/demo.gguf} n=${5:-16}
here=$(cd "$(dirname "$0")" && pwd)
ids=${4:-$here/prompts.ids}
if ! test -x "$q4x" || ! mkdir -p "$out"; then echo "run.sh Q4X OUT [MODEL [IDS [N]]]" >&2; exit 2; fi
prompts=$(wc -l <"$ids")
say() { echo "run.sh: $*" >&2; }

# NAME ARM, each tapped once a prompt
arms="c cpu
C cuda
b cpu:act=bf16
B cuda:act=bf16
g cuda:act=bf16,gemm=cublas
h cuda:act=bf16,gdn=chunk64-bf16
G cuda:act=bf16,gemm=cublas,gdn=chunk64-bf16
f cuda:gemm=cublas"
pairs=$(sh "$here/table.sh" --pairs)
left_out=
if ! try=$("$q4x" run "$model" --ids 1 -n 1 --spec cuda:gemm=cublas 2>&1); then
    left_out="cuBLAS left out: $try"
    gone=$(echo "$arms" | awk '/cublas/ { printf "%s", $1 }')
    arms=$(echo "$arms" | grep -v cublas)
    pairs=$(echo "$pairs" | awk -v gone="[$gone]" '($1 $2) !~ gone')
fi

# PROMPT SPEC N OPTION...
tap() {
    line=$(sed -n "${1}p" "$ids") spec=$2 count=$3
    shift 3
    "$q4x" tap "$model" --ids "$line" -n "$count" --spec "$spec" --bands "$@"
}

# Forward of the first id that two taps printed otherwise, - where there is none. Fails without both lists.
first_other() {
    sed -n 's/^ids //p' "$1" "$2" | awk -F, 'NR == 1 { n = split($0, x, ",") }
        NR == 2 { for (i = 1; i <= n || i <= NF; i++) if ($i "" != x[i] "") break
                  print (i <= n || i <= NF ? i - 1 : "-") }
        END { exit NR != 2 }'
}

# Prompt k: all arms, all pairs, a line a pair. TMP is for the dumps.
rows_of() { # K TMP
    k=$1 tmp=$2
    echo "$arms" | while read -r name spec; do
        tap "$k" "$spec" "$n" --rows all --node '*' -o "$tmp/$name.q4d" >"$tmp/$name.txt" 2>&1 ||
            { say "prompt $k, $spec: $(tail -n 1 "$tmp/$name.txt")"; exit 2; }
    done || return 2
    echo "$pairs" | while read -r a b must _; do
        set --
        case $a$b in b[gG]) set -- --device-null "$tmp/b.q4d" "$tmp/B.q4d" ;; esac
        "$q4x" bisect "$tmp/$a.q4d" "$tmp/$b.q4d" "$@" --session "$tmp/s" >"$tmp/said" 2>&1
        rc=$?
        verdict=$(sed -n 's/^verdict: //p' "$tmp/said")
        rm -rf "$tmp/s"
        case $verdict in
        *" exit $rc") ;;
        *) say "prompt $k, pair $a$b: $(tail -n 1 "$tmp/said")"; exit 2 ;;
        esac
        first=$(first_other "$tmp/$a.txt" "$tmp/$b.txt") || { say "prompt $k, pair $a$b: no list of ids"; exit 2; }
        printf '%d\t%s%s\t%s\t%s\t%s\n' "$k" "$a" "$b" "$verdict" "$first" "$must"
    done
}
one() { # K
    tmp=$(mktemp -d) || return 2
    rows_of "$1" "$tmp" >"$out/rows/$1"
    rc=$?
    rm -rf "$tmp"
    return $rc
}

head_now() { # what ran: rows hold for this and nothing else
    test -z "$left_out" || echo "$left_out"
    echo "$n ids each, ${model##*/}"
    tool=$("$q4x" version) && echo "$tool" | grep -E '^(commit|kernels|cuda) ' &&
        test "$(echo "$tool" | grep -cE '^(commit|kernels|cuda) ')" = 3
}

# Rows of another tool, or on another device, must not get this one's name.
of_now() { # HEAD
    had=$out/head.txt
    test -e "$had" || had=/dev/null
    cmp -s "$had" "$1" && return
    was=$(diff "$had" "$1" | sed -n '/^< /{s///p;q;}') is=$(diff "$had" "$1" | sed -n '/^> /{s///p;q;}')
    say "$out/head.txt: '$was', this run: '$is': remove $out/rows.tsv to measure again"
    return 2
}

# One row of each pair for each prompt, in this order.
whole() { # ROWS
    echo "$pairs" | awk -v n="$prompts" '{ p[NR] = $1 $2 }
        END { for (k = 1; k <= n; k++) for (i = 1; i <= NR; i++) print k "\t" p[i] }' >"$out/want.tsv"
    cut -f 1,2 "$1" | cmp -s - "$out/want.tsv"
    rc=$? want=$(wc -l <"$out/want.tsv")
    rm -f "$out/want.tsv"
    test $rc = 0 || say "$1: $(wc -l <"$1") rows, not the $want of $prompts prompts under each pair"
    return $rc
}

# head.txt comes first: rows that stand there have their head.
measure() { # HEAD
    rm -rf "$out/rows" && mkdir "$out/rows" || return 2
    jobs=$(($(nproc) / 2))
    seq "$prompts" | OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
        xargs -P "$((jobs > 8 ? 8 : jobs > 0 ? jobs : 1))" -n 1 \
        sh "$here/run.sh" "$q4x" "$out" "$model" "$ids" "$n" --prompt || { say "no row is kept"; return 2; }
    cat "$out"/rows/* | sort -n -k 1,1 -s >"$out/rows.new" && whole "$out/rows.new" &&
        mv "$1" "$out/head.txt" && mv "$out/rows.new" "$out/rows.tsv" && rm -rf "$out/rows"
}

# The case: the prompt whose ids differ first between the processor and a GPU as engines use it. Bits of all nodes up to
# the id after that, small enough to keep. Both dumps or none.
keep() {
    rm -f "$out/a.q4d" "$out/b.q4d"
    row=$(awk -F'\t' '$2 == "bG" && $4 != "-" { print $4, $1 }' "$out/rows.tsv" | sort -n | head -n 1)
    test -n "$row" || return 0
    for x in a:b b:G; do
        spec=$(echo "$arms" | sed -n "s/^${x#*:} //p") x=${x%:*}
        tap "${row#* }" "$spec" $((${row% *} + 2)) --mode hash --controls --arm "$x" -o "$out/$x.q4d" >/dev/null ||
            { rm -f "$out/a.q4d" "$out/b.q4d"; say "prompt ${row#* }, $spec: no case is kept"; return 2; }
    done
}

if test "$6" = --prompt; then one "$7"; exit; fi
head_now >"$out/head.new" || { say "$q4x version: no commit, kernels or device"; exit 2; }
if test -s "$out/rows.tsv"; then of_now "$out/head.new" && whole "$out/rows.tsv"
else measure "$out/head.new"
fi || { rm -rf "$out/head.new" "$out/rows.new" "$out/rows"; exit 2; }
rm -f "$out/head.new"
keep || exit 2
if ! sh "$here/table.sh" "$out" >"$out/table.new"; then rm -f "$out/table.new"; exit 2; fi
mv "$out/table.new" "$out/table.txt"
cat "$out/table.txt"
awk -F'\t' '$5 == "identical" { n++; if ($3 !~ /^IDENTICAL/ || $4 != "-") bad++ }
    END { exit !(n > 0 && !bad) }' "$out/rows.tsv"
