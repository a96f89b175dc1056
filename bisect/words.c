#include "bisect/words.h"

static const struct {
    const char *name;
    int exit;
    const char *text;
} verdicts[] = {
#define VERDICT(name, exit, text) {#name, exit, text},
#include "bisect/verdicts.def"
#undef VERDICT
};

static const struct {
    const char *word, *text;
} reasons[] = {
#define REASON(word, text) {#word, text},
#include "bisect/reasons.def"
#undef REASON
};

const char *bis_verdict_name(bis_verdict v) {
    return verdicts[v].name;
}
int bis_unmeasured(bis_reason r) {
    return r == BIS_R_band_not_recorded || r == BIS_R_distance_not_recorded || r == BIS_R_rows_not_kept ||
           r == BIS_R_inputs_not_recorded;
}

int bis_exit(bis_verdict v, bis_reason r) {
    return bis_unmeasured(r) ? 125 : verdicts[v].exit;
}
const char *bis_verdict_text(bis_verdict v) {
    return verdicts[v].text;
}
const char *bis_reason_word(bis_reason r) {
    return reasons[r].word;
}
const char *bis_reason_text(bis_reason r) {
    return reasons[r].text;
}
