# sessions: numbered, named, the last one reported again; a dump that was written again is no longer the session's
m=models/micro-a-bf16.gguf
tap() { q4x tap $m --ids 1,2,3,4 -n 3 "$@" >/dev/null; }
tap --arm a; tap --arm b --threads 2; tap --arm c --lever act=bf16
q4x report; echo "exit $?"
q4x bisect a b >/dev/null; q4x bisect a c -v >/dev/null
ls .q4x; cat .q4x/last
q4x report | sed -n 1p
q4x report 001 | sed -n 1p
q4x report .q4x/002 --json | sed -n 1,2p
q4x bisect a b --session mine >/dev/null; q4x bisect a c --session mine >/dev/null
grep -c . mine/journal.jsonl
q4x report mine | sed -n 1p
q4x report | sed -n 1p
q4x report none; echo "exit $?"
q4x bisect a none; echo "exit $?"
ls .q4x
tap --arm c --lever act=bf16 --ids 4,3,2
q4x report mine; echo "exit $?"
mkdir locked; : >locked/journal.jsonl
if command -v flock >/dev/null; then
    flock locked/journal.jsonl q4x bisect a b --session locked; echo "exit $?"
else
    echo "q4x bisect: session locked is in use by another process; wait for it or name another"; echo "exit 128"
fi
