# what is wrong on the command line: 129, one line and a hint, nothing on stdout
try() { q4x "$@" >o; echo "-> $?"; cat o; }
try
try rnu
try infos
try xyzzyplugh
try --frobnicate
try help nothing
try run
try run models/demo.gguf
try run models/demo.gguf --ids 1,2,x
try run models/demo.gguf --ids 1,,2
try run models/demo.gguf --ids -1
try run models/demo.gguf --ids 99999999999
try run models/demo.gguf --ids @missing
try run models/demo.gguf -p 'The day after Monday is'
try run models/demo.gguf --ids 1 -n 0
try run models/demo.gguf --ids 1 -n 1x
try run models/demo.gguf --ids 1 --threads 0
try run models/demo.gguf --ids 1 --device tpu
try run models/demo.gguf --ids 1 --lever act=f64
try run models/demo.gguf --ids 1 --lever nosuch=1
try run models/demo.gguf --ids 1 --as nosuch
try run models/demo.gguf --ids 1 --spec cpu --device cpu
try run models/demo.gguf extra --ids 1
try tap models/demo.gguf --ids 1
try tap models/demo.gguf --ids 1 --arm a/b
try tap models/demo.gguf --ids 1 --arm a --mode some
try tap models/demo.gguf --ids 1 --arm a --rows 5-3
try export only-one
try export a b --to npy
try info
ls
