/* words.h: the fixed word lists of the judge: verdicts with their exit codes, reasons. */
#ifndef BISECT_WORDS_H
#define BISECT_WORDS_H

typedef enum {
#define VERDICT(name, exit, text) BIS_V_##name,
#include "bisect/verdicts.def"
#undef VERDICT
    BIS_V_COUNT
} bis_verdict;

typedef enum {
#define REASON(word, text) BIS_R_##word,
#include "bisect/reasons.def"
#undef REASON
    BIS_R_COUNT
} bis_reason;

const char *bis_verdict_name(bis_verdict v);
/* Exit code: the verdict's, but 125 (cannot judge) where the reason is that something was not recorded. */
int bis_exit(bis_verdict v, bis_reason r);
/* 1 when the reason is that something was not recorded. */
int bis_unmeasured(bis_reason r);
const char *bis_verdict_text(bis_verdict v);
const char *bis_reason_word(bis_reason r);
const char *bis_reason_text(bis_reason r);

#endif
