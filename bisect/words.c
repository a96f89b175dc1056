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
int bis_verdict_exit(bis_verdict v) {
    return verdicts[v].exit;
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
