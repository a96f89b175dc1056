# text to ids and back, from both containers; what is no text, what is no tokenizer
# needs: text
try() { q4x tokenize "$@"; echo "-> $?"; }
m=models/demo.gguf
mkdir hf
cp golden/demo-tokenizer.json hf/tokenizer.json
ln -s ../golden/micro-a/model.safetensors hf/model.safetensors
sed 's/"vocab_size": [0-9]*/"vocab_size": 1024/' golden/micro-a/config.json >hf/config.json
for f in $m hf; do
    try $f -p 'The day after Monday is'
    printf 'The day after Monday is' | q4x tokenize $f --prompt-file -
    try $f -v -p '<|im_start|>Isn'"'"'t  it "café"?
'
done
printf 'caf\303\251 e\314\201 \360\237\221\251\342\200\215\360\237\224\254\r\n\000' >odd
for f in $m hf; do q4x tokenize $f --prompt-file odd; done
q4x tokenize $m --prompt-file odd >ids
q4x tokenize $m --ids @ids | head -c -1 | cmp - odd && echo the same bytes
try $m -p '<|im_end|>'
try $m -p '<|im_end|>' --no-special
try $m --ids 366,380,486,573,261
try $m --ids 130 # the first byte of two
try $m --ids 130 --json
try $m --prompt-file /dev/null
try $m --json -p 'The day'
# what cannot be
printf 'a\377b' >latin
try $m --prompt-file latin
printf 'a\355\240\200' >surrogate
try $m --prompt-file surrogate
try $m --prompt-file missing
try $m --ids 1,1024
try golden/micro-a -p text
cp -r hf few && sed -i 's/1024/1000/' few/config.json
try few -p text
cp -r hf lower && sed -i 's/"normalizer": null/"normalizer": {"type": "Lowercase"}/' lower/tokenizer.json
try lower -p text
cp -r hf broken && head -c 3000 hf/tokenizer.json >broken/tokenizer.json
try broken -p text
q4x info hf | grep ^tokenizer
q4x info lower | grep ^tokenizer
echo '{"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>", "add_bos_token": true}' >hf/tokenizer_config.json
q4x info hf | grep ^tokenizer
try hf -p 'The day'
