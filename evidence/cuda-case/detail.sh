#!/bin/sh
# detail.sh Q4X: one disagreement in detail, from anywhere in the repository. At prompt 20 the first id is another under
# gdn=chunk64-bf16 alone (pair Bh of table.txt). The processor gives the GPU's bits under both arms, so this needs none:
# both arms once more with every row of every node, and the report on them.
q4x=$1
cd "$(dirname "$0")/../.." || exit 2
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
for x in a: b:,gdn=chunk64-bf16; do
    "$q4x" tap tests/models/demo.gguf --ids "$(sed -n 20p evidence/cuda-case/prompts.ids)" -n 2 --bands --controls \
        --rows all --node '*' --spec "cpu:act=bf16${x#*:}" --arm "${x%:*}" -o "$t/${x%:*}.q4d" >/dev/null || exit 2
done
(cd "$t" && "$q4x" report a.q4d b.q4d)
