# two dumps: equal, apart by a lever, a fault, a tie; exit codes, names without a suffix, controls
m=models/demo.gguf ids=366,380,486,573,261
tap() { q4x tap $m --ids $ids -n 8 --bands "$@" >/dev/null; }
tap --arm f32; tap -o again.q4d; tap --arm bf16 --lever act=bf16
tap --arm sign --spec cpu:plant=sign@L02.moe#3
q4x bisect f32 again.q4d; echo "exit $?"
q4x bisect f32 bf16 --floor-a again; echo "exit $?"
q4x bisect f32 sign | tail -n 3
q4x bisect bf16 f32 --json | sed -n '1,4p;/"first_disagreement"/,/}/p;/"controls"/,/}/p'
q4x bisect f32 bf16 --floor-b again; echo "exit $?"
q4x bisect f32 bf16 --floor-a f32; echo "exit $?"
# a copy is no floor, nor is a link; another recording made in the same second is one
cp f32.q4d copy.q4d; ln -s f32.q4d link.q4d
for f in copy link ./f32.q4d; do q4x bisect f32 bf16 --floor-a $f; echo "exit $?"; done
q4x bisect f32 copy | grep '^note'
tap --arm f32; mv f32.q4d twin.q4d; tap --arm f32
q4x bisect f32 bf16 --floor-a twin | grep '^controls'
q4x bisect f32 again --device-null f32 again; echo "exit $?"
head -c 300000 bf16.q4d >cut.q4d
q4x bisect f32 cut; echo "exit $?"
q4x tap $m --ids 1,2,3 -n 2 --arm other >/dev/null
q4x bisect f32 other | tail -n 3
cp bf16.q4d bad.q4d; printf '\377\377\377\377' | dd of=bad.q4d bs=1 seek=200000 conv=notrunc 2>/dev/null
q4x bisect f32 bad; echo "exit $?"
q4x bisect f32 none; echo "exit $?"
q4x bisect f32; echo "exit $?"
q4x bisect f32 bf16 f32; echo "exit $?"
q4x bisect f32 bf16 --device-null f32; echo "exit $?"
# no statistics are kept: the node is named all the same
q4x tap models/demo.gguf --ids 1,2,3 -n 2 --mode hash --arm ha >/dev/null
q4x tap models/demo.gguf --ids 1,2,3 -n 2 --mode hash --lever plant=nan@L02.blk#1 --arm hb >/dev/null
q4x bisect ha hb | tail -n 2
# the delta rule by tokens and by chunks behind bf16 stores: states differ where no output does, within their bands
for g in seq chunk64; do q4x tap $m --ids $ids -n 8 --bands --spec cpu:act=bf16,gdn=$g --arm $g >/dev/null; done
q4x bisect seq chunk64 | grep -A 1 -E '^(first|verdict)'
# rounded frequencies are an honest choice: no fault
for f in f32 bf16; do q4x tap models/demo.gguf --ids 366,380,486,573,261 -n 4 --bands --lever rope.freq=$f --arm freq-$f >/dev/null; done
q4x bisect freq-f32 freq-bf16 | tail -n 1
# forwards of which no row was kept: what they differ by is not known, and is not 0
few() { q4x tap $m --ids $ids -n 3 --rows 3-3 --bands --node '*' "$@" >/dev/null; }
few --arm r32; few --arm r16 --lever act=bf16; few --arm r64 --lever gdn=chunk64,plant=sign@L04.gdn.core#1
q4x report r32 r16 | sed -n '/^scale/,/^f2/p'
q4x bisect r32 r64 | sed -n '/^unjudged/,/^flips/p'
# what a line of `next` lists is there; more than a few with -v
q4x tap $m --ids 1,2,3 -n 2 --bands --rows all --node '*' --arm l0 >/dev/null
q4x tap $m --ids 1,2,3 -n 2 --bands --rows all --node '*' --arm l5 \
    --lever act=bf16,gdn=chunk64,dot=serial,rope.freq=bf16,topk.tie=highest >/dev/null
q4x bisect l0 l5 | sed -n '/^not/,/^why/p'
q4x bisect l0 l5 -v 2>/dev/null | sed -n '/^not/,/^why/p'
