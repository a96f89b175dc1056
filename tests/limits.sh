#!/bin/sh
# limits.sh: sizes and plain habits. Hard: a function has 120 lines, a file 800, a line 120 columns; no tabs or trailing
# blanks in C; all tracked files together stay below 30 MiB. Soft (printed, never failing): 60 and 400 lines.
cd "$(dirname "$0")/.." || exit 2
pass=0 fail=0

# functions FILE...: "file:line name lines" of every function, by the layout that clang-format gives
functions() {
    awk '
        FNR == 1 { infn = 0; head = "" }
        !infn && /^[A-Za-z_]/ { head = $0; at = FNR }
        !infn && /\)[ ]*\{$/ && head != "" && head !~ /^(typedef|struct|union|enum)[ ][^(]*\{$/ {
            name = head; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); infn = 1; next }
        infn && /^\}/ { printf "%s:%d %s %d\n", FILENAME, at, name, FNR - at + 1; infn = 0; head = "" }' "$@"
}
over() { functions "$@" | awk -v m=120 '$3 > m { print $1 ": " $2 " has " $3 " lines, " m " at most" }'; }
long_file() { awk -v m=800 'FNR == 801 { print FILENAME ": more than " m " lines" }' "$@"; }
ragged() { # lines too long (a table of links aside), tabs, trailing blanks
    LC_ALL=C.UTF-8 awk 'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns, 120 at most" }
        /\t/ { print FILENAME ":" FNR ": a tab" } /[ \r]$/ { print FILENAME ":" FNR ": trailing blanks" }' "$@"
}
check() { # what, violations
    if test -z "$2"; then pass=$((pass + 1)); else fail=$((fail + 1)); printf 'limits: %s:\n%s\n' "$1" "$2"; fi
}
files=$(ls bin/*.[ch] bisect/*.[ch] lib/*.[ch] kernels/*.[ch] kernels/*.cu kernels/*.cuh tests/*.[ch] tests/fuzz/*.[ch] \
    tests/cuda/*.[ch] tests/cuda/*.cu tests/emu/*.h tests/emu/*.cpp 2>/dev/null)
# shellcheck disable=SC2086 # a list of files
{
    check "functions" "$(over $files)"
    check "files" "$(long_file $files)"
    check "lines" "$(ragged $files)"
    functions $files | awk '$3 > 60 { print "limits: note: " $1 ": " $2 " has " $3 " lines (60 is the aim)" }'
    wc -l $files | awk '$2 != "total" && $1 > 400 { print "limits: note: " $2 " has " $1 " lines (400 is the aim)" }'
}
check "the Makefile" "$(awk 'END { if (NR > 250) print "Makefile: " NR " lines, 250 at most" }' Makefile)"
if git rev-parse --git-dir >/dev/null 2>&1; then
    bytes=$(git ls-files -z | xargs -0 stat -c %s 2>/dev/null | awk '{ s += $1 } END { print s + 0 }')
    echo "limits: tracked files: $bytes bytes"
    check "tracked files" "$(awk -v n="$bytes" 'BEGIN { if (n > 30 * 1048576) print n " bytes, 31457280 at most" }')"
fi

# The twins.
t=$(mktemp -d) || exit 2
trap 'rm -rf "$t"' EXIT
{ echo 'static int f(int a,'; echo '             int b) {'; seq 119 | sed 's/.*/    a++;/'; echo '}'; } >"$t/a.c"
{ echo 'static int f(int a) {'; seq 118 | sed 's/.*/    a++;/'; echo '}'; echo 'int g(void) {'; echo '}'; } >"$t/b.c"
seq 801 >"$t/c.c"; seq 800 >"$t/d.c"
twin() { check "twin: $1" "$(test "$(printf '%s' "$2" | grep -c .)" = "$3" || echo "$3 expected: $2")"; }
twin "a function of 122 lines" "$(over "$t/a.c")" 1
twin "a function of 120 lines" "$(over "$t/b.c")" 0
twin "a file of 801 lines" "$(long_file "$t/c.c" "$t/d.c")" 1
printf '%0121d\n\tx\ny \n%0120d\n' 1 1 >"$t/e.c"
twin "ragged lines" "$(ragged "$t/e.c")" 3
echo "limits: $pass passed, $fail failed"
test $fail = 0
