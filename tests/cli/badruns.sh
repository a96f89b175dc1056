# runs that cannot be: one line, 128
try() { q4x "$@" >o; echo "-> $?"; cat o; }
m=models/demo.gguf
try run $m --ids ''
try run $m --ids 1,1024
try run $m --ids 1 --force-ids 2000
try run $m --ids 1 -n 5000
try run $m --ids 1 --device cuda/999
try selftest $m --device cuda/999
try run $m --ids 1 --lever act=bf16@nosuch
try run $m --ids 1 --lever gdn=chunk64@L03.attn.ctx
try run $m --ids 1 --spec cpu:plant=nan@L00.moe.ids
try tap $m --ids 1 --arm a --layer 99
try tap $m --ids 1 --arm a --node nosuch
ls
