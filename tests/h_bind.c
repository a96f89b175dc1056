#include "tests/h_bind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant.h"

h_bound h_bind(const char *path) {
    h_bound b = {0};
    q4x_err err = {0};
    if (q4x_model_open(path, &b.m, &err) || q4x_qwen4_bind(b.m, &b.w, &err)) fail_msg("%s: %s", path, err.msg);
    return b;
}

void h_unbind(h_bound *b) {
    q4x_qwen4_free(b->w);
    q4x_model_close(b->m);
}

void h_bind_refused(int line, const char *path, int code, const char *words) {
    q4x_model *m = NULL;
    q4x_qwen4 *w = NULL;
    q4x_err err = {0};
    int rc = q4x_model_open(path, &m, &err);
    if (!rc) rc = q4x_qwen4_bind(m, &w, &err);
    q4x_model_close(m);
    if (rc != code || w) fail_msg("line %d: %d (%s), expected %d with '%s'", line, rc, err.msg, code, words);
    if (!strstr(err.msg, words)) fail_msg("line %d: '%s' lacks '%s'", line, err.msg, words);
    if (strncmp(err.msg, path, strlen(path))) fail_msg("line %d: '%s' does not begin with the file", line, err.msg);
}

float *h_matrix(const k_weight *w) {
    float *f = malloc((size_t)(w->rows * w->cols) * sizeof *f + 1);
    assert_non_null(f);
    for (int64_t r = 0; r < w->rows; r++)
        k_decode_row(w->type, (const char *)w->data + (size_t)r * w->row_bytes, f + r * w->cols, w->cols);
    return f;
}

int h_same_matrix(const k_weight *a, const k_weight *b, const int32_t *prow, const int32_t *pcol) {
    if (a->rows != b->rows || a->cols != b->cols || !a->data != !b->data) return 0;
    if (!a->data) return 1;
    float *x = h_matrix(a), *y = h_matrix(b);
    int same = 1;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < a->cols; c++) {
            int64_t R = prow ? prow[r] : r, C = pcol ? pcol[c] : c;
            same &= !memcmp(&x[r * a->cols + c], &y[R * a->cols + C], sizeof *x);
        }
    free(x);
    free(y);
    return same;
}

int h_same_vec(const float *a, const float *b, int64_t n, int64_t width, const int32_t *perm) {
    if (!a || !b) return a == b;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i * width, b + (perm ? perm[i] : i) * width, (size_t)width * sizeof *a)) return 0;
    return 1;
}

static const char *diff_hc(const q4x_hc *a, const q4x_hc *b, const k_dims *d) {
    if (!h_same_vec(a->norm, b->norm, 1, d->W, NULL)) return "hc norm";
    if (!h_same_matrix(&a->down, &b->down, NULL, NULL)) return "hc down";
    if (!h_same_matrix(&a->up, &b->up, NULL, NULL)) return "hc up";
    if (!h_same_matrix(&a->inject, &b->inject, NULL, NULL)) return "hc inject";
    return "";
}

static const char *diff_mixer(const q4x_layer4 *a, const q4x_layer4 *b, const k_dims *d) {
    static const size_t mats[] = {offsetof(q4x_layer4, qkv), offsetof(q4x_layer4, z),   offsetof(q4x_layer4, b),
                                  offsetof(q4x_layer4, a),   offsetof(q4x_layer4, out), offsetof(q4x_layer4, q),
                                  offsetof(q4x_layer4, k),   offsetof(q4x_layer4, v),   offsetof(q4x_layer4, o),
                                  offsetof(q4x_layer4, iq),  offsetof(q4x_layer4, ik)};
    if (a->is_attn != b->is_attn || a->has_ple != b->has_ple) return "layer kind";
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        if (!h_same_matrix((const k_weight *)(const void *)((const char *)a + mats[i]),
                           (const k_weight *)(const void *)((const char *)b + mats[i]), NULL, NULL))
            return "a mixer's matrix";
    if (!h_same_vec(a->conv, b->conv, 1, (int64_t)d->C * d->Kc, NULL)) return "conv";
    if (!h_same_vec(a->dt_bias, b->dt_bias, 1, d->nv, NULL)) return "dt_bias";
    if (!h_same_vec(a->neg_exp_A, b->neg_exp_A, 1, d->nv, NULL)) return "neg_exp_A";
    if (!h_same_vec(a->gnorm, b->gnorm, 1, d->dv, NULL)) return "gnorm";
    if (!h_same_vec(a->qnorm, b->qnorm, 1, d->hd, NULL) || !h_same_vec(a->knorm, b->knorm, 1, d->hd, NULL))
        return "q or k norm";
    if (!h_same_vec(a->iqnorm, b->iqnorm, 1, d->id, NULL) || !h_same_vec(a->iknorm, b->iknorm, 1, d->id, NULL))
        return "indexer norm";
    return "";
}

static const char *diff_moe(const q4x_layer4 *a, const q4x_layer4 *b, const k_dims *d) {
    if (!h_same_matrix(&a->router, &b->router, NULL, NULL)) return "router";
    for (int32_t e = 0; e < d->E; e++)
        if (!h_same_matrix(&a->gate[e], &b->gate[e], NULL, NULL) || !h_same_matrix(&a->up[e], &b->up[e], NULL, NULL) ||
            !h_same_matrix(&a->down[e], &b->down[e], NULL, NULL))
            return "an expert";
    if (!h_same_matrix(&a->sgate, &b->sgate, NULL, NULL)) return "sgate";
    if (!h_same_matrix(&a->sh_gate, &b->sh_gate, NULL, NULL) || !h_same_matrix(&a->sh_up, &b->sh_up, NULL, NULL) ||
        !h_same_matrix(&a->sh_down, &b->sh_down, NULL, NULL))
        return "the shared expert";
    return "";
}

/* The shards of a table, one after the other. */
static float *table(const q4x_layer4 *l, int64_t *ret_rows) {
    int64_t rows = 0, at = 0;
    for (int i = 0; i < l->ntable; i++) rows += l->table[i].rows;
    float *f = malloc((size_t)(rows * l->table[0].cols) * sizeof *f);
    assert_non_null(f);
    for (int i = 0; i < l->ntable; i++) {
        float *part = h_matrix(&l->table[i]);
        int64_t n = l->table[i].rows * l->table[i].cols;
        memcpy(f + at, part, (size_t)n * sizeof *f);
        at += n;
        free(part);
    }
    *ret_rows = rows;
    return f;
}

static const char *diff_ple(const q4x_layer4 *a, const q4x_layer4 *b, const k_dims *d) {
    if (!h_same_matrix(&a->ple_key, &b->ple_key, NULL, NULL) || !h_same_matrix(&a->ple_val, &b->ple_val, NULL, NULL))
        return "ple key or value";
    if (!h_same_vec(a->ple_nkey, b->ple_nkey, 1, d->W, NULL) ||
        !h_same_vec(a->ple_nquery, b->ple_nquery, 1, d->W, NULL) ||
        !h_same_vec(a->ple_nconv, b->ple_nconv, 1, d->W, NULL))
        return "a ple norm";
    if (!h_same_vec(a->ple_conv, b->ple_conv, 1, (int64_t)d->W * d->Kp, NULL)) return "ple conv";
    if (memcmp(a->hash, b->hash, (size_t)(d->n + 2 * d->P) * sizeof *a->hash)) return "ple hash";
    int64_t ra, rb;
    float *x = table(a, &ra), *y = table(b, &rb);
    int same = ra == rb && !memcmp(x, y, (size_t)(ra * d->pw) * sizeof *x);
    free(x);
    free(y);
    return same ? "" : "ple table";
}

const char *h_bind_diff(const q4x_qwen4 *a, const q4x_qwen4 *b) {
    const char *s;
    if (memcmp(&a->d, &b->d, sizeof a->d)) return "dims";
    if (!h_same_matrix(&a->embed, &b->embed, NULL, NULL)) return "embed";
    if (!h_same_matrix(&a->head, &b->head, NULL, NULL)) return "head";
    if (!h_same_vec(a->freq, b->freq, 1, a->d.rot / 2, NULL) || a->ctx_max != b->ctx_max) return "freq or ctx_max";
    if (*(s = diff_hc(&a->mixer, &b->mixer, &a->d))) return s;
    for (int32_t i = 0; i < a->d.L; i++) {
        const q4x_layer4 *x = &a->layer[i], *y = &b->layer[i];
        if (*(s = diff_hc(&x->ahc, &y->ahc, &a->d)) || *(s = diff_hc(&x->mhc, &y->mhc, &a->d))) return s;
        if (*(s = diff_mixer(x, y, &a->d)) || *(s = diff_moe(x, y, &a->d))) return s;
        if (x->has_ple && *(s = diff_ple(x, y, &a->d))) return s;
    }
    return "";
}
