# what is known of a model beyond its tables: memory, digests, what is unusual, everything as JSON, mistakes
q4x info --plan models/demo.gguf --device cpu/2
q4x info --plan --ctx 64 --device cuda golden/dense-a
q4x info --plan --ctx 64 --device cuda/999 golden/dense-a | grep -e ^cuda -e 'such device'
q4x info --json --device cpu/3 --ctx 100 models/micro-a-bf16.gguf | sed -n '/^  "memory"/,/^  \]/p' | sed -n '/"weights": [0-9]/,$p'
q4x info --hash golden/dense-a | sed -n '1,5p'
q4x info --hash --threads 1 models/demo.gguf >one; q4x info --hash --threads 4 models/demo.gguf | cmp - one && wc -l <one
q4x info --sha256 models/demo.gguf >mine; sha256sum models/demo.gguf | cmp - mine && cut -c1-8 mine
q4x info --sha256 golden/micro-a | sed 's/^[0-9a-f]* //'
# one file and three: the same tensors
q4x synth tiny one.gguf --seed 5 >/dev/null 2>&1; q4x synth tiny s.gguf --seed 5 --shards 3 >/dev/null 2>&1
q4x info --hash one.gguf >one; q4x info --hash s-00002-of-00003.gguf | cmp - one && wc -l <one
q4x info --sha256 s-00002-of-00003.gguf >mine; sha256sum s-0000?-of-00003.gguf | cmp - mine && wc -l <mine
q4x info one.gguf | sed -n '/^unusual/,$p'
q4x info --json one.gguf | sed -n '/^  "unusual"/,/^  \]/p'
# every key of the JSON form, digests when asked for
q4x info --json --hash --sha256 models/demo.gguf | sed -n 's/^  "\([a-z_0-9]*\)":.*/\1/p' | tr '\n' ' '; echo
q4x info --json golden/dense-a | grep -A 6 '"name": "gdn_gate_silu"'
# a string of the file cannot drive the terminal
printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0' >evil.gguf
printf '\24\0\0\0\0\0\0\0general.architecture\10\0\0\0\3\0\0\0\0\0\0\0toy' >>evil.gguf
printf '\14\0\0\0\0\0\0\0general.name\10\0\0\0\14\0\0\0\0\0\0\0x\n\33]0;y\233\377\302\205z' >>evil.gguf
q4x info evil.gguf; echo $?
q4x info --json evil.gguf | grep general.name
q4x info --plan evil.gguf; echo $?
# mistakes
q4x info --plan --ctx 5000 models/demo.gguf; echo $?
q4x info --plan --ctx 0 models/demo.gguf; echo $?
q4x info --plan --device gpu models/demo.gguf; echo $?
q4x info --plan --device cpu:act=bf16 models/demo.gguf; echo $?
q4x info --ctx 5 models/demo.gguf; echo $?
q4x tap models/demo.gguf --ids 1 -n 1 --arm a >/dev/null; q4x info --hash a; echo $?
# names as JSON, of a model and of a dump
q4x info -n --json models/micro-a-bf16.gguf >n.json
q4x info -n models/micro-a-bf16.gguf | wc -l
grep -c '"name"' n.json; grep -c '"public": true' n.json; grep -c '"state": true' n.json
q4x tap models/micro-a-bf16.gguf --ids 1 -n 1 --arm n >o
q4x info -n --json n | cmp - n.json && echo the same
# bytes that no header accounts for
{ cat models/demo.gguf; printf 'more'; } >more.gguf
q4x info more.gguf | sed -n '/^unusual/,$p'
q4x info more.gguf --json | sed -n '/"unusual"/,$p'
