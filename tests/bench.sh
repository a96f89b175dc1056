#!/bin/sh
# bench.sh: rates and ratios on the demo model. Prints; never fails on time. With LLAMA_LIB set (the folder of
# llama.cpp's libraries) and ../shared/tools/llamacpp.py there, its rates on the same ids in the same run too.
cd "$(dirname "$0")/.." || exit 2
model=tests/models/demo.gguf
bin/q4x bench $model || exit 1
peer=../shared/tools/llamacpp.py
if test -z "${LLAMA_LIB:-}"; then echo "llama.cpp: not measured (LLAMA_LIB is not set)"; exit 0; fi
if ! /usr/bin/python3 -c 'import numpy' 2>/dev/null || ! test -e $peer; then
    echo "llama.cpp: not measured (needs /usr/bin/python3 with numpy, and $peer)"
    exit 0
fi
theirs=$(/usr/bin/python3 $peer bench $model 256 64 2>/dev/null) || { echo "llama.cpp: its run failed"; exit 0; }
ours=$(bin/q4x bench --rates $model | awk '$1 == 2 && $2 == "threads" { print $3, $4 }')
echo "$theirs" | awk -v ours="$ours" '{
    split(ours, o, " ")
    printf "llama.cpp, 2 threads: prompt %.0f, decode %.0f ids/s; q4x: %.0f, %.0f; q4x / llama.cpp: %.2f, %.2f\n",
        $2, $5, o[1], o[2], o[1] / $2, o[2] / $5 }'
