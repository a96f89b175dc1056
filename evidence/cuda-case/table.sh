#!/bin/sh
# table.sh DIR: the table of a run, from DIR/head.txt and DIR/rows.tsv (prompt, pair, verdict, first other id or -, what
# must be). table.sh --pairs: the pairs that are judged.
# A B WHAT; a pair of devices with another lever between them is judged with the pair of devices alone as its null
pairs="c C identical the device alone
b B identical the device alone, act=bf16
b g - cpu:act=bf16 against cuda:act=bf16,gemm=cublas
b G - cpu:act=bf16 against cuda:act=bf16,gemm=cublas,gdn=chunk64-bf16
B g - one lever: gemm=cublas under act=bf16
B h - one lever: gdn=chunk64-bf16 under act=bf16
g G - one lever: gdn=chunk64-bf16 under act=bf16,gemm=cublas
h G - one lever: gemm=cublas under act=bf16,gdn=chunk64-bf16
C f - one lever: gemm=cublas under act=f32"
if test "$1" = --pairs; then echo "$pairs"; exit; fi

for f in "$1/head.txt" "$1/rows.tsv"; do test -s "$f" || { echo "table.sh: there is no $f" >&2; exit 2; }; done
cat "$1/head.txt"
echo "$(cut -f 1 "$1/rows.tsv" | sort -u | wc -l) prompts; ids differ: prompts whose lists of ids are not equal"
printf '%-66s %7s %7s  %s\n' "pair" prompts "differ" "verdicts"
echo "$pairs" | while read -r a b _ what; do
    awk -F'\t' -v p="$a$b" -v what="$what" '$2 == p { n++; v[$3]++; if ($4 != "-") d++ }
        END { if (!n) exit
              printf "%-66s %7d %7d", what, n, d
              while (n > 0) { # the most frequent first
                  most = 0
                  for (x in v) if (v[x] > most || (v[x] == most && x < which)) { most = v[x]; which = x }
                  printf "%s%d %s", sep, most, which
                  sep = ", "
                  n -= most
                  delete v[which]
              }
              print "" }' sep="  " "$1/rows.tsv"
done
echo
echo "every disagreement: prompt, pair, forward of the first other id, verdict"
awk -F'\t' '$4 != "-" { printf "%3d %s %3d  %s\n", $1, $2, $4, $3 }' "$1/rows.tsv"
