# every command answers -h and --help on stdout, refuses an unknown option with 129 and a hint
for c in $(q4x help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    q4x "$c" -h >h 2>e || echo "$c -h: exit code $?"
    q4x "$c" --help >h2 2>>e || echo "$c --help: exit code $?"
    q4x help "$c" >h3 2>>e || echo "help $c: exit code $?"
    test -s e && { echo "$c: help on stderr"; cat e; }
    cmp h h2 && cmp h h3
    head -n 1 h
    q4x "$c" --no-such-option >o 2>e
    echo "$c --no-such-option: $?"
    test -s o && echo "$c: a usage error on stdout"
    grep -c "unrecognized option '--no-such-option'" e
done
