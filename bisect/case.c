#include "bisect/case.h"
#include "bisect/fmt.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int bis_say(bis_lines *l, const char *fmt, ...) {
    char *text = NULL;
    va_list ap;
    if (l->n >= BIS_MAX_LINES) return -1;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) return -1;
    bis_clean(text); /* names come from files */
    l->line[l->n++] = text;
    return 0;
}

static void drop_lines(bis_lines *l) {
    for (int i = 0; i < l->n; i++) free(l->line[i]);
    l->n = 0;
}

static void end(bis_case *c, bis_verdict v, bis_reason r) {
    c->verdict = v;
    c->reason = r;
}

/* A pair named with --device-null: must differ in the device alone, with this case's model and kernels, and the levers
 * of one of its arms: what other levers do on another device it cannot tell. */
static int test_null(bis_case *c, bis_null *ret, q4x_err *err) {
    const bis_request *q = &c->rq;
    bis_header h = {0}, own = {0};
    bis_pair *p = NULL;
    bis_reason why;
    char where[240];
    int rc;
    TRY(bis_header_diff(q->null_a, q->null_b, BIS_NULL_NONE, 0, &h, err));
    TRY(bis_header_diff(q->a, q->null_a, BIS_NULL_NONE, 1, &own, err));
    if (!bis_header_is_device_pair(&h)) {
        rc = q4x_fail(err, Q4X_E_MISMATCH,
                      "device null: the two dumps must be runs of one build that differ in the device "
                      "alone (and declare model, device and levers)");
        goto done;
    }
    if (!own.same_kernels || own.fatal == BIS_R_model_differs) {
        rc = q4x_fail(err, Q4X_E_MISMATCH, "device null: made with another model or other kernels than arm A: %.200s",
                      own.fatal == BIS_R_none ? "kernels" : own.where);
        goto done;
    }
    c->null_arm = bis_header_same_levers(q->null_a, q->a) ? 0 : 1;
    if (c->null_arm && !bis_header_same_levers(q->null_a, q->b)) {
        const char *spec = bis_header_str(q->null_a, "arm.spec");
        rc = q4x_fail(err, Q4X_E_MISMATCH,
                      "device null: expected the levers of arm A or of arm B, found %.120s: that says nothing of the "
                      "device under theirs; record both devices with the levers of one arm",
                      spec ? bis_printable(spec).s : "others");
        goto done;
    }
    TRY(bis_pair_new(q->null_a, q->null_b, 0, &p, &why, where, err));
    if (why != BIS_R_none) {
        rc = q4x_fail(err, Q4X_E_MISMATCH, "device null: %s (%s)", bis_reason_text(why), where);
        goto done;
    }
    c->null_tested = 1;
    c->null_compared = p->compared;
    c->null_differing = p->compared - p->identical;
    for (int32_t f = 0; f < p->ncomparable; f++) {
        const q4x_forward *x = BIS_FA(p, f), *y = BIS_FB(p, f);
        if (!x->logits && !y->logits) continue;
        c->null_compared++;
        c->null_differing += !bis_logits_equal(x, y);
    }
    if (c->null_compared && !c->null_differing && !p->nexcluded && !p->unaligned) *ret = BIS_NULL_NAMED;
done:
    bis_pair_free(p);
    bis_header_free(&h);
    bis_header_free(&own);
    return rc;
}

static void count_logits(bis_case *c) {
    for (int32_t f = 0; f < c->pair->ncomparable; f++) {
        const q4x_forward *x = BIS_FA(c->pair, f), *y = BIS_FB(c->pair, f);
        if (!x->logits || !y->logits) continue;
        c->logit_rows++;
        c->logit_rows_equal += bis_logits_equal(x, y);
    }
}

/* Both arms consumed the same ids; are those the ones that they say they were given? */
static int prompt_contradicts(bis_case *c) {
    char what[200];
    for (int arm = 0; arm < 2; arm++) {
        if (!bis_header_prompt_contradicts(arm ? c->rq.b : c->rq.a, what, sizeof what)) continue;
        end(c, BIS_V_NOT_COMPARABLE, BIS_R_header_inconsistent);
        snprintf(c->where, sizeof c->where, "arm %c: %s", 'A' + arm, what);
        return 1;
    }
    return 0;
}

/* Steps 5 to 10, on a pair that lines up. */
static int compare(bis_case *c, q4x_err *err) {
    const bis_request *q = &c->rq;
    int rc = 0;
    if (q->floor_a) TRY(bis_floor_measure(q->a, q->floor_a, "A", &c->floor_a, err));
    if (q->floor_b) TRY(bis_floor_measure(q->b, q->floor_b, "B", &c->floor_b, err));
    for (int arm = 0; arm < 2; arm++) {
        c->perturbation[arm] = bis_recorded(arm ? q->b : q->a, "perturbation");
        c->read_twice[arm] = bis_recorded(arm ? q->b : q->a, "read_twice");
    }
    TRY(bis_flips_find(c->pair, &c->flips, err));
    TRY(bis_map_make(c->pair, &c->header, &c->flips, &c->map, err));
    TRY(bis_decide(c->pair, &c->choices, err));
    count_logits(c);
    c->compared = 1;
done:
    return rc;
}

static int judge(bis_case *c, q4x_err *err) {
    const bis_request *q = &c->rq;
    bis_null null = q->session_null ? BIS_NULL_SESSION : BIS_NULL_NONE;
    bis_reason why;
    int rc = 0;
    if (q->null_a && q->null_b && !q->truncated_a && !q->truncated_b) TRY(test_null(c, &null, err));
    TRY(bis_header_diff(q->a, q->b, null, q->allow_confounded, &c->header, err));
    if (q->truncated_a || q->truncated_b) {
        end(c, BIS_V_TRUNCATED, BIS_R_no_end_marker);
        snprintf(c->where, sizeof c->where, "arm %s: %d complete forwards", q->truncated_a ? "A" : "B",
                 q->truncated_a ? q->a->nforwards : q->b->nforwards);
        goto done;
    }
    if (c->header.fatal != BIS_R_none) {
        end(c, BIS_V_NOT_COMPARABLE, c->header.fatal);
        snprintf(c->where, sizeof c->where, "%s", c->header.where);
        goto done;
    }
    const int partial = q->allow_confounded && (c->header.imported_a || c->header.imported_b);
    TRY(bis_pair_new(q->a, q->b, partial, &c->pair, &why, c->where, err));
    if (why != BIS_R_none) {
        end(c, BIS_V_UNSTRUCTURED, why);
    } else if (!c->pair->ncomparable) {
        end(c, BIS_V_NOT_COMPARABLE, BIS_R_forward0_differs);
        snprintf(c->where, sizeof c->where, "%s", bis_reason_text(c->pair->excluded[0].why));
    } else if (prompt_contradicts(c)) {
        ;
    } else if (!c->pair->compared) {
        end(c, BIS_V_UNSTRUCTURED, BIS_R_no_records);
    } else {
        TRY(compare(c, err));
        bis_verdict_find(c);
    }
done:
    return rc;
}

/* "DIVERGED CONTAMINATED CONFOUNDED(2: act, gdn)" */
static void spell(bis_case *c) {
    size_t at = (size_t)snprintf(c->name, sizeof c->name, "%s%s", bis_verdict_name(c->verdict),
                                 c->contaminated ? " CONTAMINATED" : "");
    const bis_header *h = &c->header;
    if (!c->compared || c->verdict == BIS_V_UNSTRUCTURED || (h->nlever <= 1 && !h->unknown)) return;
    c->confounded = h->nlever + h->unknown;
    at += (size_t)snprintf(c->name + at, sizeof c->name - at, " CONFOUNDED(%d: ", c->confounded);
    for (int i = 0; i < c->confounded; i++) {
        const char *lever = i < h->nlever ? h->lever[i].name : "unknown provenance";
        if (at + strlen(lever) + 20 > sizeof c->name) {
            at += (size_t)snprintf(c->name + at, sizeof c->name - at, "%s...", i ? ", " : "");
            break;
        }
        at += (size_t)snprintf(c->name + at, sizeof c->name - at, "%s%s", i ? ", " : "", lever);
    }
    snprintf(c->name + at, sizeof c->name - at, ")");
    bis_clean_code(c->name);
}

int bis_judge(const bis_request *rq, bis_case **ret, q4x_err *err) {
    bis_case *c = calloc(1, sizeof *c);
    if (!c) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for a case");
    c->rq = *rq;
    int rc = judge(c, err);
    if (rc) {
        bis_case_free(c);
        return rc;
    }
    c->exit = bis_exit(c->verdict, c->reason);
    bis_clean_code(c->where);
    spell(c);
    bis_advise(c);
    *ret = c;
    return 0;
}

void bis_case_free(bis_case *c) {
    if (!c) return;
    bis_header_free(&c->header);
    bis_floor_free(&c->floor_a);
    bis_floor_free(&c->floor_b);
    bis_flips_free(&c->flips);
    if (c->pair) bis_map_free(&c->map, c->pair);
    bis_choices_free(&c->choices);
    bis_pair_free(c->pair);
    drop_lines(&c->notes);
    drop_lines(&c->next);
    drop_lines(&c->limits);
    free(c);
}

q4x_dump *bis_empty_dump(const char *path) {
    q4x_dump *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->path = strdup(path);
    d->header = json_object();
    if (d->path && d->header) return d;
    q4x_dump_free(d);
    return NULL;
}
