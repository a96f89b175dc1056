#!/bin/sh
# cuda.sh: the tests that need a GPU. Unlike `make check`, which skips and counts, this fails where there is none.
cd "$(dirname "$0")/.." || exit 2
line=$(bin/q4x version | sed -n 's/^cuda  *//p')
echo "cuda: $line"
case $line in
device*) ;;
*) echo "make check-cuda: there is no GPU to test on" >&2; exit 1 ;;
esac
echo "make check-cuda: there is no device code yet: nothing was tested" >&2
exit 1
