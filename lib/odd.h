/* odd.h: what is unusual about a model, one finding a line. Headers are read, and a few rows: nothing here grows with
 * the model.
 */
#ifndef Q4X_ODD_H
#define Q4X_ODD_H

#include "lib/settings.h"
#include "lib/tok.h"

typedef enum {
#define ODD(id, word, why) Q4X_ODD_##id,
#include "lib/odds.def"
#undef ODD
    Q4X_ODD_COUNT
} q4x_odd_id;

typedef struct {
    q4x_odd_id id;
    char what[240]; /* printable ASCII */
} q4x_odd;

typedef struct {
    const char *word, *why;
} q4x_odd_info;
extern const q4x_odd_info q4x_odd_infos[Q4X_ODD_COUNT];

/* Findings in the order of odds.def, at most one of each; ret has room for Q4X_ODD_COUNT. settings and tok: NULL when
 * they could not be read, which leaves out what asks for them. Returns their number. */
int q4x_odds_find(const q4x_model *m, const q4x_settings *settings, const q4x_tok *tok, q4x_odd *ret);

#endif
