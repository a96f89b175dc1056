# a dump: written, named, described, the same twice; the arm is recorded as typed
m=models/demo.gguf ids=366,380,486,573,261
q4x tap $m --ids $ids -n 8 --arm f32
q4x tap $m --ids $ids -n 8 -o again.q4d --threads 1 --json | grep -v content
content() { q4x info --json "$1" | sed -n 's/.*"content": //p'; }
test "$(content f32)" = "$(content again)" && echo the same content
q4x tap $m --ids $ids -n 8 --arm bf16 --lever act=bf16 | tail -n 1
test "$(content f32)" = "$(content bf16)" || echo another content
q4x tap $m --ids $ids -n 2 --arm few --layer 0-1 --node 'moe.*' --mode full --rows 2
q4x info f32
# which rows were kept, in words
for r in all 3 0-4 2-2 2-9; do q4x tap $m --ids 1,2,3 -n 1 --rows $r -o k.q4d >o && q4x info k | grep ^rows; done
q4x tap $m --ids 1,2,3 -n 1 --mode hash -o k.q4d >o && q4x info k | grep ^rows
rm k.q4d o
q4x info --nodes few | grep -c .
q4x info --json few | grep -A 6 '"records"'
q4x info --json again | sed -n '/"args"/,/]/p'
ls
# levers: a forward that never comes is refused, what moved nothing is INERT; twins that do move
rm -f ./*.q4d
for l in 'act=bf16@*#99' 'plant=sign@emb#50' 'act=bf16@*#8'; do
    for c in run "tap -o never.q4d"; do q4x $c $m --ids $ids -n 8 --lever "$l"; echo "-> $?"; done
done
q4x tap $m --ids $ids -n 8 -o last.q4d --lever 'act=bf16@*#7' | tail -n 1
for l in plant=swap@L00.moe.sgate#1 topk.tie=highest gdn=chunk64@*#1; do
    q4x tap $m --ids $ids -n 2 -o inert.q4d --lever $l >o; echo "-> $?"
    q4x info inert | grep ^levers
done
q4x run $m --ids $ids -n 2 --lever plant=swap@L00.moe.sgate#1
q4x tap $m --ids $ids -n 2 -o moved.q4d --lever gdn=chunk64,act=f32 >o; echo "-> $?"
q4x info moved | sed -n '/^levers/,/^records/p' | grep -v ^records
# the instrument measured: buffers read twice, the run without taps
q4x tap $m --ids $ids -n 2 --controls --arm c
q4x tap $m --ids $ids -n 2 --controls --arm d --lever act=bf16 --json | sed -n '/inert/,$p'
q4x info c | grep ^controls
q4x bisect c d | grep ^controls
q4x bisect c moved | grep ^controls
q4x bisect c d --json | sed -n '/"controls"/,/^  }/p'
q4x report c d | sed -n '/^## Controls/,/^## Structure/p;/^## What this/,$p'
q4x bisect inert d -v | grep INERT
ls
