# prompts as text: run and tap make the same of them as of the ids
# needs: text
m=models/demo.gguf
q4x run $m -p 'The day after Monday is' -n 8
q4x run $m -p 'The day after Monday is' -n 8 --stop 16
printf 'The day after Monday is' | q4x run $m --prompt-file - -n 3 -v
q4x run $m -p 'The day after Monday is' -n 2 --json | sed '/forwards/,$d'
q4x run $m --ids 366,380,486,573,261 -n 2 --json | grep text
q4x run golden/micro-a --ids 1,2,3 -n 2 --json | grep text
q4x tap $m -p 'The day after Monday is' -n 8 --arm text
q4x tap $m --ids 366,380,486,573,261 -n 8 --arm ids
q4x info text | grep '^prompt'
q4x info ids | grep '^prompt'
q4x bisect text ids | tail -n 1
printf 'a\000b' >odd
q4x tap $m --prompt-file odd -n 1 --arm nul | tail -n 1
q4x info nul | grep '^prompt'
# a model with more rows than its tokenizer has ids: what they say is nothing, and no error
mkdir hf
ln -s ../golden/micro-a/model.safetensors hf/model.safetensors
cp golden/micro-a/config.json hf/config.json
echo '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}' >hf/tokenizer.json
q4x run hf -p ab -n 4
q4x run hf --ids 0,1 -n 4 --json | grep '"text"'
try() { q4x "$@" >o; echo "-> $?"; cat o; }
touch nothing
try run $m --prompt-file nothing
try run $m --prompt-file missing
try run golden/micro-a -p text
try tap $m -p 'The day' --arm a/b
