# what is asked for and would change nothing is refused: 129, one line, nothing on stdout, nothing written
m=models/demo.gguf
try() { q4x "$@" >o 2>e; echo "-> $?"; cat e o; test "$(wc -l <e)" = 1 || echo "not one line"; }
try run $m --ids 1 --logits-rows all
try run $m --ids 1 --logits-rows last
try run $m --ids 1 --no-special
try run $m --ids 1 --stop 1024
try run $m --ids 1 --force-ids 1024
try run $m --ids 1 --force-ids 1,2,3 -n 3
try tap $m --ids 1 --arm x --mode hash --rows all
try tap $m --ids 1 --arm x --mode hash --node '*'
try tap $m --ids 1 --arm x --mode hash --layer 1
try tap $m --ids 1 --arm x --no-special
try tokenize $m --ids 1 --no-special
try info $m -n --plan
try info $m -n --hash
try info $m -n --sha256
try info $m --ctx 5
try info $m --device cpu
try info $m -n --json --ctx 5
try info $m --threads 2
try info $m --sha256 --threads 2
try synth tiny --header-only --threads 2
try levers --json --markdown
try help run --markdown
q4x tap $m --ids 1 -n 1 --arm a >o; q4x tap $m --ids 1 -n 1 --arm b --lever act=bf16 >o
for x in '--plan' '--hash' '--sha256' '--threads 2' '--json --ctx 5' '--json --device cpu'; do try info a $x; done
q4x bisect a b --session s >o 2>e
try report a b --session s
try report s --session s
try report --session s --floor-a a
try report --session s --allow-confounded
try report s --device-null a b
try report --floor-b a
# twins: the nearest that means something
good() { q4x "$@" >o 2>e; echo "$? $(head -n 1 o)"; cat e; }
good run $m --ids 1 -n 1 --logits x.f32 --logits-rows last
good run $m --ids 1 -n 3 --stop 1023 --force-ids 1,1023
good tap $m --ids 1 -n 1 --arm x --mode hash --bands --node '*' --layer 1
good tap $m --ids 1 -n 1 --arm x --rows all
good info $m --hash --threads 2
good info $m --json --ctx 5 --device cpu --threads 2
good info $m -n --json
good synth tiny --header-only --seed 3
good report --session s
good report s
q4x tap $m --ids 1 -n 1 --arm a2 >o
good report a b --floor-a a2
good report a b --allow-confounded
ls
