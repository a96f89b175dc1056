# full tensors out, for any other tool
q4x tap models/demo.gguf --ids 366,380,486 -n 2 --arm f --mode full --node 'moe.ids,attn.ctx,gdn.core' --layer 2-3 >o
q4x export f.q4d --to safetensors f.safetensors && echo written
wc -c f.safetensors
q4x export f /dev/stdout | cmp - f.safetensors && echo the tensors alone
# the header: 8 bytes of length, then JSON
n=$(od -An -tu8 -N8 f.safetensors | tr -d ' ')
dd if=f.safetensors bs=1 skip=8 count="$n" status=none | tr '{' '\n' | grep -o '^"f[01]/[^"]*"\|^"dtype":"[^"]*","shape":[^]]*]' | head -n 12
dd if=f.safetensors bs=1 skip=8 count="$n" status=none | tr ',' '\n' | grep -o '"f[01]/[^"]*"' | sort
