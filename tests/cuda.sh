#!/bin/sh
# cuda.sh KIT LOGS [NAME,...]: the tests that need a GPU, from the kit that the build made. Unlike `make check`, which
# skips and counts, this fails where there is no GPU, or not all that they need; NAMEs are left out (run.sh --without).
cd "$(dirname "$0")/.." || exit 2
line=$(bin/q4x version | sed -n 's/^cuda  *//p')
echo "cuda: $line"
case $line in
device*) ;;
*) echo "make check-cuda: there is no GPU to test on" >&2; exit 1 ;;
esac
mkdir -p "$2" && sh "$1/run.sh" "$(cd "$2" && pwd)" ${3:+--without "$3"}
