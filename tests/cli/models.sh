# what is in a file: GGUF, a checkpoint, each also as JSON
q4x info models/demo.gguf
q4x info -v models/micro-a-bf16.gguf | tail -n 12
q4x info golden/micro-b
q4x info --json golden/micro-a | sed -n '/hyper_parameters/,/}/p'
q4x info --nodes models/demo.gguf | sed 's/ .*//; s/^L[0-9]*\.//' | sort -u | tr '\n' ' '
