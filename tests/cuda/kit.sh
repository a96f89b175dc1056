#!/bin/sh
# kit.sh BUILD DIR [lean]: what `make check-cuda` runs, with the models it needs, in one folder that works on a machine
# with a driver and no compiler: sh DIR/run.sh OUT. lean: without models; those that the repository tracks run.sh then
# finds in the tree that DIR lies in, and the other, demo-Q4_K_M, only if it is put into DIR/models.
cd "$(dirname "$0")/../.." || exit 2
b=$1 d=$2 lean=$3
rm -rf "$d" && mkdir -p "$d/bin" "$d/models" || exit 2
cp "$b/q4x" "$b"/tests/cuda/c_* "$b"/tests/cuda/*_cuda "$d/bin/"
rm -f "$d"/bin/*.o "$d"/bin/*.d
strip -g "$d"/bin/* 2>/dev/null
# the folder is to travel; the programs hold the same kernels, which a long window sees
tar -C "$d" -cf - bin | xz -T1 -8 >"$d/bin.tar.xz" || exit 2
rm -rf "${d:?}/bin"
if test "$lean" != lean; then
    mkdir -p "$d/tests/golden" "$d/tests/models"
    for m in micro-a micro-b dense-a; do
        mkdir "$d/tests/golden/$m"
        cp "tests/golden/$m/config.json" "tests/golden/$m/model.safetensors" "$d/tests/golden/$m/" || exit 2
    done
    cp -r tests/golden/moe-block "$d/tests/golden/" || exit 2
    cp tests/models/*.gguf "$d/tests/models/" || exit 2
    f=${Q4X_SHARED:-../shared}/golden/gguf/demo-Q4_K_M.gguf
    if test -e "$f"; then cp "$f" "$d/models/" || exit 2
    else echo "kit.sh: there is no $f: run.sh fails unless it gets --without demo-Q4_K_M" >&2
    fi
fi
# not every machine has the test library
lib=$(ldconfig -p | sed -n 's/.*libcmocka\.so\.0 .*=> //p' | head -n 1)
if test -n "$lib"; then mkdir -p "$d/lib" && cp -L "$lib" "$d/lib/"; fi
cp -r evidence/cuda-case "$d/case"
cp tests/cuda/run.sh tests/cuda/sanitize.sh "$d/"
chmod -R u+w "$d"
du -sh "$d"
