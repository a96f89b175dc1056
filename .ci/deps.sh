#!/bin/sh
# deps.sh GROUP...: make sure that what the groups need is there; install what is missing through apt, and say so.
# Does nothing, and needs no network, when all is there. What the group "text" needs may stay missing: the program is
# built without it then. A line: package, group, probe, reason.
# Probe: h:HEADER that the C compiler finds, c:COMMAND on PATH, l:LIBRARY that clang finds.
CC=${CC:-gcc}
list() {
    cat <<'LIST'
gcc             build c:gcc         the C compiler
libc6-dev       build h:argp.h      the C library
libjansson-dev  build h:jansson.h   JSON: dump headers, config.json, safetensors headers, --json
libxxhash-dev   build h:xxhash.h    XXH3: the hashes by which dumps are compared
zlib1g-dev      build h:zlib.h      deflate: full tensors in dumps
libpcre2-dev    text  h:pcre2.h     text prompts: the pattern that cuts a text before it becomes ids
libutf8proc-dev text  h:utf8proc.h  text prompts: Unicode normalisation
libcmocka-dev   test  h:cmocka.h    the unit tests' framework
libmpfr-dev     test  h:mpfr.h      correctly rounded references for exp, log, sin and cos
g++             test  c:g++         kernel headers must compile as C++17 too
clang           fuzz  c:clang       libFuzzer, and a second opinion on warnings
libclang-rt-14-dev fuzz l:libclang_rt.fuzzer-x86_64.a the fuzzer's runtime
clang-format    lint  c:clang-format one layout for every C file
clang-tidy      lint  c:clang-tidy  static checks
cppcheck        lint  c:cppcheck    static checks
shellcheck      lint  c:shellcheck  static checks of the scripts
LIST
}
has() {
    case $1 in
    h:*) { echo '#define PCRE2_CODE_UNIT_WIDTH 8'; printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h "${1#h:}"; } | "$CC" -E - >/dev/null 2>&1 ;;
    c:*) command -v "${1#c:}" >/dev/null 2>&1 ;;
    l:*) case $(clang -print-file-name="${1#l:}" 2>/dev/null) in /*) ;; *) clang -print-runtime-dir 2>/dev/null |
             { read -r d && test -e "$d/${1#l:}"; } ;; esac ;;
    esac
}
# missing GROUP...: "package<TAB>reason" of what is not there
missing() {
    list | while read -r pkg group probe reason; do
        case " $* " in *" $group "*) has "$probe" || printf '%s\t%s\n' "$pkg" "$reason" ;; esac
    done
}
# get GROUP...: install what they lack; not 0 when that fails.
get() {
    want=$(missing "$@")
    test -n "$want" || return 0
    pkgs=$(printf '%s\n' "$want" | cut -f1 | tr '\n' ' ')
    echo "q4x: missing on this machine:"
    printf '%s\n' "$want" | sed 's/^/  /' | expand -t 24
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "q4x: there is no apt-get here; install what these Debian packages hold, then run make again: $pkgs" >&2
        return 1
    fi
    SUDO=
    if test "$(id -u)" != 0; then
        SUDO=sudo
        command -v sudo >/dev/null 2>&1 || {
            echo "q4x: not root and no sudo; as root: apt-get install $pkgs" >&2
            return 1
        }
    fi
    echo "q4x: running: ${SUDO:+sudo }apt-get install -y --no-install-recommends $pkgs"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # SUDO and pkgs are lists of words
    {
        $SUDO apt-get install -y -q --no-install-recommends $pkgs >/dev/null 2>&1 || {
            $SUDO apt-get update -q && $SUDO apt-get install -y -q --no-install-recommends $pkgs
        }
    } || {
        echo "q4x: apt-get failed; the packages needed are: $pkgs" >&2
        return 1
    }
    left=$(missing "$@")
    test -z "$left" || {
        echo "q4x: installed, yet still not found by $CC: $left" >&2
        return 1
    }
}
hard='' text=0
for group; do
    if test "$group" = text; then text=1; else hard="$hard $group"; fi
done
# shellcheck disable=SC2086 # a list of words
get $hard || exit 1
test $text = 0 || get text || echo "q4x: going on without text prompts; TEXT=0 does not ask for them" >&2
exit 0
