#!/bin/sh
# run.sh Q4X OUT: the pairs of cuda-case on a synthetic model of the released widths, cut to 4 layers and 32 experts
# (1.25 GB, made here): the first 24 ids of its first eight prompts, 8 ids each. Numbers only, no dump is kept. Ends as
# that run.sh does, which also says when the rows that are in OUT already stay.
q4x=$1 out=$2
case=$(cd "$(dirname "$0")/../cuda-case" && pwd)
mkdir -p "$out" || exit 2
model=$out/flash-next-4-layers.gguf
"$q4x" synth qwen3.8-flash-next "$model" --layers 4 --experts 32 --ngram-base 20011 || exit 2
head -n 8 "$case/prompts.ids" | cut -d, -f1-24 >"$out/ids"
sh "$case/run.sh" "$q4x" "$out" "$model" "$out/ids" 8
rc=$?
rm -f "$model" "$out/ids" "$out/a.q4d" "$out/b.q4d"
exit $rc
