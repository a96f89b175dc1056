#include "tests/h_touch.h"

#include <stdio.h>
#include <string.h>

#include "tests/h_holds.h"

static unsigned bytes(const void *p, size_t n) {
    unsigned s = 0;
    HOLDS(p);
    for (size_t i = 0; i < n; i++) s += ((const unsigned char *)p)[i];
    return s;
}

static unsigned vec(const float *p, int64_t n) {
    return bytes(p, (size_t)n * sizeof *p);
}

static unsigned mat(const k_weight *w) {
    HOLDS(w->rows > 0 && w->cols > 0);
    return bytes(w->data, (size_t)w->rows * w->row_bytes);
}

static unsigned gdn(const q4x_gdn *w, const k_dims *d) {
    return mat(&w->qkv) + mat(&w->z) + mat(&w->b) + mat(&w->a) + mat(&w->out) + vec(w->conv, (int64_t)d->C * d->Kc) +
           vec(w->dt_bias, d->nv) + vec(w->neg_exp_A, d->nv) + vec(w->norm, d->dv);
}

static unsigned attn(const q4x_attn *w, const k_dims *d) {
    return mat(&w->q) + mat(&w->k) + mat(&w->v) + mat(&w->o) + vec(w->qnorm, d->hd) + vec(w->knorm, d->hd);
}

static unsigned hc(const q4x_hc *h, const k_dims *d) {
    return mat(&h->down) + mat(&h->up) + vec(h->norm, d->W);
}

static unsigned ple(const q4x_layer4 *l, const k_dims *d) {
    unsigned s = mat(&l->ple_key) + mat(&l->ple_val) + vec(l->ple_conv, (int64_t)d->W * d->Kp);
    int64_t rows = 0;
    for (int i = 0; i < l->ntable; i++) {
        s += mat(&l->table[i]);
        rows += l->table[i].rows;
    }
    for (int32_t h = 0; h < d->P; h++) HOLDS(l->hash[d->n + h] + l->hash[d->n + d->P + h] <= rows);
    return s + vec(l->ple_nkey, d->W) + vec(l->ple_nquery, d->W) + vec(l->ple_nconv, d->W);
}

static unsigned layer4(const q4x_layer4 *l, const k_dims *d) {
    unsigned s = hc(&l->ahc, d) + hc(&l->mhc, d) + mat(&l->ahc.inject) + mat(&l->mhc.inject) + mat(&l->router);
    s += l->is_attn ? attn(&l->attn, d) : gdn(&l->gdn, d);
    if (l->is_attn && d->ih) s += mat(&l->iq) + mat(&l->ik) + vec(l->iqnorm, d->id) + vec(l->iknorm, d->id);
    for (int32_t e = 0; e < d->E; e++) s += mat(&l->gate[e]) + mat(&l->up[e]) + mat(&l->down[e]);
    s += mat(&l->sgate) + mat(&l->sh_gate) + mat(&l->sh_up) + mat(&l->sh_down);
    return l->has_ple ? s + ple(l, d) : s;
}

static unsigned frequencies(const float *freq, const k_dims *d) {
    for (int32_t j = 0; j < d->rot / 2; j++) HOLDS(freq[j] > 0 && freq[j] <= 1);
    return vec(freq, d->rot / 2);
}

static unsigned touch_qwen4(const q4x_qwen4 *w) {
    unsigned s = mat(&w->embed) + mat(&w->head) + hc(&w->mixer, &w->d) + frequencies(w->freq, &w->d);
    for (int32_t i = 0; i < w->d.L; i++) s += layer4(&w->layer[i], &w->d);
    return s;
}

static unsigned layer35(const q4x_layer35 *l, const k_dims *d) {
    return (l->is_attn ? attn(&l->attn, d) : gdn(&l->gdn, d)) + vec(l->norm_attn, d->D) + vec(l->norm_mlp, d->D) +
           mat(&l->gate) + mat(&l->up) + mat(&l->down);
}

static unsigned touch_qwen35(const q4x_qwen35 *w) {
    const k_dims *d = &w->d;
    unsigned s = mat(&w->embed) + mat(&w->head) + vec(w->norm, d->D) + frequencies(w->freq, d);
    for (int32_t i = 0; i < d->L; i++) s += layer35(&w->layer[i], d);
    for (int64_t i = 0; i < w->nnext; i++) {
        const q4x_next35 *n = &w->next[i];
        s += layer35(&n->block, d) + mat(&n->proj) + vec(n->enorm, d->D) + vec(n->hnorm, d->D) + vec(n->onorm, d->D);
        if (n->embed.rows) s += mat(&n->embed);
        if (n->head.rows) s += mat(&n->head);
    }
    return s;
}

void h_named_error(int rc, const q4x_err *e) {
    HOLDS(rc < 0 && e->code == rc && strlen(e->msg) > 16);
}

#define TAKE(id)                                                                                                       \
    void h_take_##id(const q4x_model *m) {                                                                             \
        q4x_##id *w = NULL;                                                                                            \
        q4x_plan *p = NULL;                                                                                            \
        q4x_err e = {0};                                                                                               \
        int rc = q4x_##id##_bind(m, &w, &e);                                                                           \
        HOLDS(!rc == !!w);                                                                                             \
        if (rc) {                                                                                                      \
            h_named_error(rc, &e);                                                                                     \
        } else {                                                                                                       \
            if (touch_##id(w) == 0x5a5a5a5au) fputc(' ', stderr); /* so that nothing is optimised away */              \
            HOLDS(!q4x_##id##_plan(w, &p, &e) && p->nnodes > w->d.L);                                                  \
        }                                                                                                              \
        q4x_plan_free(p);                                                                                              \
        q4x_##id##_free(w);                                                                                            \
    }
TAKE(qwen4)
TAKE(qwen35)
