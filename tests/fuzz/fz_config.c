/* fz_config.c: any bytes as the config.json of a checkpoint whose tensors are those of tests/golden/micro-a, or of
 * tests/golden/dense-a when it says qwen3_5 (none when they are not there). Either a named error, or dimensions within
 * their bounds; and when the tensors fit, weights that are all there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arch_qwen35_int.h"
#include "lib/arch_qwen4_int.h"
#include "lib/json_in.h"
#include "lib/model_int.h"
#include "tests/h_holds.h"
#include "tests/h_touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const q4x_json_limits limits = {4 << 20, 16, 4096, 1 << 16};

static void check_common(const k_dims *d, const q4x_cfg *c) {
    HOLDS(d->D > 0 && d->V > 1 && d->L > 0 && d->L <= Q4X_MAXL);
    HOLDS(d->nk > 0 && d->nv % d->nk == 0 && d->dk > 0 && d->dv > 0 && d->Kc > 1);
    HOLDS((int64_t)d->C == 2 * (int64_t)d->nk * d->dk + (int64_t)d->nv * d->dv);
    HOLDS(d->G > 0 && d->H % d->G == 0 && d->hd > 0 && d->rot > 0 && d->rot % 2 == 0 && d->rot <= d->hd);
    HOLDS((d->gate_silu | d->gguf_heads | 1) == 1);
    HOLDS(d->eps >= 0 && d->eps <= 1 && c->theta >= 1 && (float)c->theta < 1e38f);
}

static void check_qwen4(const k_dims *d, const q4x_q4_cfg *q) {
    HOLDS(d->N > 1 && d->W == d->N * d->D && d->R > 0 && !d->Fd);
    HOLDS(d->K > 0 && d->K <= d->E && d->F > 0 && d->Fs > 0 && (d->renorm | 1) == 1);
    if (d->ih)
        HOLDS(d->id >= d->rot && d->ratio > 0 && d->nsel > 0);
    else
        HOLDS(!d->id && !d->ratio && !d->nsel);
    if (q->nple) {
        HOLDS(d->n > 1 && d->P > 0 && d->P % (d->n - 1) == 0 && d->pw > 0 && d->Kp > 1 && d->eos >= 0 && d->eos < d->V);
        for (int i = 0; i < q->nple; i++) HOLDS(q->ple[i] < d->L && (!i || q->ple[i] > q->ple[i - 1]));
    } else
        HOLDS(!d->n && !d->P && !d->pw && !d->Kp && !d->eos);
}

static void read_qwen4(const json_t *root, const json_t *text) {
    q4x_err e = {0};
    q4x_q4_cfg q;
    k_dims d;
    int rc = q4x_q4_cfg_hf(root, text, "config.json", &q, &e);
    if (!rc) rc = q4x_q4_check(&q, &d, &e);
    if (rc) {
        h_named_error(rc, &e);
        return;
    }
    check_common(&d, &q.c);
    check_qwen4(&d, &q);
}

static void read_qwen35(const json_t *root, const json_t *text) {
    q4x_err e = {0};
    q4x_cfg c;
    k_dims d;
    int rc = q4x_q35_cfg_hf(root, text, "config.json", &c, &e);
    if (!rc) rc = q4x_q35_check(&c, &d, &e);
    if (rc) {
        h_named_error(rc, &e);
        return;
    }
    check_common(&d, &c);
    HOLDS(d.Fd > 0 && !d.N && !d.W && !d.R && !d.E && !d.K && !d.F && !d.Fs && !d.ih && !d.ratio && !d.n && !d.P);
}

/* A checkpoint with this configuration in place of its own. */
static q4x_model *with_config(int dense, json_t *root, const json_t *text) {
    static q4x_model *all[2];
    q4x_model **m = &all[dense];
    if (!*m && q4x_model_open(dense ? "tests/golden/dense-a" : "tests/golden/micro-a", m, NULL))
        *m = q4x_model_new(&q4x_hf_ops, "none");
    HOLDS(*m);
    json_decref((*m)->config);
    (*m)->config = json_incref(root);
    (*m)->text_config = text;
    (*m)->arch = dense ? "qwen3_5_text" : "qwen4_exp_text";
    return *m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root = NULL;
    q4x_err e = {0};
    int rc = q4x_json_read((const char *)data, size, &limits, "config.json", &root, &e);
    if (rc) {
        h_named_error(rc, &e);
        return 0;
    }
    const json_t *text = json_object_get(root, "text_config");
    if (!json_is_object(text)) text = root;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const int dense = type && !strncmp(type, "qwen3_5", 7);
    if (dense)
        read_qwen35(root, text);
    else
        read_qwen4(root, text);
    if (json_is_object(root)) {
        q4x_model *m = with_config(dense, root, text);
        if (dense)
            h_take_qwen35(m);
        else
            h_take_qwen4(m);
    }
    json_decref(root);
    return 0;
}
