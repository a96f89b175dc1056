# planted faults are found at their place; runs that must not differ do not
q4x selftest
q4x selftest models/micro-a-bf16.gguf
q4x selftest golden/micro-a --json | grep -c '"good": true'
q4x selftest missing.gguf
