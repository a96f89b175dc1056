#!/bin/sh
# run.sh Q4X OUT [MODEL [IDS [N]]]: the same 50 prompts on both devices, and under one lever after the other on the way
# from cpu:act=bf16 to a GPU as engines use it. Prompt k of prompts.ids is sentences k, k+1, k+2 of sentences.txt through
# the demo model's tokenizer, fixed before any of this was run. For each pair of arms: how many prompts give another list
# of ids, and what the judge says of each. All rows of all nodes are kept while a pair is judged: most read gemm. OUT gets
# head.txt and rows.tsv, table.txt that table.sh makes of them, and one case: a.q4d, b.q4d. Rows that are in OUT already
# stay. Ends with 1 when a pair that must be IDENTICAL is not. Give OUT as a relative path: the kept dumps record
# the commands as they were typed.
q4x=$1 out=$2 model=${3:-tests/models/demo.gguf} n=${5:-16}
here=$(cd "$(dirname "$0")" && pwd)
ids=${4:-$here/prompts.ids}
if ! test -x "$q4x" || ! mkdir -p "$out"; then echo "run.sh Q4X OUT [MODEL [IDS [N]]]" >&2; exit 2; fi

# NAME ARM, each tapped once a prompt
arms="c cpu
C cuda
b cpu:act=bf16
B cuda:act=bf16
g cuda:act=bf16,gemm=cublas
h cuda:act=bf16,gdn=chunk64-bf16
G cuda:act=bf16,gemm=cublas,gdn=chunk64-bf16
f cuda:gemm=cublas"
if ! try=$("$q4x" run "$model" --ids 1 -n 1 --spec cuda:gemm=cublas 2>&1); then
    echo "cuBLAS left out: $try" >"$out/left-out.txt"
    arms=$(echo "$arms" | grep -v cublas)
fi
pairs=$(sh "$here/table.sh" --pairs)

# PROMPT SPEC N OPTION...
tap() {
    line=$(sed -n "${1}p" "$ids") spec=$2 count=$3
    shift 3
    "$q4x" tap "$model" --ids "$line" -n "$count" --spec "$spec" --bands "$@"
}

# Prompt k: all arms, all pairs, a line a pair.
one() {
    k=$1 tmp=$(mktemp -d) || return 2
    echo "$arms" | while read -r name spec; do
        tap "$k" "$spec" "$n" --rows all --node '*' -o "$tmp/$name.q4d" >"$tmp/$name.txt" 2>&1 ||
            echo "prompt $k, $spec: $(tail -n 1 "$tmp/$name.txt")" >&2
    done
    echo "$pairs" | while read -r a b must _; do
        if ! test -e "$tmp/$a.q4d" || ! test -e "$tmp/$b.q4d"; then continue; fi
        set --
        case $a$b in b[gG]) set -- --device-null "$tmp/b.q4d" "$tmp/B.q4d" ;; esac
        verdict=$("$q4x" bisect "$tmp/$a.q4d" "$tmp/$b.q4d" "$@" --session "$tmp/s" 2>&1 | sed -n 's/^verdict: //p')
        rm -rf "$tmp/s"
        first=$(sed -n 's/^ids //p' "$tmp/$a.txt" "$tmp/$b.txt" | awk -F, 'NR == 1 { split($0, x, ",") }
            NR == 2 { for (i = 1; i <= NF; i++) if ($i != x[i]) { print i - 1; exit } }')
        printf '%d\t%s%s\t%s\t%s\t%s\n' "$k" "$a" "$b" "${verdict:-no verdict}" "${first:--}" "$must"
    done >"$out/rows/$k"
    rm -rf "$tmp"
}

# The case: the prompt whose ids differ first between the processor and a GPU as engines use it. Bits of all nodes up to the
# id after that, small enough to keep.
keep() {
    row=$(awk -F'\t' '$2 == "bG" && $4 != "-" { print $4, $1 }' "$out/rows.tsv" | sort -n | head -n 1)
    test -n "$row" || return 0
    for x in a:b b:G; do
        spec=$(echo "$arms" | sed -n "s/^${x#*:} //p") x=${x%:*}
        tap "${row#* }" "$spec" $((${row% *} + 2)) --mode hash --controls --arm "$x" -o "$out/$x.q4d"
    done >/dev/null
}

if test "$6" = --prompt; then one "$7"; exit; fi
if ! test -s "$out/rows.tsv"; then # what was measured is not measured again
    rm -rf "$out/rows" && mkdir "$out/rows" || exit 2
    jobs=$(($(nproc) / 2))
    seq "$(wc -l <"$ids")" | OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
        xargs -P "$((jobs > 8 ? 8 : jobs > 0 ? jobs : 1))" -n 1 \
        sh "$here/run.sh" "$q4x" "$out" "$model" "$ids" "$n" --prompt
    cat "$out"/rows/* | sort -n -k 1,1 -s >"$out/rows.tsv"
    rm -rf "$out/rows"
fi
keep

{
    test -e "$out/left-out.txt" && cat "$out/left-out.txt"
    echo "$n ids each, ${model##*/}"
    "$q4x" version | grep -E '^(commit|kernels|cuda)'
} >"$out/head.txt"
sh "$here/table.sh" "$out" >"$out/table.txt"
cat "$out/table.txt"
awk -F'\t' '$5 == "identical" { n++; if ($3 !~ /^IDENTICAL/ || $4 != "-") bad++ } END { exit !(n > 0 && !bad) }' "$out/rows.tsv"
