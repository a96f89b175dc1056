# ids in, ids out
m=models/demo.gguf ids=366,380,486,573,261
q4x run $m --ids $ids -n 8
q4x run $m --ids $ids
echo "$ids" | tr , '\n' >ids.txt
q4x run $m --ids @ids.txt -n 8 --threads 1
q4x run $m --ids $ids -n 8 --lever act=bf16
q4x run $m --ids $ids -n 8 --spec cpu/1:act=bf16
q4x run $m --ids $ids -n 8 --stop 380,16
q4x run $m --ids $ids --force-ids 571,16,281,380,399,569
q4x run $m --ids $ids -n 3 -v
q4x run $m --ids $ids -n 2 --json
q4x run $m --ids $ids -n 3 --logits last.f32
q4x run $m --ids $ids -n 3 --logits all.f32 --logits-rows all
wc -c last.f32 all.f32
# the last row of the prompt is row 4 of 5; rows are 1024 wide
dd if=all.f32 bs=4096 skip=4 status=none | cmp - last.f32 && echo equal rows
