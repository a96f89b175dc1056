/* Binding of qwen35: what is bound, forms of one model that must bind to the same weights, and that every value of the
 * configuration has its effect. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/round.h"
#include "lib/arch_qwen35_int.h"
#include "tests/check.h"
#include "tests/h_bind.h"
#include "tests/h_dense.h"
#include "tests/h_forward.h"

#define DENSE_A "tests/golden/dense-a"

static char *dir, gguf[512]; /* of the test that runs */

static int set_up(void **state) {
    (void)state;
    dir = h_tmp();
    snprintf(gguf, sizeof gguf, "%s/dense.gguf", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    h_tmp_remove(dir);
    return 0;
}

static void dims(void **state) {
    (void)state;
    h_bound35 b = h_bind35(DENSE_A);
    const k_dims want = {.D = 64,
                         .V = 256,
                         .L = 4,
                         .nk = 2,
                         .nv = 6,
                         .dk = 16,
                         .dv = 16,
                         .C = 160,
                         .Kc = 4,
                         .gate_silu = 1,
                         .H = 4,
                         .G = 2,
                         .hd = 32,
                         .rot = 8,
                         .Fd = 96,
                         .eps = 1e-6f};
    assert_memory_equal(&b.w->d, &want, sizeof want);
    assert_int_equal(b.w->ctx_max, 4096);
    assert_int_equal(b.w->nnext, 0);
    assert_true(b.w->model == b.m);
    /* 1e7^(-2j/8) */
    static const float freq[] = {1, 0.017782794100389228f, 3.1622776601683794e-4f, 5.623413251903491e-6f};
    assert_ulp_le("freq", b.w->freq, freq, 4, 1);
    for (int i = 0; i < 4; i++) assert_int_equal(b.w->layer[i].is_attn, i == 3);
    assert_true(b.w->head.data != b.w->embed.data);
    assert_int_equal(b.w->layer[2].gate.rows, 96);
    assert_int_equal(b.w->layer[2].down.cols, 96);
    assert_null(b.w->layer[2].attn.q.data);
    assert_null(b.w->layer[3].gdn.conv);
    h_unbind35(&b);
    q4x_qwen35_free(NULL);
}

/* Norms hold 1 + w, rounded once to f32, but for the delta net's. */
static void norms(void **state) {
    (void)state;
    h_hf *h = h_hf_load(DENSE_A);
    h_bound35 b = h_bind35(DENSE_A);
    const struct {
        const char *name;
        const float *have;
        int n;
        float add;
    } cases[] = {{"model.norm.weight", b.w->norm, 64, 1},
                 {"model.layers.1.input_layernorm.weight", b.w->layer[1].norm_attn, 64, 1},
                 {"model.layers.1.post_attention_layernorm.weight", b.w->layer[1].norm_mlp, 64, 1},
                 {"model.layers.3.self_attn.q_norm.weight", b.w->layer[3].attn.qnorm, 32, 1},
                 {"model.layers.3.self_attn.k_norm.weight", b.w->layer[3].attn.knorm, 32, 1},
                 {"model.layers.1.linear_attn.norm.weight", b.w->layer[1].gdn.norm, 16, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const uint16_t *w = h_hf_get(h, cases[k].name)->data;
        for (int i = 0; i < cases[k].n; i++) assert_true(cases[k].have[i] == cases[k].add + k_f32_from_bf16(w[i]));
    }
    h_hf_free(h);
    h_unbind35(&b);
}

/* dense-a from both containers: the same numbers everywhere, V heads apart. */
static void hf_equals_gguf(void **state) {
    (void)state;
    h_hf *src = h_hf_load(DENSE_A);
    h_dense_write(src, gguf);
    h_bound35 h = h_bind35(DENSE_A), g = h_bind35(gguf);
    assert_int_equal(g.w->d.gguf_heads, 1);
    g.w->d.gguf_heads = 0;
    for (int32_t i = 0; i < h.w->d.L; i++) {
        q4x_layer35 *x = &h.w->layer[i], *y = &g.w->layer[i];
        if (x->is_attn) continue;
        h_gdn_heads(&x->gdn, &y->gdn, &h.w->d);
        y->gdn = x->gdn; /* held; now the rest */
    }
    assert_string_equal(h_bind35_diff(h.w, g.w), "");
    g.w->layer[2].gate = h.w->layer[2].up; /* the comparison can fail */
    assert_string_equal(h_bind35_diff(h.w, g.w), "mlp");
    h_unbind35(&h);
    h_unbind35(&g);
    h_hf_free(src);
}

/* ---- forms of a checkpoint ---- */

/* Text tensors get the multimodal prefix, keys move into text_config, what is not run joins. */
static void make_multimodal(h_hf *h) {
    for (int i = 0; i < h->n; i++) {
        char old[200];
        snprintf(old, sizeof old, "%.199s", h->t[i].name);
        if (!strncmp(old, "model.", 6)) snprintf(h->t[i].name, sizeof h->t[i].name, "model.language_model.%s", old + 6);
    }
    json_t *text = h->config;
    h->config = json_pack("{s:s, s:o, s:{}}", "model_type", "qwen3_5", "text_config", text, "vision_config");
    h_hf_add(h, "model.visual.blocks.0.norm1.weight", "BF16", 1, (int64_t[]){8}, NULL);
    h_hf_add(h, "mtp.fc.weight", "BF16", 2, (int64_t[]){64, 128}, NULL);
    h_hf_add(h, "mtp.layers.0.mlp.up_proj.weight", "F8_E4M3", 2, (int64_t[]){96, 64}, NULL);
}

static void binds_the_same(const h_hf *h, int nshards) {
    h_hf_write(h, dir, nshards);
    h_bound35 a = h_bind35(DENSE_A), b = h_bind35(dir);
    assert_string_equal(h_bind35_diff(a.w, b.w), "");
    h_unbind35(&a);
    h_unbind35(&b);
}

static void forms(void **state) {
    (void)state;
    h_hf *h = h_hf_load(DENSE_A);
    h_hf_set(h->config, "layer_types", NULL); /* every fourth */
    h_hf_set(h->config, "tie_word_embeddings", "null");
    binds_the_same(h, 0);
    h_hf_set(h->config, "full_attention_interval", "4");
    make_multimodal(h);
    binds_the_same(h, 0);
    q4x_net *net = h_net(dir);
    assert_string_equal(q4x_model_arch(q4x_net_model(net)), "qwen3_5");
    assert_string_equal(q4x_net_plan(net)->arch, "qwen35");
    q4x_net_close(net);
    for (int i = 0; i < h->n; i++) h->t[i].shard = i % 7;
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    remove(path);
    binds_the_same(h, 7);
    h_hf_free(h);
}

/* A head that is the embedding: said in either place, with a head beside it or without; in GGUF by its absence. */
static void tied(void **state) {
    (void)state;
    static const char *const places[] = {"tie_word_embeddings", "text_config.tie_word_embeddings"};
    for (int place = 0; place < 2; place++) {
        h_hf *h = h_hf_load(DENSE_A);
        h_hf_set(h->config, "tie_word_embeddings", NULL);
        make_multimodal(h);
        h_hf_set(h->config, places[place], "true");
        for (int with = 1; with >= 0; with--) { /* a head that is there is not used */
            if (!with) h_hf_drop(h, "lm_head.weight");
            h_hf_write(h, dir, 0);
            h_bound35 b = h_bind35(dir);
            assert_true(b.w->head.data == b.w->embed.data);
            h_unbind35(&b);
        }
        h_hf_set(h->config, places[place], "false");
        h_hf_write(h, dir, 0);
        h_bind_refused(__LINE__, dir, Q4X_E_MISMATCH, "1 tensors are missing: lm_head.weight");
        h_hf_free(h);
    }
    h_hf *h = h_hf_load(DENSE_A);
    h_hf_drop(h, "lm_head.weight");
    h_dense_write(h, gguf);
    h_bound35 b = h_bind35(gguf);
    assert_true(b.w->head.data == b.w->embed.data);
    h_unbind35(&b);
    h_hf_free(h);
}

/* f32 tensors in a bf16 checkpoint. */
static void types(void **state) {
    (void)state;
    static const char *const names[] = {"model.layers.0.linear_attn.A_log", "model.norm.weight",
                                        "model.layers.3.mlp.up_proj.weight", "model.embed_tokens.weight"};
    h_hf *h = h_hf_load(DENSE_A);
    for (size_t k = 0; k < 4; k++) h_hf_widen(h, names[k]);
    binds_the_same(h, 0);
    h_hf_free(h);
}

/* Layers of either kind anywhere: layers 1 and 3 change places. */
static void layers_elsewhere(void **state) {
    (void)state;
    h_hf *h = h_hf_load(DENSE_A);
    for (int i = 0; i < h->n; i++) {
        char *digit = strstr(h->t[i].name, "layers.");
        if (digit && digit[7] == '1')
            digit[7] = '3';
        else if (digit && digit[7] == '3')
            digit[7] = '1';
    }
    h_hf_set(h->config, "layer_types",
             "[\"linear_attention\",\"full_attention\",\"linear_attention\",\"linear_attention\"]");
    h_hf_write(h, dir, 0);
    h_bound35 a = h_bind35(DENSE_A), b = h_bind35(dir);
    assert_true(b.w->layer[1].is_attn && !b.w->layer[3].is_attn);
    assert_true(h_same_matrix(&a.w->layer[3].attn.q, &b.w->layer[1].attn.q, NULL, NULL));
    assert_true(h_same_matrix(&a.w->layer[1].gdn.qkv, &b.w->layer[3].gdn.qkv, NULL, NULL));
    h_unbind35(&a);
    h_unbind35(&b);
    h_hf_free(h);
}

/* NaN weights are a finding for later, not a reason to refuse. */
static void not_finite(void **state) {
    (void)state;
    h_hf *h = h_hf_load(DENSE_A);
    for (int i = 0; i < h->n; i++)
        if (!strcmp(h->t[i].dtype, "BF16")) memset(h->t[i].data, 0xff, h->t[i].bytes);
    h_hf_write(h, dir, 0);
    h_bound35 b = h_bind35(dir);
    assert_true(isnan(b.w->layer[0].gdn.neg_exp_A[0]) && isnan(b.w->norm[0]));
    h_unbind35(&b);
    h_hf_free(h);
}

/* ---- every value that the file carries has its effect ---- */

enum { NIDS = 9 };

/* Logits of a short prompt. */
static void logits(const char *path, float row[256]) {
    static const int32_t ids[NIDS] = {139, 79, 157, 224, 187, 180, 171, 50, 4};
    q4x_net *net = h_net(path);
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *run = NULL;
    int32_t rows;
    q4x_arm_default(&arm);
    assert_rc_ok(q4x_run_new(net, &arm, NIDS, 0, &run, &err), &err);
    assert_rc_ok(q4x_run_forward(run, ids, NIDS, 0, &err), &err);
    memcpy(row, q4x_run_logits(run, &rows), 256 * sizeof *row);
    q4x_run_free(run);
    q4x_net_close(net);
    for (int i = 0; i < 256; i++) assert_true(isfinite(row[i]));
}

static double apart(const float a[256], const float b[256]) {
    double d = 0, s = 0;
    for (int i = 0; i < 256; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)a[i] * (double)a[i];
    }
    return sqrt(d / s);
}

static void values_of_config(void **state) {
    (void)state;
    static const char *const edits[][2] = {
        {"rms_norm_eps", "1e-2"},
        {"rope_parameters.rope_theta", "100.0"},
        {"rope_parameters.partial_rotary_factor", "0.5"},
        {"output_gate_type", "\"sigmoid\""},
        {"tie_word_embeddings", "true"},
        {"linear_num_key_heads", "1"}, /* with as many channels: 32 wide */
    };
    float base[256], other[256];
    logits(DENSE_A, base);
    h_hf *h = h_hf_load(DENSE_A);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *c = json_deep_copy(h->config);
        h_hf_set(c, edits[i][0], edits[i][1]);
        if (strstr(edits[i][0], "key_heads")) h_hf_set(c, "linear_key_head_dim", "32");
        h_hf_write_config(c, dir, DENSE_A);
        logits(dir, other);
        print_message("  %-40s %-10s logits move by %.1e\n", edits[i][0], edits[i][1], apart(base, other));
        assert_true(apart(base, other) > 1e-4);
        json_decref(c);
    }
    /* what says nothing new moves nothing: defaults, the kinds of layers, sections of a position */
    static const char *const same[][2] = {{"layer_types", "null"},
                                          {"rms_norm_eps", "null"},
                                          {"output_gate_type", "\"silu\""},
                                          {"rope_parameters.mrope_section", "[4,0,0]"},
                                          {"rope_parameters.partial_rotary_factor", NULL},
                                          {"linear_conv_kernel_dim", "null"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *c = json_deep_copy(h->config);
        h_hf_set(c, same[i][0], same[i][1]);
        h_hf_set(c, "partial_rotary_factor", NULL); /* the file has it twice */
        h_hf_write_config(c, dir, DENSE_A);
        logits(dir, other);
        assert_bits_equal(same[i][0], other, base, 256);
        json_decref(c);
    }
    h_hf_free(h);
}

/* The same through GGUF keys; heads of another order leave rounding alone. */
static void values_of_keys(void **state) {
    (void)state;
    static const char *const edits[][2] = {{"rms_norm_eps", "1e-2"},
                                           {"rope_parameters.rope_theta", "100.0"},
                                           {"rope_parameters.partial_rotary_factor", "0.5"}};
    float base[256], gbase[256], other[256], hother[256];
    logits(DENSE_A, base);
    h_hf *h = h_hf_load(DENSE_A);
    h_dense_write(h, gguf);
    logits(gguf, gbase);
    assert_true(apart(base, gbase) <= 5e-6);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *kept = json_deep_copy(h->config);
        h_hf_set(h->config, edits[i][0], edits[i][1]);
        h_dense_write(h, gguf);
        logits(gguf, other);
        h_hf_write_config(h->config, dir, DENSE_A);
        logits(dir, hother);
        assert_true(apart(gbase, other) > 1e-4);
        assert_true(apart(hother, other) <= 5e-6);
        json_decref(h->config);
        h->config = kept;
    }
    h_hf_free(h);
}

/* A convolution of three taps: the oldest of each channel is cut off. */
static void taps(void **state) {
    (void)state;
    h_hf *h = h_hf_load(DENSE_A);
    float base[256], other[256];
    for (int i = 0; i < h->n; i++) {
        h_hf_tensor *t = &h->t[i];
        uint16_t *w = t->data;
        if (!strstr(t->name, ".conv1d.")) continue;
        for (int c = 0; c < 160; c++) memmove(w + 3 * c, w + 4 * c + 1, 3 * sizeof *w);
        t->shape[2] = 3;
        t->bytes = 160 * 3 * sizeof *w;
    }
    h_hf_write(h, dir, 0);
    h_bind_refused(__LINE__, dir, Q4X_E_MISMATCH, "conv1d.weight: expected the shape (4, 1, 160), fastest first");
    h_hf_set(h->config, "linear_conv_kernel_dim", "3");
    h_hf_write(h, dir, 0);
    logits(DENSE_A, base);
    logits(dir, other);
    assert_true(apart(base, other) > 1e-4);
    h_dense_write(h, gguf);
    logits(gguf, base);
    assert_true(apart(base, other) <= 5e-6);
    h_hf_free(h);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(dims),
        TEST(norms),
        TEST(hf_equals_gguf),
        TEST(forms),
        TEST(tied),
        TEST(types),
        TEST(layers_elsewhere),
        TEST(not_finite),
        TEST(values_of_config),
        TEST(values_of_keys),
        TEST(taps),
    };
    return cmocka_run_group_tests_name("qwen35", tests, NULL, NULL);
}
