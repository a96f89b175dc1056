# a row of logits that is not finite chooses an id all the same: it is said on stderr, in JSON, in the dump
m=models/demo.gguf
q4x run $m --ids 1,2,3 -n 3 --lever plant=nan@out 2>e; cat e; wc -l <e
q4x run $m --ids 1,2,3 -n 3 --lever plant=nan@out#1 -v
q4x run $m --ids 1,2,3 -n 2 --lever plant=inf@logits#1 --json 2>e | grep nonfinite; cat e
q4x tap $m --ids 1,2,3 -n 3 --lever plant=nan@out#1 --arm n
q4x tap $m --ids 1,2,3 -n 3 --lever plant=nan@out#1 --arm n --json 2>e | tr -d ' \n' | grep -o '"nonfinite":[^]]*]'; cat e
q4x info n | tail -n 4
q4x info n --json | grep nonfinite\"
# no number, no grid
q4x bisect n n | grep grid
# twin: a run of numbers says nothing of it
q4x run $m --ids 1,2,3 -n 3
q4x tap $m --ids 1,2,3 -n 3 --arm a
q4x info a | tail -n 4
q4x bisect a n | tail -n 1
