# files that are not what they should be: one line, 128, nothing left behind
try() { q4x "$@" >o; echo "-> $?"; cat o; }
printf 'GGUF' >short.gguf
head -c 4096 /dev/zero | tr '\0' 'x' >noise
head -c 20000 models/demo.gguf >cut.gguf
mkdir empty
for f in missing short.gguf noise cut.gguf empty .; do try run $f --ids 1; try info $f; done
q4x tap models/demo.gguf --ids 1 -n 2 --arm a >o
head -c 5000 a.q4d >cut.q4d
{ head -c 3000 a.q4d; printf 'X'; tail -c +3002 a.q4d; } >flip.q4d
for f in cut.q4d flip.q4d noise.q4d; do try info $f; try export $f out.safetensors; done
cp noise noise.q4d
try info noise.q4d
try export a out.safetensors
# of a dump that lost its end what is whole is listed; of nothing else
head -c -40 a.q4d >late.q4d
try info late | sed -n '1,3p;/^records/,$p'
try info late --json | grep -E '"(content|forward)"|->'
try info --nodes late | sed -n '2,3p'
q4x info a --json | grep -c '"content": "'
q4x bisect a late 2>&1 | tail -n 1
ls
