#!/bin/sh
# gpu.sh BUILD: what `make check` leaves to `make check-cuda`, counted as skipped: the programs of tests/cuda on a real
# device. Without g++ they have not run on the emulated one either, which is said too.
cd "$(dirname "$0")/.." || exit 2
b=${1:-build/gcc-release}
n=$(find tests/cuda -name 'c_*.c' | wc -l)
echo "skipped: gpu: $n programs need a GPU: make check-cuda"
if ! command -v g++ >/dev/null 2>&1; then
    m=$(find tests/cuda -name '[ce]_*.c' | wc -l)
    echo "skipped: gpu: no g++: the $m programs for the emulated device were not built"
    n=$((n + m))
elif ! test -x "$b/emu/tests/cuda/c_ops"; then
    echo "gpu: 0 passed, 1 failed: there is g++, and $b has no emulator"
    exit 1
fi
echo "gpu: 0 passed, 0 failed, $n skipped"
