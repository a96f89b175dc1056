# what is missing is said as commands that can be pasted, and they record what the verdict asked for
m=models/demo.gguf
long=$(seq -s , 1 80)
again() { # A B: run the two commands that bisect prints, judge what they recorded
    q4x bisect "$1" "$2" >out
    tail -n 1 out
    sed -n '/^next/,/^why/s/^ *\(q4x tap .*\)/\1/p' out >commands
    sed 's/--ids [0-9,]*/--ids .../' commands
    sh -u commands >o || cat o
    q4x bisect again-a again-b | tail -n 1
}
tap() { q4x tap $m -n 3 "$@" >/dev/null; }
# more than 64 rows
tap --ids "$long" --bands --arm a; tap --ids "$long" --bands --arm b --lever act=bf16
again a b
# no bands
tap --ids 1,2,3 --arm a; tap --ids 1,2,3 --arm b --lever moe.combine=experts
again a b
# no sizes
tap --ids 1,2,3 --mode hash --bands --arm a; tap --ids 1,2,3 --mode hash --bands --arm b --lever rope.freq=bf16
again a b
# a node that --bands alone does not keep
tap --ids 1,2,3 --bands --arm a; tap --ids 1,2,3 --bands --arm b --lever 'act=bf16@L02.mhc.norm#1'
again a b
# an op that states no band
tap --ids 1,2,3 --bands --arm a --node '*'; tap --ids 1,2,3 --bands --node '*' --arm b --lever 'act=bf16@L02.gdn.conv'
again a b
# ids that part
tap -n 8 --bands --ids 366,380,486,573,261 --arm a; tap -n 8 --bands --ids 366,380,486,573,261 --arm b --lever act=bf16
again a b
# an order of sums that parts everywhere: the advice comes to an end, for it keeps what is recorded
for dot in serial q8k; do
    tap --ids 1,2,3 --bands --arm a; tap --ids 1,2,3 --bands --arm b --lever dot=$dot
    again a b
    q4x bisect again-a again-b | grep -c '^ *q4x tap'
done
# a sign behind inputs that are not recorded: not passed over, and named once they are
tap --ids 1,2,3 --bands --arm a; tap --ids 1,2,3 --bands --arm b --lever act=bf16 --lever plant=sign@L06.gdn.v#2
again a b
# both: every layer holds a source, so that the tensors of one alone would leave out what judged the others
tap --ids 1,2,3 --bands --arm a --lever dot=serial; tap --ids 1,2,3 --bands --arm b --lever plant=sign@L06.gdn.v#2
again a b
again again-a again-b
q4x bisect again-a again-b | grep -c '^ *q4x tap' || true
