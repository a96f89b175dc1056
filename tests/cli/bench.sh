# rates: the note on threads stands where a ratio is below 1, and nowhere else (what rounds to 1 may be either)
fits() {
    awk '$1 == "ratio" { low = $2 < 1 || $3 < 1; high = $2 > 1 && $3 > 1 }
         $1 == "note" { note = 1 }
         END { print (low && !note) || (high && note) ? "the note does not fit" : "fits" }' "$1"
}
q4x bench --rates models/demo.gguf >o
sed -n '1p;s/^\(.\) threads .*/\1/p;/^ratio/s/ .*//p' o
fits o
# twins: made up
printf 'ratio 1.90 0.70\n' >low; fits low
printf 'ratio 1.90 1.70\nnote x\n' >high; fits high
