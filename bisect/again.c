/* again.c: the command that records an arm again, with what was missing. Exact: it can be pasted. */
#include <stdlib.h>
#include <string.h>

#include "bisect/case.h"

enum { MAX_IDS = 4096 };

/* A word for the shell. */
static void put_word(FILE *o, const char *s) {
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,:=/@+-";
    if (*s && s[strspn(s, safe)] == 0) {
        fputs(s, o);
        return;
    }
    fputc('\'', o);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\'')
            fputs("'\\''", o);
        else
            fputc(c < 0x20 || c > 0x7e ? '?' : c, o);
    }
    fputc('\'', o);
}

static void put_ids(FILE *o, const char *option, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (i) fputc(',', o);
        if (!i) fprintf(o, " %s ", option);
        fprintf(o, "%d", ids[i]);
    }
}

/* Ids that forwards 1, 2, .. consumed: those chosen by arm A, for both arms, when they are to go one way; else those
 * that were given. */
static int32_t forced_ids(const bis_case *c, int arm, int32_t *ids) {
    const q4x_dump *d = c->again_forced ? c->rq.a : arm ? c->rq.b : c->rq.a;
    int32_t n = 0;
    for (int32_t f = 1; f < d->nforwards && n < MAX_IDS; f++) {
        if (!c->again_forced && (!d->forwards[f].forced || d->forwards[f].n_ids != 1)) break;
        ids[n++] = c->again_forced ? d->forwards[f - 1].sampled : d->forwards[f].ids[0];
    }
    return n;
}

/* As the dump has it, when the shell will find the file by it. */
static const char *model_path(const q4x_dump *d) {
    const char *path = bis_header_str(d, "model.path");
    for (const char *p = path; p && *p; p++)
        if (*p < 0x20 || *p > 0x7e) return NULL;
    return path && *path ? path : NULL;
}

int bis_again(const bis_case *c, int arm, int with_path, FILE *o) {
    const q4x_dump *d = arm ? c->rq.b : c->rq.a;
    const char *spec = bis_header_str(d, "arm.spec"), *model = with_path ? model_path(d) : NULL;
    if (!c->again[0] || c->header.imported_a || c->header.imported_b || !spec || d->nforwards < 1) return 0;
    const q4x_forward *first = &d->forwards[0];
    int32_t *forced = malloc(MAX_IDS * sizeof *forced);
    if (!forced) return 0;
    fputs("q4x tap ", o);
    put_word(o, model ? model : "MODEL");
    if (first->n_ids <= MAX_IDS)
        put_ids(o, "--ids", first->ids, first->n_ids);
    else
        fprintf(o, " --ids @PROMPT");
    put_ids(o, "--force-ids", forced, forced_ids(c, arm, forced));
    fprintf(o, " -n %d", d->nforwards);
    if (strcmp(spec, "cpu")) {
        fputs(" --spec ", o);
        put_word(o, spec);
    }
    fprintf(o, " %s --arm again-%c", c->again, 'a' + arm);
    free(forced);
    return 1;
}
