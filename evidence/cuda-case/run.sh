#!/bin/sh
# run.sh Q4X OUT [MODEL [IDS [N]]]: the same 50 prompts on both devices, and under one lever after the other on the way
# from cpu:act=bf16 to a GPU as engines use it. Prompt k of prompts.ids is sentences k, k+1, k+2 of sentences.txt through
# the demo model's tokenizer, fixed before any of this was run. For each pair of arms: how many prompts give another list
# of ids, and what the judge says of each. All rows of all nodes are kept while a pair is judged: most read gemm. OUT gets
# table.txt, rows.tsv, and the dumps (bits alone) of the first prompt that disagrees. Ends with 1 when a pair that must be
# IDENTICAL is not.
q4x=$1 out=$2 model=${3:-tests/models/demo.gguf} n=${5:-16}
here=$(cd "$(dirname "$0")" && pwd)
ids=${4:-$here/prompts.ids}
if ! test -x "$q4x" || ! mkdir -p "$out"; then echo "run.sh Q4X OUT [MODEL [IDS [N]]]" >&2; exit 2; fi

chunk=gdn=chunk64
if "$q4x" levers | grep -q 'chunk64-bf16'; then chunk=gdn=chunk64-bf16; fi
# NAME ARM, each tapped once a prompt
arms="c cpu
C cuda
b cpu:act=bf16
B cuda:act=bf16
g cuda:act=bf16,gemm=cublas
h cuda:act=bf16,$chunk
G cuda:act=bf16,gemm=cublas,$chunk
f cuda:gemm=cublas"
if ! try=$("$q4x" run "$model" --ids 1 -n 1 --spec cuda:gemm=cublas 2>&1); then
    echo "cuBLAS left out: $try" >"$out/left-out.txt"
    arms=$(echo "$arms" | grep -v cublas)
fi
# A B WHAT; a pair of devices with another lever between them is judged with the pair of devices alone as its null
pairs="c C identical the device alone
b B identical the device alone, act=bf16
b g - cpu:act=bf16 against cuda:act=bf16,gemm=cublas
b G - cpu:act=bf16 against cuda:act=bf16,gemm=cublas,$chunk
B g - one lever: gemm=cublas under act=bf16
B h - one lever: $chunk under act=bf16
g G - one lever: $chunk under act=bf16,gemm=cublas
h G - one lever: gemm=cublas under act=bf16,$chunk
C f - one lever: gemm=cublas under act=f32"

# Prompt k: all arms, all pairs, a line a pair.
one() {
    k=$1 prompt=$(sed -n "${1}p" "$ids")
    tmp=$(mktemp -d) || return 2
    echo "$arms" | while read -r name spec; do
        "$q4x" tap "$model" --ids "$prompt" -n "$n" --spec "$spec" --bands --rows all --node '*' -o "$tmp/$name.q4d" \
            >"$tmp/$name.txt" 2>&1 || echo "prompt $k, $spec: $(tail -n 1 "$tmp/$name.txt")" >&2
    done
    echo "$pairs" | while read -r a b must what; do
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

# The first prompt of each pair whose ids differ again, bits alone: small enough to keep.
keep() {
    echo "$pairs" | while read -r a b must what; do
        k=$(awk -F'\t' -v p="$a$b" '$2 == p && $4 != "-" { print $1; exit }' "$out/rows.tsv")
        test -n "$k" || continue
        for x in "$a" "$b"; do
            "$q4x" tap "$model" --ids "$(sed -n "${k}p" "$ids")" -n "$n" --mode hash \
                --spec "$(echo "$arms" | sed -n "s/^$x //p")" -o "$out/$a$b-$x.q4d" >/dev/null 2>&1
        done
    done
}

if test "$6" = --prompt; then one "$7"; exit; fi
k=$(wc -l <"$ids")
rm -rf "$out/rows" && mkdir "$out/rows" || exit 2
jobs=$(($(nproc) / 2))
seq "$k" | OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive xargs -P "$((jobs > 8 ? 8 : jobs > 0 ? jobs : 1))" -n 1 \
    sh "$here/run.sh" "$q4x" "$out" "$model" "$ids" "$n" --prompt
cat "$out"/rows/* | sort -n -k 1,1 -s >"$out/rows.tsv"
rm -rf "$out/rows"
keep

{
    test -e "$out/left-out.txt" && cat "$out/left-out.txt"
    echo "$k prompts, $n ids each, $model; ids differ: prompts whose lists of ids are not equal"
    "$q4x" version | grep -E '^(commit|kernels|cuda)'
    printf '%-62s %7s %7s  %s\n' "pair" prompts "differ" "verdicts"
    echo "$pairs" | while read -r a b must what; do
        awk -F'\t' -v p="$a$b" -v what="$what" '$2 == p { n++; split($3, w, " "); v[w[1]]++; if ($4 != "-") d++ }
            END { if (!n) exit; printf "%-62s %7d %7d ", what, n, d
                  for (x in v) printf " %s %d", x, v[x]; print "" }' "$out/rows.tsv"
    done
    echo
    echo "every disagreement: prompt, pair, forward of the first other id, verdict"
    awk -F'\t' '$4 != "-" { printf "%3d %s %3d  %s\n", $1, $2, $4, $3 }' "$out/rows.tsv"
} >"$out/table.txt"
cat "$out/table.txt"
awk -F'\t' '$5 == "identical" { n++; if ($3 !~ /^IDENTICAL/ || $4 != "-") bad++ } END { exit !(n > 0 && !bad) }' "$out/rows.tsv"
