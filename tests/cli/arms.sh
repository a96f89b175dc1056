# what the words of an arm come to: --spec first, then --lever and --as from left to right, and the last one counts
m=models/demo.gguf
for c in run tap; do q4x $c --help | tr -s ' \n' ' ' | grep -o -e '--lever and --as apply behind --spec, .* a lever counts'; done
arm() { # the levers that ran
    echo "$*"
    q4x tap $m --ids 1,2 -n 1 -o x.q4d "$@" >o 2>e || { echo "-> $?"; cat e; return; }
    grep -v INERT e
    q4x info x.q4d --json | sed -n 's/^ *"\(spec\|profile\|act\|gdn\|moe.combine\)": "\(.*\)".*/\1=\2/p' | tr '\n' ' '
    echo
}
arm
arm --lever act=bf16
arm --lever act=bf16 --lever act=f32
arm --spec cpu:act=bf16 --lever act=f32
arm --lever act=f32 --spec cpu:act=bf16
arm --as hf-bf16
arm --as hf-bf16 --lever act=f32
arm --lever act=f32 --as hf-bf16
arm --spec cpu:as=hf-bf16,gdn=seq --lever moe.combine=slots
arm --as exact --lever gdn=chunk64
arm --lever act=bf16 --lever act=f32@emb
# of other options the last counts
q4x run $m --ids 1 --ids 2,3 -n 5 -n 1 --json | sed -n '/prompt_ids/,/^  "text/p' | tr -d '\n '; echo
# an arm has one profile; what is recorded is what ran
arm --as hf-bf16 --as exact
arm --as exact --as exact
arm --spec cpu:as=hf-f32 --as hf-bf16
arm --spec cpu:as=hf-f32,as=hf-bf16
# threads and devices are said once
arm --spec cpu/2 --threads 3
arm --spec cpu --threads 3
arm --device cpu --spec cpu
