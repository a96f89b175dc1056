# the case as Markdown: complete, the same bytes outside the provenance block whatever the day, threads and folder
m=models/demo.gguf ids=366,380,486,573,261
mkdir here there
for d in here there; do
    t=1; test $d = here || t=2
    q4x tap $m --ids $ids -n 8 --bands --threads $t -o $d/f32.q4d >/dev/null
    q4x tap $m --ids $ids -n 8 --bands --threads $t -o $d/bf16.q4d --lever act=bf16 >/dev/null
done
q4x report here/f32 here/bf16 >one.md; echo "exit $?"
(cd there && q4x report f32.q4d bf16 >../two.md)
outside() { sed '/^<!-- provenance -->$/,/^<!-- \/provenance -->$/d' "$1"; }
outside one.md >a; outside two.md >b
cmp a b && echo "the same outside"
cmp -s one.md two.md || echo "another provenance"
grep -c . a | awk '$1 > 150 { print "long enough" }'
grep '^#' one.md
sed -n '/^## Tokens/,/^## First/p' a
sed -n '/^## Decisions/,/^- /p' a
sed -n '/^## Verdict/,$p' a
awk 'length($0) > 170' a
q4x report here/f32 here/bf16 --json | sed '/"provenance"/,$d' >x
(cd there && q4x bisect f32 bf16 --json) | sed '/"provenance"/,$d' >y
cmp x y && echo "the same JSON"
