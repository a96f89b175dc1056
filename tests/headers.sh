#!/bin/sh
# headers.sh: every header compiles alone as C17, without a warning; the kernels' headers as C++17 too (nvcc reads them).
cd "$(dirname "$0")/.." || exit 2
CC=${CC:-gcc} CXX=${CXX:-g++}
pass=0 fail=0 skip=0
FLAGS="-I. -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function -fsyntax-only"
alone() { # LANGUAGE HEADER: 0 when it stands alone
    # shellcheck disable=SC2086
    case $1 in
    c) printf '#include "%s"\n#include "%s"\nint not_empty;\n' "$2" "$2" | "$CC" -std=c17 $FLAGS -xc - ;;
    c++) printf '#include "%s"\n#include "%s"\n' "$2" "$2" | "$CXX" -std=c++17 -march=x86-64-v3 $FLAGS -xc++ - ;;
    esac
}
for h in kernels/*.h lib/*.h bisect/*.h bin/*.h; do
    test -e "$h" || continue
    if out=$(alone c "$h" 2>&1); then pass=$((pass + 1)); else fail=$((fail + 1)); echo "headers: $h as C17: $out"; fi
    case $h in kernels/*) ;; *) continue ;; esac
    if ! command -v "$CXX" >/dev/null 2>&1; then skip=$((skip + 1)); continue; fi
    if out=$(alone c++ "$h" 2>&1); then pass=$((pass + 1)); else fail=$((fail + 1)); echo "headers: $h as C++17: $out"; fi
done
test $skip = 0 || echo "skipped: headers: C++17: there is no $CXX"
# The twins: a header that needs another's include, and one that is no C++, must be refused.
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
echo 'static inline size_t twin(void) { return 0; }' >"$t/a.h"
if alone c "$t/a.h" 2>/dev/null; then fail=$((fail + 1)); echo "headers: twin: a header that does not stand alone passed"; else pass=$((pass + 1)); fi
echo 'static inline int *twin(void *p) { int *class = p; return class; }' >"$t/b.h"
if command -v "$CXX" >/dev/null 2>&1; then
    if alone c++ "$t/b.h" 2>/dev/null; then fail=$((fail + 1)); echo "headers: twin: no C++, yet it passed"; else pass=$((pass + 1)); fi
fi
echo "headers: $pass passed, $fail failed, $skip skipped"
test $fail = 0
