# a norm over streams on a trained model: a difference that lies in a small stream is no outlier behind the norm, by the
# size of the smallest that the dump holds; a stream that was not normed is named on top of it
m=models/demo.gguf
ids=42,71,265,82,271,391,270,262,284,84,70,223,70,312,89,273,341,687,270,685,262,81,270,308,417,85,86,16,281,641,466,401
ids=$ids,299,71,73,287,85,344,840,341,223,271,70,85,278,260,80,390,68,610,261,849,16,272,81,526,71,665,405,81,87,302,71
ids=$ids,391,308,970,306,14,278,333,273,14,277,266,86,341,461,294,223,82,333,886,313,16
tap() { q4x tap $m --ids "$ids" -n 16 --bands --rows all --node '*' "$@" >/dev/null; }
tap --spec cpu:act=bf16 --arm a; tap --spec cpu:act=bf16,gdn=chunk64-bf16 --arm b
q4x bisect a b | tail -n 1
tap --spec cpu:act=bf16,gdn=chunk64-bf16,plant=unnormed@L07.ahc.norm#0 --arm c
q4x bisect a c | grep -E '^(out|verdict)'
tap --spec cpu:act=bf16,gdn=chunk64-bf16,plant=parts@L04.mhc.norm#3 --arm d
q4x bisect a d | grep -E '^(out|verdict)'
