#!/bin/sh
# demo.sh VERDICT: the main job on the model in tests/models. Two arms of one model, alike but for one lever; where do
# they part? Good when bisect says VERDICT, whatever its exit code.
want=$1
cd "$(dirname "$0")/.." || exit 2
q=bin/q4x model=tests/models/demo.gguf ids=366,380,486,573,261 # "The day after Monday is"
dir=build/demo
rm -rf "$dir" && mkdir -p "$dir" || exit 2
step() {
    echo "\$ q4x $*"
    "$q" "$@" || { echo "make demo: q4x $1 failed" >&2; exit 1; }
}
step tap "$model" --ids $ids -n 8 --bands -o "$dir/f32.q4d"
step tap "$model" --ids $ids -n 8 --bands --lever act=bf16 -o "$dir/bf16.q4d"
echo "\$ q4x bisect $dir/f32.q4d $dir/bf16.q4d"
"$q" bisect "$dir/f32.q4d" "$dir/bf16.q4d"
echo "(exit code $?)"
got=$("$q" bisect --json "$dir/f32.q4d" "$dir/bf16.q4d" | sed -n 's/^  "verdict": "\([^"]*\)".*/\1/p')
echo "\$ q4x report $dir/f32.q4d $dir/bf16.q4d > evidence.md"
"$q" report "$dir/f32.q4d" "$dir/bf16.q4d" >evidence.md
rc=$?
test $rc -lt 126 || { echo "make demo: q4x report failed" >&2; exit 1; }
test -s evidence.md || { echo "make demo: evidence.md is empty" >&2; exit 1; }
echo
echo "evidence: $PWD/evidence.md"
echo "verdict:  $got"
test "$got" = "$want" || { echo "make demo: expected the verdict $want" >&2; exit 1; }
