#!/bin/sh
# lint.sh FILE...: layout, static checks and repeated code, each tool where it is installed. Fails on any finding.
cd "$(dirname "$0")/.." || exit 2
bad=0
c=$(printf '%s\n' "$@" | grep '\.c$')
run() { # what, command...
    what=$1; shift
    echo "lint: $what"
    "$@" || { bad=1; echo "lint: $what: findings"; }
}
there() { command -v "$1" >/dev/null 2>&1 || { echo "lint: $1 is not installed: left out"; return 1; }; }

# Lines that two places share, blank lines and comments aside: a run of 12 or more is worth one function.
repeated() {
    awk -v least=12 '
        FNR == 1 { flush(); file = FILENAME; n = 0 }
        function flush(   i, j, key) {
            for (i = 1; i + least - 1 <= n; i++) {
                key = ""
                for (j = 0; j < least; j++) key = key "\n" text[i + j]
                if (key in at) { if (!(hit[file] && i < hit[file] + least)) { print at[key] " ~ " file ":" num[i]; found = 1 } hit[file] = i }
                else at[key] = file ":" num[i]
            }
        }
        { gsub(/^[ \t]+|[ \t]+$/, "") }
        /^(\/\*|\*|\/\/|#include|[{}();]*$)/ { next }
        { text[++n] = $0; num[n] = FNR }
        END { flush(); exit found }' "$@"
}

there clang-format && run clang-format clang-format --dry-run -Werror "$@"
there shellcheck && run shellcheck shellcheck tests/*.sh tests/cli/run.sh tests/cuda/*.sh tests/peer/*.sh \
    evidence/*/*.sh .ci/*.sh .ci/run
# memleak and uninitvar do not follow memcpy and struct fields here; the compilers' own and the sanitizers do
there cppcheck && run cppcheck cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr -I. -D_GNU_SOURCE \
    --enable=warning,performance --suppress=missingIncludeSystem --suppress=uninitvar --suppress=memleak \
    --suppress=cppcheckError --suppress=arrayIndexThenCheck -j "$(nproc)" bin bisect lib kernels
checks='-*,bugprone-*,clang-analyzer-*,-bugprone-easily-swappable-parameters,-bugprone-narrowing-conversions'
checks=$checks,-bugprone-reserved-identifier,-bugprone-macro-parentheses,-bugprone-branch-clone
checks=$checks,-bugprone-implicit-widening-of-multiplication-result,-bugprone-misplaced-widening-cast
checks=$checks,-bugprone-suspicious-include,-bugprone-suspicious-string-compare,-bugprone-suspicious-memory-comparison
checks=$checks,-bugprone-sizeof-expression,-bugprone-not-null-terminated-result,-clang-analyzer-deadcode.DeadStores
checks=$checks,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling
checks=$checks,-clang-analyzer-security.insecureAPI.strcpy
tidy() {
    printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} clang-tidy --quiet --warnings-as-errors='*' --checks="$checks" {} -- \
        -std=c17 -D_GNU_SOURCE -I. -march=x86-64-v3 -Wno-unknown-pragmas 2>/dev/null
}
# shellcheck disable=SC2086,SC2046 # a list of files; the tests' own code is left to the compilers
there clang-tidy && run clang-tidy tidy $(printf '%s\n' $c | grep -v '^tests/')
# shellcheck disable=SC2086
run "repeated code" repeated $c
run limits sh tests/limits.sh
test $bad = 0
