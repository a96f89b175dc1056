#!/bin/sh
# info.sh V CUDA NVCC OMP MARCH LIBS TEXT: what this build has and lacks, a line each.
v=$1 cuda=$2 nvcc=$3 omp=$4 march=$5 libs=$6 text=$7
yes() { printf '  \342\234\223 %-14s %s\n' "$1" "$2"; }
no() { printf '  \342\234\227 %-14s %s\n' "$1" "$2"; }
is() { if test "$3" = 1; then yes "$1" "$2"; else no "$1" "$4"; fi; }
has() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <%s>\n' "$1" |
    "$CC" -E - >/dev/null 2>&1 && echo 1; }
echo "build"
yes compiler "$("$CC" --version 2>/dev/null | head -n 1)"
yes variant "$v"
is "x86-64-v3" "AVX2 and FMA (fmaf is one instruction)" "$(test -n "$march" && echo 1)" "built for the plain processor: right, and slow"
is OpenMP "$omp" "$(test -n "$omp" && echo 1)" "one thread"
is CUDA "$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([^,]*\).*/nvcc \1/p'), sm_90 and PTX of compute_80" "$cuda" \
    "no device room: $(if test -n "$nvcc"; then echo "CUDA=0, a variant, no g++, or no libcudart_static.a beside nvcc"; else echo "no nvcc on PATH"; fi)"
echo "libraries"
lib() { # NAME HEADER PACKAGE REASON
    if test "$(has "$2")" = 1; then
        case $libs in *"lib$1.a"*) yes "$1" "static: $4" ;; *) yes "$1" "shared: $4" ;; esac
    else no "$1" "missing ($3): make deps"; fi
}
lib jansson jansson.h libjansson-dev "JSON"
lib xxhash xxhash.h libxxhash-dev "hashes"
lib z zlib.h zlib1g-dev "deflate"
if test "$text" = 1; then
    lib pcre2-8 pcre2.h libpcre2-dev "text prompts: patterns"
    lib utf8proc utf8proc.h libutf8proc-dev "text prompts: NFC"
else no "text prompts" "none: TEXT=0, or no libpcre2-dev or libutf8proc-dev (make deps)"; fi
echo "tests"
for t in "cmocka cmocka.h libcmocka-dev" "mpfr mpfr.h libmpfr-dev"; do
    # shellcheck disable=SC2086 # three words
    set -- $t
    is "$1" "for make check" "$(has "$2")" "missing ($3): make deps"
done
tool() { is "$1" "$(command -v "$1" 2>/dev/null) $2" "$(command -v "$1" >/dev/null 2>&1 && echo 1)" "missing: $2"; }
tool g++ "(kernel headers as C++17; nvcc's host compiler; the emulated device of make check)"
tool clang "(make fuzz, make lint)"
tool clang-format "(make format)"
tool clang-tidy "(make lint)"
tool cppcheck "(make lint)"
tool shellcheck "(make lint)"
