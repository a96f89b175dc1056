# a checkpoint to GGUF: what is said, what is written, what is refused
try() { q4x convert "$@" 2>&1; echo "-> $?"; }
try golden/micro-a a.gguf
try golden/micro-a b.gguf --type UD-IQ1_S --threads 2 --json
q4x run b.gguf --ids 22,220,166 -n 4
q4x run golden/micro-a --ids 22,220,166,78 -n 6
q4x run a.gguf --ids 22,220,166,78 -n 6
q4x info b.gguf | sed -n '/^type/,$p'
# the same bytes, whatever the threads; a name of one's own
try golden/micro-a c.gguf -t ud-iq1_s --threads 1
cmp b.gguf c.gguf && echo equal
try golden/micro-a/ d.gguf -t f32 --name somebody
cmp a.gguf d.gguf >/dev/null || echo differ
rm -f ?.gguf
# mistakes on the line: 129
try
try golden/micro-a
try golden/micro-a x.gguf more
try golden/micro-a x.gguf --type Q9
try golden/micro-a x.gguf --threads 0
# what cannot be done: 128, one line, nothing written
try golden/micro-a x.gguf --type Q3_K
try models/demo.gguf x.gguf
try nowhere x.gguf
try golden x.gguf
try golden/micro-a nowhere/x.gguf
try golden/micro-a /dev/full
mkdir ro
try golden/micro-a ro
ls
