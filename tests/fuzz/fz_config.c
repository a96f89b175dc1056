/* fz_config.c: any bytes as the config.json of a checkpoint whose tensors are those of tests/golden/micro-a (none when
 * that is not there). Either a named error, or dimensions within their bounds; and when the tensors fit, weights that
 * are all there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arch_qwen4_int.h"
#include "lib/json_in.h"
#include "lib/model_int.h"
#include "tests/h_holds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const q4x_json_limits limits = {4 << 20, 16, 4096, 1 << 16};

static void check_err(int rc, const q4x_err *e) {
    HOLDS(rc < 0 && e->code == rc && strlen(e->msg) > 16);
}

static void check_dims(const k_dims *d, const q4x_q4_cfg *c) {
    HOLDS(d->D > 0 && d->N > 1 && d->W == d->N * d->D && d->R > 0 && d->V > 1 && d->L > 0 && d->L <= Q4X_Q4_MAXL);
    HOLDS(d->nk > 0 && d->nv % d->nk == 0 && d->dk > 0 && d->dv > 0 && d->Kc > 1);
    HOLDS((int64_t)d->C == 2 * (int64_t)d->nk * d->dk + (int64_t)d->nv * d->dv);
    HOLDS(d->G > 0 && d->H % d->G == 0 && d->hd > 0 && d->rot > 0 && d->rot % 2 == 0 && d->rot <= d->hd);
    HOLDS(d->K > 0 && d->K <= d->E && d->F > 0 && d->Fs > 0 && (d->gate_silu | d->renorm | d->gguf_heads | 1) == 1);
    HOLDS(d->eps >= 0 && d->eps <= 1 && c->theta >= 1 && (float)c->theta < 1e38f);
    if (d->ih)
        HOLDS(d->id >= d->rot && d->ratio > 0 && d->nsel > 0);
    else
        HOLDS(!d->id && !d->ratio && !d->nsel);
    if (c->nple) {
        HOLDS(d->n > 1 && d->P > 0 && d->P % (d->n - 1) == 0 && d->pw > 0 && d->Kp > 1 && d->eos >= 0 && d->eos < d->V);
        for (int i = 0; i < c->nple; i++) HOLDS(c->ple[i] < d->L && (!i || c->ple[i] > c->ple[i - 1]));
    } else
        HOLDS(!d->n && !d->P && !d->pw && !d->Kp && !d->eos);
}

static unsigned touch(const void *p, size_t n) {
    unsigned s = 0;
    for (size_t i = 0; i < n; i++) s += ((const unsigned char *)p)[i];
    return s;
}

static void check_weight(const k_weight *w, unsigned *sum) {
    HOLDS(w->data && w->rows > 0 && w->cols > 0);
    *sum += touch(w->data, (size_t)w->rows * w->row_bytes);
}

static void check_layer(const q4x_layer4 *l, const k_dims *d, unsigned *sum) {
    check_weight(&l->ahc.down, sum);
    check_weight(&l->mhc.inject, sum);
    *sum += touch(l->ahc.norm, (size_t)d->W * 4);
    if (l->is_attn) {
        check_weight(&l->q, sum);
        check_weight(&l->o, sum);
        *sum += touch(l->knorm, (size_t)d->hd * 4);
        if (d->ih) check_weight(&l->ik, sum);
    } else {
        check_weight(&l->qkv, sum);
        check_weight(&l->out, sum);
        *sum += touch(l->conv, (size_t)d->C * (size_t)d->Kc * 4) + touch(l->neg_exp_A, (size_t)d->nv * 4);
    }
    for (int32_t e = 0; e < d->E; e++) {
        check_weight(&l->gate[e], sum);
        check_weight(&l->up[e], sum);
        check_weight(&l->down[e], sum);
    }
    if (!l->has_ple) return;
    int64_t rows = 0;
    for (int i = 0; i < l->ntable; i++) {
        check_weight(&l->table[i], sum);
        rows += l->table[i].rows;
    }
    for (int32_t h = 0; h < d->P; h++) HOLDS(l->hash[d->n + h] + l->hash[d->n + d->P + h] <= rows);
}

static void check_bound(const q4x_model *m) {
    q4x_qwen4 *w = NULL;
    q4x_err e = {0};
    unsigned sum = 0;
    int rc = q4x_qwen4_bind(m, &w, &e);
    if (rc) {
        check_err(rc, &e);
        HOLDS(!w);
        return;
    }
    check_weight(&w->embed, &sum);
    check_weight(&w->head, &sum);
    check_weight(&w->mixer.up, &sum);
    for (int32_t i = 0; i < w->d.L; i++) check_layer(&w->layer[i], &w->d, &sum);
    for (int32_t j = 0; j < w->d.rot / 2; j++) HOLDS(w->freq[j] > 0 && w->freq[j] <= 1);
    if (sum == 0x5a5a5a5au) fputc(' ', stderr); /* so that nothing is optimised away */
    q4x_qwen4_free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static q4x_model *m;
    json_t *root = NULL;
    q4x_err e = {0};
    q4x_q4_cfg c;
    k_dims d;
    if (!m && q4x_model_open("tests/golden/micro-a", &m, NULL)) m = q4x_model_new(&q4x_hf_ops, "none");
    HOLDS(m);
    int rc = q4x_json_read((const char *)data, size, &limits, "config.json", &root, &e);
    if (rc) {
        check_err(rc, &e);
        return 0;
    }
    const json_t *text = json_object_get(root, "text_config");
    if (!json_is_object(text)) text = root;
    rc = q4x_q4_cfg_hf(root, text, "config.json", &c, &e);
    if (!rc) rc = q4x_q4_check(&c, &d, &e);
    if (rc)
        check_err(rc, &e);
    else
        check_dims(&d, &c);
    if (json_is_object(root)) {
        json_decref(m->config);
        m->config = json_incref(root);
        m->text_config = text;
        m->arch = "qwen4_exp_text";
        check_bound(m);
    }
    json_decref(root);
    return 0;
}
