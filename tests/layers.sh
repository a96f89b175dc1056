#!/bin/sh
# layers.sh BUILD: who may know whom. Includes go downwards only (bin > bisect > lib > kernels) and are written from the
# top; kernel objects call nothing that allocates, prints, exits, reads the environment or rounds as a C library likes.
cd "$(dirname "$0")/.." || exit 2
b=${1:-build/gcc-release}
pass=0 fail=0
tell() { # what, 0 good
    if test "$2" = 0; then pass=$((pass + 1)); else fail=$((fail + 1)); echo "layers: $1"; fi
}

# Rank of a room; an include is bad when the file's rank is below that of what it includes, or when it is relative.
includes() { # DIR: prints violations
    (cd "$1" && grep -nH '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' kernels/* lib/* bisect/* bin/* 2>/dev/null) | awk '
        BEGIN { r["kernels"] = 0; r["lib"] = 1; r["bisect"] = 2; r["bin"] = 3 }
        { split($0, f, ":"); split(f[1], d, "/"); match($0, /"[^"]*"/)
          inc = substr($0, RSTART + 1, RLENGTH - 2); split(inc, e, "/")
          if (!(e[1] in r)) print f[1] ":" f[2] ": \"" inc "\" is not written from the top"
          else if (r[d[1]] < r[e[1]]) print f[1] ":" f[2] ": " d[1] " may not include \"" inc "\"" }'
}

banned='malloc|calloc|realloc|free|aligned_alloc|posix_memalign|getenv|setenv|exit|_exit|abort|printf|fprintf|vfprintf|snprintf|puts|putchar|fputs|fputc|fwrite|fopen|fread|open|read|write|mmap|__printf_chk|__fprintf_chk|time|rand|qsort'
math='expf?|exp2f?|exp10f?|expm1f?|logf?|log2f?|log10f?|log1pf?|sinf?|cosf?|sincosf?|tanf?|asinf?|acosf?|atanf?|atan2f?|sinhf?|coshf?|tanhf?|powf?|cbrtf?|hypotf?|erff?|fmaf?|fmodf?|ldexpf?|__(exp|log|sin|cos|pow)f?_finite|_ZGV.*'
symbols() { # OBJECT...: prints banned undefined symbols
    nm -uA "$@" 2>/dev/null | sed 's/@.*//' | grep -E "[: ]U ($banned|$math)\$"
}

bad=$(includes .); printf '%s' "$bad"; tell "an include goes upwards or sideways" "$([ -z "$bad" ]; echo $?)"
objs=$(find "$b/kernels" -name '*.o' ! -name '*.cu.o' ! -name 'dev_*' 2>/dev/null)
if test -n "$objs" && case $b in *-release*) true ;; *) false ;; esac; then
    # shellcheck disable=SC2086
    bad=$(symbols $objs); printf '%s' "$bad"; tell "a kernel calls what kernels may not call" "$([ -z "$bad" ]; echo $?)"
else
    echo "skipped: layers: banned symbols are looked for in release objects"
fi

# The twins: a planted violation of each kind must be seen.
t=$(mktemp -d); trap 'rm -rf "$t"' EXIT
mkdir -p "$t/kernels" "$t/lib" "$t/bisect" "$t/bin"
echo '#include "lib/err.h"' >"$t/kernels/a.c"
tell "twin: kernels including lib went unseen" "$([ "$(includes "$t" | wc -l)" = 1 ]; echo $?)"
rm "$t/kernels/a.c"; echo '#include "bisect/set.h"' >"$t/lib/a.h"
tell "twin: lib including bisect went unseen" "$([ "$(includes "$t" | wc -l)" = 1 ]; echo $?)"
rm "$t/lib/a.h"; echo '#include "err.h"' >"$t/lib/a.c"
tell "twin: a relative include went unseen" "$([ "$(includes "$t" | wc -l)" = 1 ]; echo $?)"
rm "$t/lib/a.c"; echo '#include "lib/err.h"' >"$t/bin/a.c"
tell "twin: a good include was refused" "$([ "$(includes "$t" | wc -l)" = 0 ]; echo $?)"
for f in 'malloc(8) == 0' 'getenv("A") == 0' 'expf(*p) > 0' 'printf("%f", *p)' 'pow(*p, 3.1) > 0'; do
    printf '#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>\nint f(float *p);\nint f(float *p) { return %s; }\n' "$f" >"$t/a.c"
    ${CC:-gcc} -O1 -fno-builtin-malloc -c -o "$t/a.o" "$t/a.c" 2>/dev/null
    tell "twin: a kernel calling ${f%%(*} went unseen" "$([ "$(symbols "$t/a.o" | wc -l)" = 1 ]; echo $?)"
done
echo "layers: $pass passed, $fail failed"
test $fail = 0
