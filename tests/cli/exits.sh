# needs: text
# 129 is what the words of the command line say; a file that is missing, or wrong inside, is 128, whatever names it
m=models/demo.gguf
q4x tap $m --ids 1,2 -n 2 --arm a >o
q4x tap $m --ids 1,2 -n 2 --arm b --threads 1 >o
code() { # EXPECTED COMMAND...
    want=$1; shift
    q4x "$@" >o 2>e
    got=$?
    test $got = "$want" || echo "q4x $*: $got, expected $want"
    test "$(wc -l <e)" = 1 || { echo "q4x $*: not one line"; cat e; }
    test ! -s o || { echo "q4x $*: something on stdout"; cat o; }
}
gone() { code 128 "$@"; grep -q 'No such file\|cannot find' e || cat e; }
mkdir empty
printf '1,x' >bad; printf '' >none; printf '1,\0002' >nul; printf 'a\377b' >latin1
# missing, every command that reads a file
gone bench gone
gone bisect gone a; gone bisect a gone
for o in --floor-a --floor-b; do gone bisect a b $o gone; gone report a b $o gone; done
gone bisect a b --device-null a gone; gone report a b --device-null gone b
gone convert gone out.gguf
gone export gone out.safetensors
gone info gone; gone info gone.q4d; gone info --plan gone; gone info -n gone
gone report gone a; gone report a gone; gone report gone; gone report --session gone
for c in "run $m" "tap $m --arm c"; do
    for o in --ids --prompt-file; do gone $c $o @gone; done
    for o in --force-ids --stop; do gone $c --ids 1 $o @gone; done
done
gone run gone --ids 1; gone tap gone --ids 1 --arm c
gone selftest gone
gone tokenize gone -p x; gone tokenize $m --ids @gone; gone tokenize $m --prompt-file gone
# wrong inside
for c in "run $m" "tokenize $m"; do for f in bad none nul empty; do code 128 $c --ids @$f; cat e; done; done
for o in --force-ids --stop; do for f in bad none nul; do code 128 run $m --ids 1 $o @$f; cat e; done; done
for f in latin1 none; do code 128 run $m --prompt-file $f; cat e; done
code 128 tokenize $m --prompt-file latin1; cat e
q4x tokenize $m --prompt-file none
code 128 convert empty out.gguf; cat e
# twins: the same said on the command line
for l in 1,x 1, 1025; do code 129 run $m --ids $l; code 129 tokenize $m --ids $l; done
for o in --force-ids --stop; do for l in 1,x 1, 1025; do code 129 run $m --ids 1 $o $l; done; done
code 129 run $m -p "$(cat latin1)"; cat e
code 129 run $m -p ''
code 129 convert golden/micro-a out.gguf --name "$(cat latin1)"; cat e
ls
