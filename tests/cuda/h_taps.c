#include "tests/cuda/h_taps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/h_dump.h"
#include "tests/h_forward.h"

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    return q4x_tapset_forward(ctx, s->ids, s->n_ids, s->forced, s->chosen, err);
}

void ht_dump(const q4x_net *net, const ht_job *j, const char *device, ht_meddle meddle, void *ctx, q4x_tap_count *twice,
             q4x_tap_count *untapped) {
    int32_t ids[HT_PROMPT];
    char spec[200];
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    const q4x_greedy_opts go = {.prompt = ids, .n_prompt = j->prompt, .n = j->decode + 1, .all_logits = j->all_logits};
    for (int i = 0; i < j->prompt; i++) ids[i] = (7 * i + 3 + i * i) % q4x_net_plan(net)->d.V;
    snprintf(spec, sizeof spec, "%s%s", device, j->levers);
    int rc = q4x_arm_parse(spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, q4x_greedy_positions(&go), j->tile, &r, &err);
    if (!rc) rc = q4x_tapset_open(r, net, &j->o, h_temp(device), json_object(), &t, &err);
    if (rc) fail_msg("%s %s: %s", j->model, spec, err.msg);
    if (meddle) meddle(ctx, r, t);
    rc = q4x_greedy(r, &go, step, t, &err);
    if (!rc && j->o.controls) rc = q4x_tapset_untapped(t, &go, &err);
    if (!rc && twice) q4x_tapset_controls(t, twice, untapped);
    if (!rc) rc = q4x_tapset_close(t, NULL, &err);
    if (rc) fail_msg("%s %s: %s", j->model, spec, err.msg);
    q4x_run_free(r);
}

/* A chunk begins with type, flags, length and two sums. NULL: there is none. */
static const uint8_t *next_chunk(const uint8_t *p, const uint8_t *end) {
    uint64_t length;
    if (end - p < 32) return NULL;
    memcpy(&length, p + 8, sizeof length);
    return p + 32 + length <= end ? p + 32 + length : NULL;
}

int ht_same(size_t *ret_n) {
    size_t an, bn;
    uint8_t *a = h_file_read(h_temp("cpu"), &an), *b = h_file_read(h_temp("cuda"), &bn);
    const uint8_t *p = a + 24, *q = b + 24, *pe, *qe;
    int same = 1;
    *ret_n = 0;
    for (; same && p < a + an && q < b + bn; p = pe, q = qe) {
        pe = next_chunk(p, a + an);
        qe = next_chunk(q, b + bn);
        assert_true(pe && qe);
        if (!memcmp(p, "HEAD", 4)) continue;
        same = pe - p == qe - q && !memcmp(p, q, (size_t)(pe - p));
        *ret_n += (size_t)(pe - p);
    }
    same = same && p == a + an && q == b + bn;
    free(a);
    free(b);
    return same;
}

int ht_same_content(size_t *ret_n) {
    q4x_dump *a = NULL, *b = NULL;
    q4x_err err = {0};
    if (q4x_dump_read(h_temp("cpu"), &a, &err) || q4x_dump_read(h_temp("cuda"), &b, &err)) fail_msg("%s", err.msg);
    int same = q4x_hash_eq(&a->content, &b->content) && a->nforwards == b->nforwards;
    *ret_n = 0;
    for (int f = 0; same && f < a->nforwards; f++)
        for (int k = 0; k < a->forwards[f].ntaps; k++) {
            const q4x_tap *x = &a->forwards[f].taps[k], *y = &b->forwards[f].taps[k];
            const q4x_stats *s = &x->stats, *u = &y->stats;
            same &= x->has_stats == y->has_stats && s->nan == u->nan && s->pinf == u->pinf && s->ninf == u->ninf;
            *ret_n += s->nan + s->pinf + s->ninf;
        }
    assert_true(*ret_n > 0);
    q4x_dump_free(a);
    q4x_dump_free(b);
    return same;
}

size_t ht_largest(void) {
    q4x_dump *d = NULL;
    q4x_err err = {0};
    size_t most = 0;
    if (q4x_dump_read(h_temp("cuda"), &d, &err)) fail_msg("%s", err.msg);
    for (int f = 0; f < d->nforwards; f++)
        for (int k = 0; k < d->forwards[f].ntaps; k++) {
            const q4x_tap *x = &d->forwards[f].taps[k];
            const size_t n = 4 * (size_t)x->rows * (size_t)x->cols;
            if (x->has_full && n > most) most = n;
        }
    q4x_dump_free(d);
    return most;
}
