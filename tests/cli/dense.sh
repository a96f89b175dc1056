# the dense architecture: what is in its file, ids, levers, where two arms part; and beside another architecture
m=golden/dense-a ids=139,79,157,224,187,180,171,50,4
q4x info $m | grep -E '^(architecture|plan|mlp_width|gdn_gate|layer_kinds|norm|mlp) '
q4x info --nodes $m | sed -n '1,22p'
q4x info --nodes $m | sed -n '/^L03/p;/^out/,$p' | sed 's/ public/+/' | tr '\n' ' '; echo
q4x run $m --ids $ids -n 8
q4x run $m --ids $ids -n 8 --as hf-bf16
q4x run $m --ids $ids --lever moe.combine=experts; echo "exit $?"
tap() { q4x tap $m --ids $ids -n 6 --bands "$@" >/dev/null; }
tap --arm f32; tap -o again.q4d; tap --arm chunks --lever gdn=chunk64; tap --arm fault --lever plant=ulp@L02.mlp.act#1
q4x bisect f32 again; echo "exit $?"
q4x bisect f32 chunks | grep -E '^(lever|structure|first|verdict)'
q4x bisect f32 fault; echo "exit $?"
q4x report f32 chunks | sed -n '/^## Growth/,/^```$/p'
q4x tap golden/micro-a --ids $ids -n 6 --bands --arm other >/dev/null
q4x bisect f32 other; echo "exit $?"
q4x bisect other f32 | tail -n 1
