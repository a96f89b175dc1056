#include "bisect/control.h"

#include <stdlib.h>
#include <string.h>

#include "bisect/flips.h"
#include "bisect/header.h"

bis_count bis_recorded(const q4x_dump *d, const char *key) {
    const json_t *j = json_object_get(json_object_get(d->tail, "controls"), key);
    const json_t *differing = json_object_get(j, "differing"), *compared = json_object_get(j, "compared");
    bis_count r = {.differing = json_integer_value(differing), .compared = json_integer_value(compared)};
    r.measured = json_is_integer(differing) && json_is_integer(compared) && r.differing >= 0 && r.compared > 0 &&
                 r.compared <= INT64_MAX / 2 && r.differing <= r.compared;
    return r.measured ? r : (bis_count){0};
}

bis_count bis_both(const bis_count arm[2]) {
    if (!arm[0].measured || !arm[1].measured) return (bis_count){0};
    return (bis_count){1, arm[0].differing + arm[1].differing, arm[0].compared + arm[1].compared};
}

bis_count bis_floor_count(const bis_floor *f) {
    return (bis_count){f->measured, f->differing, f->compared};
}

/* One record of the two recordings. */
static int count(bis_floor *r, int32_t f, const char *node, int differs) {
    const char *kind = bis_kind(node);
    r->compared++;
    r->differing += differs;
    if (differs && !r->first_node) {
        r->first_forward = f;
        r->first_node = strdup(node);
        if (!r->first_node) return -1;
    }
    for (int32_t i = 0; i < r->nstages; i++)
        if (!strcmp(r->stage[i].kind, kind)) {
            r->stage[i].compared++;
            r->stage[i].differing += differs;
            return 0;
        }
    bis_stage *v = realloc(r->stage, sizeof *v * (size_t)(r->nstages + 1));
    if (!v) return -1;
    r->stage = v;
    v += r->nstages;
    *v = (bis_stage){strdup(kind), differs, 1};
    r->nstages += v->kind != NULL;
    return v->kind ? 0 : -1;
}

static int by_differing(const void *x, const void *y) {
    const bis_stage *a = x, *b = y;
    if (a->differing != b->differing) return a->differing > b->differing ? -1 : 1;
    return strcmp(a->kind, b->kind);
}

static int walk(const bis_pair *p, bis_floor *r) {
    for (int32_t f = 0; f < p->nf; f++) {
        const int other = f >= p->ncomparable;
        r->unequal_forwards += other;
        for (int32_t n = 0; n < p->nn; n++) {
            size_t at = bis_at(p, f, n);
            if (p->ta[at] && count(r, f, p->a->nodes[n].name, other || p->eq[at] != BIS_SAME)) return -1;
        }
        const q4x_forward *x = BIS_FA(p, f), *y = BIS_FB(p, f);
        if ((x->logits || y->logits) && count(r, f, "logit row", other || !bis_logits_equal(x, y))) return -1;
    }
    if (r->nstages) qsort(r->stage, (size_t)r->nstages, sizeof *r->stage, by_differing);
    while (r->nstages && !r->stage[r->nstages - 1].differing) free(r->stage[--r->nstages].kind);
    return 0;
}

/* A floor is another recording, or it is none. */
static int refuse_copy(const q4x_dump *d, const q4x_dump *again, const char *arm, q4x_err *err) {
    const char *file = again->path ? again->path : "?";
    switch (bis_header_recording(d, again)) {
    case BIS_OTHER_RECORDING: return 0;
    case BIS_SAME_RECORDING:
        if (d->path && again->path && !strcmp(d->path, again->path))
            return q4x_fail(err, Q4X_E_MISMATCH,
                            "floor of arm %s: %.120s is the arm itself; a floor needs a second recording of it", arm,
                            file);
        return q4x_fail(err, Q4X_E_MISMATCH,
                        "floor of arm %s: %.120s is a copy of the arm's own recording; a floor needs a second one", arm,
                        file);
    case BIS_UNTOLD: break;
    }
    return q4x_fail(err, Q4X_E_MISMATCH,
                    "floor of arm %s: %.120s may be a copy of the arm's own recording: neither says when it was made; "
                    "a floor needs free.recording or free.time in its header",
                    arm, file);
}

int bis_floor_measure(q4x_dump *d, q4x_dump *again, const char *arm, bis_floor *ret, q4x_err *err) {
    bis_header h = {0};
    bis_pair *p = NULL;
    bis_reason why;
    bis_floor r = {.measured = 1};
    char where[240];
    int rc;
    if ((rc = refuse_copy(d, again, arm, err))) return rc;
    TRY(bis_header_diff(d, again, BIS_NULL_NONE, 1, &h, err));
    const char *other = bis_header_other_arm(&h);
    if (other) {
        rc = q4x_fail(err, Q4X_E_MISMATCH, "floor of arm %s: not a second recording of the same arm: %.200s differs",
                      arm, other);
        goto done;
    }
    TRY(bis_pair_new(d, again, 0, &p, &why, where, err));
    if (why != BIS_R_none) {
        rc = q4x_fail(err, Q4X_E_MISMATCH, "floor of arm %s: %s (%s)", arm, bis_reason_text(why), where);
        goto done;
    }
    if (walk(p, &r)) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "out of memory for the floor of arm %s", arm);
        goto done;
    }
    if (!r.compared) {
        rc = q4x_fail(err, Q4X_E_MISMATCH, "floor of arm %s: the two recordings hold no records to compare", arm);
        goto done;
    }
    *ret = r;
    r = (bis_floor){0};
done:
    bis_floor_free(&r);
    bis_pair_free(p);
    bis_header_free(&h);
    return rc;
}

void bis_floor_free(bis_floor *f) {
    for (int32_t i = 0; i < f->nstages; i++) free(f->stage[i].kind);
    free(f->stage);
    free(f->first_node);
    *f = (bis_floor){0};
}
