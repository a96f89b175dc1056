#!/bin/sh
# run.sh [OUT [--without NAME[,NAME...]]]: the tests that need a GPU, from a kit (kit.sh). Every step has a time limit
# and an entry in OUT/all.log; the table comes last, also as OUT/table.txt. Ends with 1 when a step failed: a model or a
# cuBLAS that is not here is a failure too. --without demo-Q4_K_M,cublas leaves these out; the table says so, and counts
# them with a step that says itself that it cannot run here: one that ends with 77 and a line "NAME: skipped: WHY".
# `run.sh OUT --in COMMAND...` runs one command from here instead: bin/bench_cuda, or sh case/run.sh bin/q4x OUT/case.
# shellcheck disable=SC2317 # functions that --in calls
cd "$(dirname "$0")" || exit 2
out=${1:-out}
models=demo-Q4_K_M # in models/: not one that the repository tracks
without=
if test "$2" = --without; then
    without=$3
    for name in $(echo "$without" | tr , ' '); do
        case " $models cublas " in
        *" $name "*) ;;
        *) echo "run.sh: --without $name: it can be: $models cublas" >&2; exit 2 ;;
        esac
    done
fi
without() { # NAME
    case ",$without," in *",$1,"*) return 0 ;; esac
    return 1
}
unpack() { # where there is no xz, Python has it
    xz -dc bin.tar.xz 2>/dev/null || python3 -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open("bin.tar.xz"), sys.stdout.buffer)'
}
test -e bin/q4x || unpack | tar -xf - || exit 2
if ! test -e tests; then # a lean kit: the tree around it has them
    root=$(pwd)
    while test "$root" && ! test -d "$root/tests/golden"; do root=${root%/*}; done
    test "$root" || { echo "run.sh: no tests/golden here or in a folder above" >&2; exit 2; }
    ln -s "$root/tests" tests
fi
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
failed=0

step() { # NAME LIMIT COMMAND...
    name=$1 limit=$2; shift 2
    printf '\n===== %s: %s\n' "$name" "$*" >>"$out/all.log"
    t0=$(date +%s.%N)
    timeout "$limit" "$@" >"$out/step.log" 2>&1
    rc=$?
    test "$name" = bench && cp "$out/step.log" "$out/bench.txt"
    cat "$out/step.log" >>"$out/all.log"
    secs=$(awk -v a="$t0" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    note=$(grep -E 'PASSED|FAILED|differ|device |^sanitize:' "$out/step.log" | tail -n 1 | cut -c1-90)
    word=ok
    if test $rc = 77 && grep -q "^$name: skipped: " "$out/step.log"; then word=-
    elif test $rc != 0; then word=FAIL failed=1
    fi
    printf '%-5s%-16s exit %3d  %6s s  %s\n' "$word" "$name" "$rc" "$secs" "$note" >>"$out/table.txt"
}

left_out() { # NAME: asked for
    printf '%-5s%-16s left out\n' - "$1" >>"$out/table.txt"
}
missing() { # FILE
    echo "FAILED: there is no $1: put it there, or --without $(basename "$1" .gguf)"
    return 1
}

same() { # MODEL DEVICE-OPTIONS...: the dump of the device is that of the CPU, by content
    m=$1; shift
    a=$(bin/q4x tap "$m" "$@" --device cpu -o "$out/a.q4d" | sed -n 's/.*content //p')
    b=$(bin/q4x tap "$m" "$@" --device cuda -o "$out/b.q4d" | sed -n 's/.*content //p')
    rm -f "$out/a.q4d" "$out/b.q4d"
    echo "$m $*: cpu $a, cuda $b"
    test -n "$a" && test "$a" = "$b"
}

dumps() {
    bad=0
    for m in tests/golden/micro-a tests/models/demo.gguf; do
        same "$m" --ids 1,2,3,4,5,6,7,8,9 -n 4 || bad=1
        same "$m" --ids 1,2,3,4,5,6,7,8,9 -n 4 --mode full --bands --controls || bad=1
        same "$m" --ids 1,2,3,4,5,6,7,8,9 -n 4 --lever act=bf16 --lever gdn=chunk64 || bad=1
    done
    return "$bad"
}

speed() {
    for d in cpu cuda; do
        echo "$d: 256 ids, then 64 one by one"
        time bin/q4x run tests/models/demo.gguf --ids "$(seq -s, 1 256)" -n 64 --device "$d" || return 1
    done
}

case $2 in
--in) shift 2; "$@"; exit $? ;; # one of the functions above, under step's time limit
esac
: >"$out/all.log"; : >"$out/table.txt"
step version 60 bin/q4x version
step arith 120 bin/c_arith
step ops 300 bin/c_ops
step attn 300 bin/c_attn
step topk 120 bin/c_topk
step products 300 bin/c_products
step scales 200 bin/c_scales
# shellcheck disable=SC2046 # a word, or none
step gemm 200 bin/c_gemm $(without cublas && echo --without-cublas)
step moe_block 300 bin/c_moe_block
# shellcheck disable=SC2046
step moe_cublas 300 bin/c_moe_cublas $(without cublas && echo --without-cublas)
without cublas && left_out cublas
step models 400 bin/c_models
step measure 120 bin/c_measure
step taps 300 bin/c_taps
for m in $models; do
    if without "$m"; then left_out "$m"
    elif test -e "models/$m.gguf"; then step "$m" 200 bin/c_models "models/$m.gguf"
    else step "$m" 10 sh run.sh "$out" --in missing "models/$m.gguf"
    fi
done
step device 200 bin/c_device
step dumps 120 sh run.sh "$out" --in dumps
step bench 300 bin/bench_cuda
step speed 120 bash run.sh "$out" --in speed
step sanitize 300 sh sanitize.sh "$out"
step lost 60 bin/c_lost
step lost_taps 60 bin/c_lost taps
rm -f "$out/step.log"
count=$(awk '{ n[$1]++ } END { print n["ok"] + 0 " ok, " n["FAIL"] + 0 " failed, " n["-"] + 0 " skipped" }' \
    "$out/table.txt")
echo "$count" >>"$out/table.txt"
cat "$out/table.txt"
if test -e "$out/bench.txt"; then cat "$out/bench.txt"; fi
exit $failed
