#include "tests/h_bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"
#include "lib/run.h"
#include "tests/check.h"

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

h_bound35 h_bind35(const char *path) {
    h_bound35 b = {0};
    q4x_err err = {0};
    if (q4x_model_open(path, &b.m, &err) || q4x_qwen35_bind(b.m, &b.w, &err)) fail_msg("%s: %s", path, err.msg);
    return b;
}

void h_unbind35(h_bound35 *b) {
    q4x_qwen35_free(b->w);
    q4x_model_close(b->m);
}

void h_bind_refused(int line, const char *path, int code, const char *words) {
    q4x_net *n = NULL;
    q4x_err err = {0};
    int rc = q4x_net_open(path, &n, &err);
    if (rc != code || n) fail_msg("line %d: %d (%s), expected %d with '%s'", line, rc, err.msg, code, words);
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

const char *h_gdn_diff(const q4x_gdn *a, const q4x_gdn *b, const k_dims *d) {
    if (!h_same_matrix(&a->qkv, &b->qkv, NULL, NULL) || !h_same_matrix(&a->z, &b->z, NULL, NULL) ||
        !h_same_matrix(&a->a, &b->a, NULL, NULL) || !h_same_matrix(&a->b, &b->b, NULL, NULL) ||
        !h_same_matrix(&a->out, &b->out, NULL, NULL))
        return "a mixer's matrix";
    if (!h_same_vec(a->conv, b->conv, 1, (int64_t)d->C * d->Kc, NULL)) return "conv";
    if (!h_same_vec(a->dt_bias, b->dt_bias, 1, d->nv, NULL)) return "dt_bias";
    if (!h_same_vec(a->neg_exp_A, b->neg_exp_A, 1, d->nv, NULL)) return "neg_exp_A";
    return h_same_vec(a->norm, b->norm, 1, d->dv, NULL) ? "" : "gdn norm";
}

const char *h_attn_diff(const q4x_attn *a, const q4x_attn *b, const k_dims *d) {
    if (!h_same_matrix(&a->q, &b->q, NULL, NULL) || !h_same_matrix(&a->k, &b->k, NULL, NULL) ||
        !h_same_matrix(&a->v, &b->v, NULL, NULL) || !h_same_matrix(&a->o, &b->o, NULL, NULL))
        return "a mixer's matrix";
    if (!h_same_vec(a->qnorm, b->qnorm, 1, d->hd, NULL) || !h_same_vec(a->knorm, b->knorm, 1, d->hd, NULL))
        return "q or k norm";
    return "";
}

/* GGUF row of each HF row: `before` rows stay, then nv heads of `width`, head k*(nv/nk)+r at r*nk+k. */
static void head_perm(const k_dims *d, int32_t before, int32_t width, int32_t *perm) {
    int32_t per = d->nv / d->nk;
    for (int32_t i = 0; i < before; i++) perm[i] = i;
    for (int32_t h = 0; h < d->nv; h++)
        for (int32_t i = 0; i < width; i++)
            perm[before + h * width + i] = before + ((h % per) * d->nk + h / per) * width + i;
}

void h_gdn_heads(const q4x_gdn *h, const q4x_gdn *g, const k_dims *d) {
    int32_t qkv[512], z[512], one[64];
    assert_true(d->C <= 512 && d->nv <= 64);
    head_perm(d, 2 * d->nk * d->dk, d->dv, qkv);
    head_perm(d, 0, d->dv, z);
    head_perm(d, 0, 1, one);
    assert_true(h_same_matrix(&h->qkv, &g->qkv, qkv, NULL));
    assert_true(h_same_matrix(&h->z, &g->z, z, NULL));
    assert_true(h_same_matrix(&h->b, &g->b, one, NULL));
    assert_true(h_same_matrix(&h->a, &g->a, one, NULL));
    assert_true(h_same_matrix(&h->out, &g->out, NULL, z));
    assert_true(h_same_vec(h->conv, g->conv, d->C, d->Kc, qkv));
    assert_true(h_same_vec(h->dt_bias, g->dt_bias, d->nv, 1, one));
    assert_true(h_same_vec(h->norm, g->norm, 1, d->dv, NULL));
    for (int32_t i = 0; i < d->nv; i++) {
        float a = h->neg_exp_A[i], b = g->neg_exp_A[one[i]];
        assert_true(a < 0 && b < 0 && check_ulp(a, b) <= 2);
    }
    /* the twin: without the permutation none of these holds */
    assert_false(h_same_matrix(&h->qkv, &g->qkv, NULL, NULL));
    assert_false(h_same_matrix(&h->z, &g->z, NULL, NULL));
    assert_false(h_same_matrix(&h->out, &g->out, NULL, NULL));
    assert_false(h_same_vec(h->conv, g->conv, d->C, d->Kc, NULL));
}

static const char *diff_mixer(const q4x_layer4 *a, const q4x_layer4 *b, const k_dims *d) {
    const char *s;
    if (a->is_attn != b->is_attn || a->has_ple != b->has_ple) return "layer kind";
    if (*(s = h_gdn_diff(&a->gdn, &b->gdn, d)) || *(s = h_attn_diff(&a->attn, &b->attn, d))) return s;
    if (!h_same_matrix(&a->iq, &b->iq, NULL, NULL) || !h_same_matrix(&a->ik, &b->ik, NULL, NULL))
        return "a mixer's matrix";
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

const char *h_bind35_diff(const q4x_qwen35 *a, const q4x_qwen35 *b) {
    const k_dims *d = &a->d;
    const char *s;
    if (memcmp(d, &b->d, sizeof *d)) return "dims";
    if (!h_same_matrix(&a->embed, &b->embed, NULL, NULL)) return "embed";
    if (!h_same_matrix(&a->head, &b->head, NULL, NULL)) return "head";
    if (!h_same_vec(a->freq, b->freq, 1, d->rot / 2, NULL) || a->ctx_max != b->ctx_max) return "freq or ctx_max";
    if (!h_same_vec(a->norm, b->norm, 1, d->D, NULL)) return "norm";
    for (int32_t i = 0; i < d->L; i++) {
        const q4x_layer35 *x = &a->layer[i], *y = &b->layer[i];
        if (x->is_attn != y->is_attn) return "layer kind";
        if (*(s = h_gdn_diff(&x->gdn, &y->gdn, d)) || *(s = h_attn_diff(&x->attn, &y->attn, d))) return s;
        if (!h_same_vec(x->norm_attn, y->norm_attn, 1, d->D, NULL) ||
            !h_same_vec(x->norm_mlp, y->norm_mlp, 1, d->D, NULL))
            return "a layer's norm";
        if (!h_same_matrix(&x->gate, &y->gate, NULL, NULL) || !h_same_matrix(&x->up, &y->up, NULL, NULL) ||
            !h_same_matrix(&x->down, &y->down, NULL, NULL))
            return "mlp";
    }
    return "";
}
