/* Binding: what the two containers of one model give, and forms of a checkpoint that must bind to the same weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/round.h"
#include "lib/arch_qwen4_int.h"
#include "tests/h_bind.h"
#include "tests/h_hf.h"

#define MICRO_A "tests/golden/micro-a"

static char *dir; /* of the test that runs */

static int set_up(void **state) {
    (void)state;
    dir = h_tmp();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    h_tmp_remove(dir);
    return 0;
}

static void dims(void **state) {
    (void)state;
    h_bound b = h_bind(MICRO_A);
    const k_dims want = {.D = 64,
                         .N = 4,
                         .W = 256,
                         .R = 16,
                         .V = 256,
                         .L = 4,
                         .nk = 2,
                         .nv = 4,
                         .dk = 16,
                         .dv = 16,
                         .C = 128,
                         .Kc = 4,
                         .renorm = 1,
                         .H = 4,
                         .G = 2,
                         .hd = 32,
                         .rot = 8,
                         .ih = 2,
                         .id = 16,
                         .ratio = 4,
                         .nsel = 16,
                         .E = 8,
                         .K = 3,
                         .F = 32,
                         .Fs = 32,
                         .n = 3,
                         .P = 8,
                         .pw = 8,
                         .Kp = 4,
                         .eos = 0,
                         .eps = 1e-6f};
    assert_memory_equal(&b.w->d, &want, sizeof want);
    assert_int_equal(b.w->ctx_max, 4096);
    assert_true(b.w->model == b.m);
    static const float freq[] = {1, 0.1f, 0.01f, 0.001f};
    assert_memory_equal(b.w->freq, freq, sizeof freq);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(b.w->layer[i].is_attn, i == 3);
        assert_int_equal(b.w->layer[i].has_ple, i == 1);
    }
    assert_true(b.w->head.data != b.w->embed.data);
    assert_int_equal(b.w->layer[1].ntable, 4);
    assert_int_equal(b.w->layer[1].table[3].rows, 464);
    h_unbind(&b);
}

static void other_models(void **state) {
    (void)state;
    h_bound b = h_bind("tests/golden/micro-b");
    assert_int_equal(b.w->d.nv, 6);
    assert_int_equal(b.w->d.nsel, 4);
    assert_int_equal(b.w->d.rot, 16);
    assert_int_equal(b.w->d.gguf_heads, 0);
    h_unbind(&b);
    b = h_bind("tests/models/demo.gguf");
    assert_int_equal(b.w->d.gguf_heads, 1);
    assert_int_equal(b.w->d.L, 8);
    assert_int_equal(b.w->layer[0].gate[15].rows, 128);
    assert_int_equal(b.w->layer[0].gate[0].type, K_T_IQ1_S);
    h_unbind(&b);
    q4x_qwen4_free(NULL);
}

/* micro-a from both containers: the same numbers everywhere, V heads apart. */
static void hf_equals_gguf(void **state) {
    (void)state;
    h_bound h = h_bind(MICRO_A), g = h_bind("tests/models/micro-a-bf16.gguf");
    assert_int_equal(g.w->d.gguf_heads, 1);
    g.w->d.gguf_heads = 0;
    for (int32_t i = 0; i < h.w->d.L; i++) {
        q4x_layer4 *x = &h.w->layer[i], *y = &g.w->layer[i];
        if (x->is_attn) continue;
        h_gdn_heads(&x->gdn, &y->gdn, &h.w->d);
        y->gdn = x->gdn; /* held; now the rest */
    }
    assert_string_equal(h_bind_diff(h.w, g.w), "");
    g.w->layer[2].mhc.up = h.w->layer[2].ahc.up; /* the comparison can fail */
    assert_string_equal(h_bind_diff(h.w, g.w), "hc up");
    h_unbind(&h);
    h_unbind(&g);
}

/* Norms hold 1 + w, rounded once to f32, and the raw gamma does not. */
static void norms(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    h_bound b = h_bind(MICRO_A);
    const uint16_t *w = h_hf_get(h, "model.layers.0.attn_hyper_connection.hc_norm.weight")->data;
    const uint16_t *raw = h_hf_get(h, "model.layers.0.linear_attn.norm.weight")->data;
    const uint16_t *dt = h_hf_get(h, "model.layers.0.linear_attn.dt_bias")->data;
    const uint16_t *a_log = h_hf_get(h, "model.layers.0.linear_attn.A_log")->data;
    for (int i = 0; i < 256; i++) assert_true(b.w->layer[0].ahc.norm[i] == 1.0f + k_f32_from_bf16(w[i]));
    for (int i = 0; i < 16; i++) assert_true(b.w->layer[0].gdn.norm[i] == k_f32_from_bf16(raw[i]));
    for (int i = 0; i < 4; i++) assert_true(b.w->layer[0].gdn.dt_bias[i] == k_f32_from_bf16(dt[i]));
    for (int i = 0; i < 4; i++) {
        double want = -exp((double)k_f32_from_bf16(a_log[i]));
        assert_true(fabs((double)b.w->layer[0].gdn.neg_exp_A[i] - want) <= 1.2e-7 * fabs(want));
    }
    h_hf_free(h);
    h_unbind(&b);
}

/* ---- forms of a checkpoint ---- */

static void binds_the_same(const h_hf *h, int nshards) {
    h_hf_write(h, dir, nshards);
    h_bound a = h_bind(MICRO_A), b = h_bind(dir);
    assert_string_equal(h_bind_diff(a.w, b.w), "");
    h_unbind(&a);
    h_unbind(&b);
}

static void forms(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_fuse(h, "model.layers.0", 8, 32, 64);
    h_hf_fuse(h, "model.layers.3", 8, 32, 64); /* the others stay apart */
    binds_the_same(h, 0);
    h_hf_multimodal(h);
    binds_the_same(h, 0);
    for (int i = 0; i < h->n; i++) h->t[i].shard = i % 12;
    unlink("model.safetensors");
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    binds_the_same(h, 12);
    /* a swapped half of a fused tensor is another model */
    char *p = h_hf_get(h, "model.language_model.layers.0.mlp.experts.gate_up_proj")->data;
    p[0] ^= 1;
    h_hf_write(h, dir, 0);
    h_bound a = h_bind(MICRO_A), b = h_bind(dir);
    assert_string_equal(h_bind_diff(a.w, b.w), "an expert");
    h_unbind(&a);
    h_unbind(&b);
    h_hf_free(h);
}

/* f32 tensors in a bf16 checkpoint; each decodes to the same numbers. */
static void types(void **state) {
    (void)state;
    static const char *const names[] = {"model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.norm.weight",
                                        "model.layers.0.linear_attn.in_proj_z.weight", "model.embed_tokens.weight"};
    h_hf *h = h_hf_load(MICRO_A);
    for (size_t k = 0; k < 4; k++) h_hf_widen(h, names[k]);
    binds_the_same(h, 0);
    h_hf_free(h);
}

static void tied(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_set(h->config, "tie_word_embeddings", "true");
    for (int with = 1; with >= 0; with--) { /* a head that is there is not used */
        if (!with) h_hf_drop(h, "lm_head.weight");
        h_hf_write(h, dir, 0);
        h_bound b = h_bind(dir);
        assert_true(b.w->head.data == b.w->embed.data);
        h_unbind(&b);
    }
    h_hf_set(h->config, "tie_word_embeddings", NULL);
    h_hf_write(h, dir, 0);
    h_bind_refused(__LINE__, dir, Q4X_E_MISMATCH, "1 tensors are missing: lm_head.weight");
    h_hf_free(h);
}

static void without_indexer_or_ple(void **state) {
    (void)state;
    static const char *const keys[] = {"indexer_n_heads", "indexer_kv_heads",       "indexer_head_dim",
                                       "indexer_budget",  "indexer_compress_ratio", "ple_layer_ids"};
    h_hf *h = h_hf_load(MICRO_A);
    for (size_t i = 0; i < 6; i++) h_hf_set(h->config, keys[i], i % 2 ? "null" : NULL);
    h_hf_write(h, dir, 0);
    h_bind_refused(__LINE__, dir, Q4X_E_MISMATCH, "tensors that the architecture does not have: ");
    for (int i = h->n - 1; i >= 0; i--)
        if (strstr(h->t[i].name, ".indexer.") || strstr(h->t[i].name, ".ple.")) h_hf_drop(h, h->t[i].name);
    h_hf_write(h, dir, 0);
    h_bound b = h_bind(dir);
    const k_dims *d = &b.w->d;
    assert_true(d->ih == 0 && d->id == 0 && d->ratio == 0 && d->nsel == 0);
    assert_true(d->n == 0 && d->P == 0 && d->pw == 0 && d->Kp == 0);
    assert_null(b.w->layer[3].iq.data);
    assert_null(b.w->layer[3].iqnorm);
    assert_int_equal(b.w->layer[1].has_ple, 0);
    h_unbind(&b);
    h_hf_free(h);
}

/* NaN weights are a finding for later, not a reason to refuse. */
static void not_finite(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    for (int i = 0; i < h->n; i++)
        if (!strcmp(h->t[i].dtype, "BF16")) memset(h->t[i].data, 0xff, h->t[i].bytes);
    h_hf_write(h, dir, 0);
    h_bound b = h_bind(dir);
    assert_true(isnan(b.w->layer[0].gdn.neg_exp_A[0]) && isnan(b.w->layer[0].ahc.norm[0]));
    h_unbind(&b);
    h_hf_free(h);
}

static void demo(void **state) {
    (void)state;
    if (access("../shared/golden/demo/config.json", R_OK)) {
        print_message("../shared/golden/demo is not there: skipped\n");
        skip();
    }
    h_bound b = h_bind("../shared/golden/demo");
    assert_int_equal(b.w->layer[1].ntable, 8);
    assert_int_equal(b.w->d.E, 16);
    h_unbind(&b);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(dims),  TEST(other_models), TEST(hf_equals_gguf),         TEST(norms),      TEST(forms),
        TEST(types), TEST(tied),         TEST(without_indexer_or_ple), TEST(not_finite), TEST(demo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
