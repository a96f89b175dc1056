#!/bin/sh
# convert.sh [CASES]: files that q4x convert writes, in llama.cpp. Not part of `make check`: it needs LLAMA_LIB (the
# folder of llama.cpp's libraries), /usr/bin/python3 with numpy, and ../shared. CASES: ids decode encode (default: all).
#
#   ids     micro-a and dense-a: the same greedy ids in llama.cpp, in q4x and in the reference; demo: both run, ids that
#           agree are counted
#   decode  every tensor of the files through llama.cpp's decoder and ours: equal bits
#   encode  RMSE of our encoders and of llama.cpp's on synthetic rows and the demo's weights, and their blocks decoded by
#           both
cd "$(dirname "$0")/../.." || exit 2
shared=../shared
py=/usr/bin/python3
if test -z "${LLAMA_LIB:-}" || ! test -e $shared/tools/llamacpp.py || ! $py -c 'import numpy' 2>/dev/null; then
    echo "convert.sh: needs LLAMA_LIB, $shared and $py with numpy"
    exit 2
fi
test -x bin/q4x || { echo "convert.sh: run make first"; exit 2; }
export LLAMA_LIB
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
fail=0
tell() { # what, 0 good
    if test "$2" = 0; then echo "ok    $1"; else echo "FAIL  $1"; fail=1; fi
}
wanted() { case " ${cases:-ids decode encode} " in *" $1 "*) true ;; *) false ;; esac; }
cases=$*

theirs() { $py $shared/tools/llamacpp.py run "$1" "$2" "$3" 2>/dev/null | sed -n 's/^greedy //p'; }
ours() { bin/q4x run "$1" --ids "$2" -n "$3"; }
meta() { # FILE KEY: an entry of a golden's metadata
    $py -c 'import json, struct, sys
d = open(sys.argv[1], "rb").read(); n, = struct.unpack("<Q", d[:8])
print(json.loads(d[8:8 + n])["__metadata__"][sys.argv[2]])' "$1" "$2"
}
convert() { # FOLDER TYPE
    bin/q4x convert "$shared/golden/$1" "$t/$1-$2.gguf" --type "$2" || fail=1
}

for m in micro-a dense-a; do for type in BF16 F32 Q8_0; do convert $m $type; done; done
for type in UD-IQ1_S Q4_K_M; do convert demo $type; done

if wanted ids; then
    for m in micro-a dense-a; do
        prompt=$(meta $shared/golden/$m/golden-f32.safetensors prompt)
        f32=$(meta $shared/golden/$m/golden-f32.safetensors greedy)
        bf16=$(meta $shared/golden/$m/golden-bf16.safetensors greedy)
        for type in F32 BF16 Q8_0; do
            a=$(theirs "$t/$m-$type.gguf" "$prompt" 8)
            b=$(ours "$t/$m-$type.gguf" "$prompt" 8)
            echo "      $m $type: llama.cpp $a, q4x $b"
            # llama.cpp rounds what it multiplies with BF16 weights to BF16, as the bf16 reference does
            if test $type = Q8_0; then test -n "$a" && test -n "$b"; tell "$m $type: runs in both" $?; continue; fi
            test "$b" = "$f32"; tell "$m $type: q4x as the f32 reference" $?
            want=f32
            if test $type = BF16 && test "$a" = "$bf16" && test "$a" != "$f32"; then want=bf16; fi
            case $want in f32) test "$a" = "$f32" ;; esac
            tell "$m $type: llama.cpp as the $want reference" $?
        done
    done
    for type in UD-IQ1_S Q4_K_M; do
        same=0 all=0
        for k in 0 1 2 3 4; do
            prompt=$($py -c 'import json, sys
print(",".join(map(str, json.load(open(sys.argv[1]))[int(sys.argv[2])]["prompt_ids"])))' $shared/golden/demo/golden.json $k)
            a=$(theirs "$t/demo-$type.gguf" "$prompt" 24)
            b=$(ours "$t/demo-$type.gguf" "$prompt" 24)
            read -r s n first <<EOF
$(printf '%s\n%s\n' "$a" "$b" | awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) x[i] = $i; n = NF }
    NR == 2 { for (i = 1; i <= NF && i <= n; i++) { s += x[i] == $i; if (!p && x[i] != $i) p = i }
              print s + 0, NF < n ? NF : n, p ? p - 1 : n }')
EOF
            echo "      demo $type, prompt $k: $s of $n ids agree, the first $first in a row"
            same=$((same + s)) all=$((all + n))
        done
        test $all = 120; tell "demo $type: runs in both, $same of $all ids agree" $?
    done
fi

# The encoders and decoders as a library that Python can load.
${CC:-gcc} -std=c17 -D_GNU_SOURCE -O2 -march=x86-64-v3 -ffp-contract=off -fno-math-errno -Wno-unknown-pragmas -I. \
    -shared -fPIC -o "$t/ours.so" kernels/quant.c lib/encode*.c lib/err.c -lm || exit 2

if wanted decode; then
    for f in "$t"/*.gguf; do
        $py tests/peer/encode.py decode "$t/ours.so" "$f"
        tell "${f##*/}: both decoders give the same bits" $?
    done
fi
if wanted encode; then
    $py tests/peer/encode.py compare "$t/ours.so" $shared/golden/demo
    tell "RMSE within 1.5 x of llama.cpp's, blocks that both decode alike" $?
fi
exit $fail
