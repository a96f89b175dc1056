#!/bin/sh
# run.sh [--update] BUILD [CASE...]: the command line, case by case.
#
# A case is tests/cli/NAME.sh, run in an empty folder with `q4x` on PATH and `models` leading to tests/models. What it
# prints on both streams must equal NAME.out, its exit code NAME.exit (0 when there is none). In .out a line
#   %glob PATTERN   stands for one line that matches the shell pattern,
#   %any            for any number of lines.
# A case that says "# needs: text" is skipped by a build without text prompts.
# --update rewrites .out and .exit of the cases that fail; read the diff before you commit it.
update=0
if test "$1" = --update; then update=1; shift; fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build/gcc-release-cuda}
test $# = 0 || shift
case $build in /*) ;; *) build=$root/$build ;; esac
test -x "$build/q4x" || { echo "cli: there is no $build/q4x: run make"; exit 1; }
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
pass=0 fail=0 skip=0
has_text=$("$build/q4x" version --json | grep -c '"text": true')

# matches EXPECTED ACTUAL: line by line, with the two marks
matches() {
    awk -v expected="$1" '
        function glob(p, s,   re, i, c) { # shell pattern to a regular expression, once a pattern
            if (!(p in made)) {
                re = "^"
                for (i = 1; i <= length(p); i++) {
                    c = substr(p, i, 1)
                    if (c == "*") re = re ".*"
                    else if (c == "?") re = re "."
                    else if (c == "[") { while (i <= length(p) && substr(p, i, 1) != "]") re = re substr(p, i++, 1); re = re "]" }
                    else if (c ~ /[A-Za-z0-9 ]/) re = re c
                    else if (c == "^" || c == "\\" || c == "]") re = re "\\" c
                    else re = re "[" c "]"
                }
                made[p] = re "$"
            }
            return s ~ made[p]
        }
        function line_ok(p, s) { return substr(p, 1, 6) == "%glob " ? glob(substr(p, 7), s) : p == s }
        function rest(i, j) { # do want[i..] match got[j..]?
            for (; i <= nw; i++) {
                if (want[i] == "%any") {
                    for (; j <= ng + 1; j++) if (rest(i + 1, j)) return 1
                    return 0
                }
                if (j > ng || !line_ok(want[i], got[j])) { if (j > far) far = j; return 0 }
                j++
            }
            if (j <= ng && j > far) far = j
            return j == ng + 1
        }
        { got[++ng] = $0 }
        END {
            while ((getline line < expected) > 0) want[++nw] = line
            if (rest(1, 1)) exit 0
            printf "    first line that does not fit: %d\n", far
            exit 1
        }' "$2"
}

one() { # CASE
    name=$(basename "$1" .sh)
    if test "$has_text" = 0 && grep -q '^# needs: text$' "$1"; then
        skip=$((skip + 1))
        echo "skipped: cli: $name: this build has no text prompts"
        return
    fi
    dir=$tmp/$name
    mkdir "$dir"
    ln -s "$root/tests/models" "$dir/models"
    ln -s "$root/tests/golden" "$dir/golden"
    (cd "$dir" && PATH=$build:$PATH HOME=$dir timeout 600 sh -u "$here/$name.sh") >"$tmp/$name.got" 2>&1 </dev/null
    rc=$?
    want=0
    test ! -e "$here/$name.exit" || want=$(cat "$here/$name.exit")
    if test -e "$here/$name.out" && test $rc = "$want" && why=$(matches "$here/$name.out" "$tmp/$name.got"); then
        pass=$((pass + 1))
        return
    fi
    if test $update = 1; then
        cp "$tmp/$name.got" "$here/$name.out"
        rm -f "$here/$name.exit"
        test $rc = 0 || echo $rc >"$here/$name.exit"
        echo "cli: $name: written"
        return
    fi
    fail=$((fail + 1))
    test $rc != 124 || why="not done after 600 seconds"
    echo "cli: $name: exit code $rc, expected $want; ${why:-}"
    diff -u --label expected --label got "$here/$name.out" "$tmp/$name.got" | sed 's/^/    /' | head -n 60
}

# The harness's own twins: it must see a wrong line, a missing line, a surplus line.
twin() { # expected got result
    printf '%b' "$1" >"$tmp/w"; printf '%b' "$2" >"$tmp/g"
    if matches "$tmp/w" "$tmp/g" >/dev/null; then r=same; else r=differ; fi
    if test $r = "$3"; then pass=$((pass + 1)); else fail=$((fail + 1)); echo "cli: twin: '$1' against '$2': $r"; fi
}
twin 'a\nb\n' 'a\nb\n' same
twin 'a\nb\n' 'a\nc\n' differ
twin 'a\nb\n' 'a\n' differ
twin 'a\n' 'a\nb\n' differ
twin 'a\n%any\nz\n' 'a\nb\nc\nz\n' same
twin 'a\n%any\nz\n' 'a\nb\nc\n' differ
twin '%glob a*(1).[0-9] z\n' 'a bc(1).7 z\n' same
twin '%glob a*(1).[0-9] z\n' 'a bc(1)x7 z\n' differ
twin '' 'a\n' differ

if test $# = 0; then set -- "$here"/*.sh; fi
for f; do
    case $f in */run.sh) ;; *) one "$f" ;; esac
done
echo "cli: $pass passed, $fail failed, $skip skipped"
test $fail = 0
