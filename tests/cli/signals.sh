# a signal in the middle leaves no file behind, and ends the command as that signal does; SIGKILL, the twin, leaves one
m=models/demo.gguf
begun() { # wait until the temporary is there
    n=0
    until ls ./*.tmp >/dev/null 2>&1 || test $n = 200; do n=$((n + 1)); sleep 0.05; done
}
cut() { # SIGNAL COMMAND...
    sig=$1; shift
    q4x "$@" >o 2>&1 &
    begun
    kill -"$sig" $!
    wait $! 2>/dev/null
    echo "$sig: $?"
    ls | grep -c '\.tmp$'
}
echo old >a.q4d
for s in TERM HUP; do cut $s tap $m --ids 1,2,3 -n 3000 --mode full --node '*' -o a.q4d; done
cat a.q4d
cut TERM run $m --ids 1,2,3 -n 3000 --logits x.f32
cut KILL tap $m --ids 1,2,3 -n 3000 --mode full --node '*' -o a.q4d
rm -f ./*.tmp
# the folder of the selftest
mkdir tmp
TMPDIR=$PWD/tmp q4x selftest >o 2>&1 &
n=0
until ls tmp/*/* >/dev/null 2>&1 || test $n = 200; do n=$((n + 1)); sleep 0.05; done
kill -TERM $!
wait $! 2>/dev/null
echo "selftest: $?"
ls tmp
# a reader that has enough
{ q4x run $m --ids 1,2,3 -n 3000 -v --logits x.f32; echo "$?" >code; } | head -n 1
grep -cx '141\|128' code # 128 where SIGPIPE is ignored here
# a file that may not grow is an error in one line
(ulimit -f 8; q4x tap $m --ids 1,2,3 -n 8 --mode full -o b.q4d); echo "-> $?"
ls
