# what is wrong on the command line: 129, one line with a hint, nothing on stdout
try() { q4x "$@" >o 2>e; echo "-> $?"; cat e o; test "$(wc -l <e)" = 1 || echo "not one line"; }
q4x; echo "-> $?"
try rnu
try infos
try xyzzyplugh
try --frobnicate
try help nothing
try run
try run models/demo.gguf
try run models/demo.gguf --ids 1,2,x
try run models/demo.gguf --ids 1,,2
try run models/demo.gguf --ids -1
try run models/demo.gguf --ids 99999999999
try run models/demo.gguf --ids 1 -p text
try run models/demo.gguf -p text --prompt-file file
try run models/demo.gguf -p a -p b
try tokenize
try tokenize models/demo.gguf
try tokenize models/demo.gguf --ids 1 -p text
try tokenize models/demo.gguf --ids 1,x
try run models/demo.gguf --ids 1 -n 0
try run models/demo.gguf --ids 1 -n 1x
try run models/demo.gguf --ids 1 --threads 0
try run models/demo.gguf --ids 1 --device tpu
try run models/demo.gguf --ids 1 --lever act=f64
try run models/demo.gguf --ids 1 --lever nosuch=1
try run models/demo.gguf --ids 1 --as nosuch
try run models/demo.gguf --ids 1 --spec cpu --device cpu
try run models/demo.gguf extra --ids 1
try tap models/demo.gguf --ids 1
try tap models/demo.gguf --ids 1 --arm a/b
try tap models/demo.gguf --ids 1 --arm a --mode some
try tap models/demo.gguf --ids 1 --arm a --rows 5-3
try tap models/demo.gguf --ids 1 --arm a --rows 99999999999999999999
try tap models/demo.gguf --ids 1,2,3 -n 2 --arm a --rows 3-9
try bisect a b c
# no value is empty, no list has a hole
m=models/demo.gguf
for o in --ids --stop --force-ids --spec --device --lever --as --threads --logits --logits-rows --prompt --prompt-file; do try run $m $o ''; done
try run $m -n ''
try run $m ''
for o in --layer --node --mode --rows --arm --output; do try tap $m --ids 1 $o ''; done
for o in --floor-a --session; do try bisect a b $o ''; done
try bisect a b --device-null a ''
try run $m --ids 1,2,
try run $m --ids ,1
try run $m --ids 1,2 --stop 1,,
try run $m --ids 1 --spec cpu:act=bf16,
try run $m --ids 1 --spec cpu:,act=bf16
try run $m --ids 1 --spec cpu:
try run $m --ids 1 --lever act=bf16,
try tap $m --ids 1 --arm a --node emb,
try tap $m --ids 1 --arm a --node nosuch,emb,nada
try tap $m --ids 1 --arm a --node gdn.core --layer 3
try tap $m --ids 1 --arm a --layer 0,
try tap $m --ids 1 --arm a --layer 99
# twins: what looks alike and is right
printf '1,\n2 3\n' >ids.txt
for ids in '1,2,3' ' 1 , 2 3' @ids.txt; do q4x run $m --ids "$ids" -n 2; done
q4x run $m --ids 1,2,3 -n 2 --lever act=bf16,gdn=chunk64 --stop '5, 6'
q4x tap $m --ids 1,2,3 -n 2 -o /dev/null --node 'emb,gdn.core' --layer 2-3 | tail -n 1
try export only-one
try export a b --to npy
try info
ls
# names: what cannot stand in a dump's header is said, and nothing typed drives the terminal
odd=$(printf 'a\377')
try tap $m --ids 1 --arm "$odd"
try tap $m --ids 1 --arm "$(printf 'a\033b')"
try tap $m --ids 1 --arm x --lever "act=bf16@[!$odd]*"
ln -s models/demo.gguf "$odd.gguf"
try tap "$odd.gguf" --ids 1 --arm x
try tap $m --ids 1 --arm x --mode "$(printf '\033[31m')"
try run $m --ids 1 --device "$(printf '\033[31m')"
try "$(printf '\033[31m')"
try "-$(printf '\033[31m')"
try run $m --ids @
try run $m --ids ' '
try run $m --ids 1 --stop ' '
try run $m "The day" -n 3
try bisect a b --device-null a --json
try info $m --plan --device cpu/3 --threads 5
try info $m --plan --device cuda --threads 5
try run $m --ids 1 --device cuda --threads 4
try run $m --ids 1 --spec cuda/1:act=bf16 --threads 4
try tap $m --ids 1 --arm x --device cuda --threads 4
try selftest --device cuda
try selftest $m --device cuda:act=bf16
try selftest $m --device cpu/2
try selftest $m --device tpu
q4x tap $m --ids 1 -n 1 --arm one >o; try report one
try synth tiny x.gguf --shards 500
# what was typed stays on one line, cut where it is long; no word is near to a long one
X=$(head -c 100000 /dev/zero | tr '\0' x)
try "$X"
try help "$X"
try info "--$X"
try synth "$X" o
try tap $m --ids 1 --arm "$(printf 'a\nb')"
try tap $m --ids 1 --mode "$(printf '\nTry')"
try info "--$(printf 'a\nb')"
# names that are none, and "-"
for a in . .. .a a.q4d .q4d; do try tap $m --ids 1 --arm $a; done
try tap $m --ids 1 -o -
try run $m --ids 1 --logits -
try convert golden/micro-a -
try export one -
try synth tiny -
try synth tiny - --header-only
test ! -e ./- && test ! -e .a.q4d && test ! -e a.q4d.q4d && echo nothing written
# twins
q4x tap $m --ids 1 -n 1 -o "$odd.q4d" --json | sed -n '/"dump"/p'
q4x info "$odd.q4d" | sed -n 's/.*"label": "\([^"]*\)".*/\1/p'
q4x tap $m --ids 1 -n 1 --arm 'é b' >o; q4x info 'é b' --json | grep '"label"'
q4x run "$odd.gguf" --ids 1 -n 1
q4x info $m --plan --device cpu --threads 5 | grep '^cpu'
rm -f "$odd.gguf" "$odd.q4d"
