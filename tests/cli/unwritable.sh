# output that cannot be written: 128, and nothing under the final name
try() { q4x "$@" >o; echo "-> $?"; cat o; }
full() { q4x "$@" >/dev/full; echo "-> $?"; }
m=models/demo.gguf
full help
full run --help
full run $m --ids 1 -n 2
full info $m
full levers --json
full version
full run $m --ids 1 -n 2 --json
full run $m --ids 1 -n 2 -v
full info --nodes $m
full info $m --json
# the talk is lost, the file is not: it was complete before; it is said, and it can be read
full tap $m --ids 1 -n 2 --arm a
full tap $m --ids 1 -n 2 --arm b --json
q4x info a | grep -c ^content
q4x bisect a b | tail -n 1
full run $m --ids 1 -n 2 --logits x.f32
wc -c x.f32
full synth tiny s.gguf
full synth tiny t.gguf --shards 3
full run s.gguf --ids 1 -n 1
q4x info t-00002-of-00003.gguf | grep ^arch
full bisect a b
full bisect a b --json
full report a b
full report a b --json
q4x report | head -n 1
# where the file itself cannot be written nothing is said of it
full tap $m --ids 1 -n 2 -o /dev/full
try tap $m --ids 1 -n 2 -o nowhere/a.q4d
try tap $m --ids 1 -n 2 -o /dev/full
try run $m --ids 1 -n 2 --logits /dev/full
try run $m --ids 1 -n 2 --logits nowhere/x
q4x tap $m --ids 1 -n 2 --arm f --mode full >o
full export f f.safetensors
try export f nowhere/x.safetensors
try export f /dev/full
# an older file stays when the new one fails
echo old >old.q4d
try tap $m --ids 1,5000 -n 2 -o old.q4d
cat old.q4d
ls
# a file that is being read is not written over
cp models/demo.gguf m.gguf
try tap m.gguf --ids 1,2 -n 1 -o m.gguf
try run m.gguf --ids 1,2 -n 1 --logits m.gguf
cmp models/demo.gguf m.gguf && echo as it was
q4x tap m.gguf --ids 1,2 -n 1 --mode full -o f.q4d >/dev/null
cp f.q4d g.q4d
try export f.q4d f.q4d
cmp f.q4d g.q4d && echo as it was
mkdir hf
cp golden/micro-a/* hf/
try convert hf hf/model.safetensors
try convert hf hf/config.json
cmp golden/micro-a/config.json hf/config.json && echo as it was
