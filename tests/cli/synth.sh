# synthetic models: what the released files would be, a small one that runs, mistakes
q4x synth qwen3.8-flash-next --header-only
q4x synth qwen3.8-27b --header-only --json
q4x synth tiny s.gguf --seed 7 2>err; wc -l <err
q4x info s.gguf | sed -n '1,4p'
q4x run s.gguf --ids 1,2,3 -n 8
q4x synth tiny t.gguf --seed 7 --shards 3 --threads 1 >/dev/null 2>&1
ls *.gguf
q4x run t-00003-of-00003.gguf --ids 1,2,3 -n 8
q4x synth qwen3.8-flash-next h.gguf --header-only --layers 2 --experts 10 --vocab 512 --ngram-base 100
wc -c h.gguf
# a header alone is refused with a remedy, which works; the files of a set too
q4x info h.gguf; echo $?
truncate -s 199742080 h.gguf
q4x info h.gguf | sed -n '1p;/^weights/p'
q4x info --plan h.gguf --device cpu | sed -n '1p;/= needs/p'
q4x synth tiny g.gguf --shards 3 --header-only | sed -n 's/^for info *//p' >how
cat how
q4x info g-00001-of-00003.gguf; echo $?
sh how
q4x info g-00001-of-00003.gguf | sed -n '1p;/^weights/p'
q4x synth tiny "it's one.gguf" --header-only | sed -n 's/^for info *//p' | tee how
sh how && wc -c "it's one.gguf"
q4x synth tiny j.gguf --header-only --json | grep -c 'for info'
# the twin: a file that does not say so is to be fetched
sed 's/q4x.synthetic/q4x.synthetiK/' h.gguf | head -c 16768 >k.gguf
q4x info k.gguf; echo $?
q4x synth; echo $?
q4x synth huge x.gguf; echo $?
q4x synth qwen3.8-27B x.gguf; echo $?
q4x synth tiny; echo $?
q4x synth tiny x.gguf --type Q4_K_S; echo $?
q4x synth tiny x.gguf --layers 1; echo $?
q4x synth tiny x.gguf --experts 3; echo $?
q4x synth tiny x.gguf --vocab 5e2; echo $?
q4x synth tiny x.gguf --shards 500; echo $?
q4x synth tiny no/x.gguf; echo $?
q4x synth tiny /dev/full; echo $?
q4x synth qwen3.8-27b x.gguf --experts 8; echo $?
