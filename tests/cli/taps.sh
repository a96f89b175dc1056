# a dump: written, named, described, the same twice; the arm is recorded as typed
m=models/demo.gguf ids=366,380,486,573,261
q4x tap $m --ids $ids -n 8 --arm f32
q4x tap $m --ids $ids -n 8 -o again.q4d --threads 1 --json | grep -v content
content() { q4x info --json "$1" | sed -n 's/.*"content": //p'; }
test "$(content f32)" = "$(content again)" && echo the same content
q4x tap $m --ids $ids -n 8 --arm bf16 --lever act=bf16 | tail -n 1
test "$(content f32)" = "$(content bf16)" || echo another content
q4x tap $m --ids $ids -n 2 --arm few --layer 0-1 --node 'moe.*' --mode full --rows 2
q4x info f32
q4x info --nodes few | grep -c .
q4x info --json few | grep -A 6 '"records"'
q4x info --json again | sed -n '/"args"/,/]/p'
ls
