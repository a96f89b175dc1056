#!/bin/sh
# run.sh [SHARED]: everything here that needs no transformers, against the recorded outputs in SHARED/golden (default
# ../shared). Not part of `make check`: it needs /usr/bin/python3 with numpy, for the last part torch too, and minutes.
cd "$(dirname "$0")/../.." || exit 2
shared=${1:-../shared}
py=/usr/bin/python3
export PYTHONDONTWRITEBYTECODE=1
$py -c 'import numpy' 2>/dev/null || { echo "run.sh: needs $py with numpy"; exit 2; }
pass=0 fail=0
try() { # SCRIPT ARG...
    echo "== $*"
    script=tests/oracle/$1; shift
    if $py "$script" "$@"; then pass=$((pass + 1)); else fail=$((fail + 1)); fi
}
for m in micro-a micro-b dense-a; do try against.py "$shared/golden/$m"; done
try against.py --twins "$shared/golden/micro-b"
try fixtures.py --check
try fixtures.py --twins
if $py -c 'import torch' 2>/dev/null; then
    try moe_block.py "$shared/golden/moe-block"
    try moe_block.py --twin "$shared/golden/moe-block"
else
    echo "run.sh: no torch: the block of experts was not made"
fi
echo "oracle: $pass passed, $fail failed"
test $fail = 0
