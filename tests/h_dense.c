#include "tests/h_dense.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"
#include "tests/check.h"

/* ---- keys ---- */

static json_int_t integer(const json_t *config, const char *key) {
    const json_t *j = json_object_get(config, key);
    if (!json_is_integer(j)) fail_msg("h_dense: no integer %s", key);
    return json_integer_value(j);
}

static void kv(h_gguf *g, const char *key, json_int_t v) {
    char full[96];
    snprintf(full, sizeof full, "qwen35.%s", key);
    h_gguf_kv_u32(g, full, (uint32_t)v);
}

void h_dense_keys(h_gguf *g, const json_t *config) {
    static const char *const same[][2] = {{"block_count", "num_hidden_layers"},
                                          {"context_length", "max_position_embeddings"},
                                          {"embedding_length", "hidden_size"},
                                          {"feed_forward_length", "intermediate_size"},
                                          {"attention.head_count", "num_attention_heads"},
                                          {"attention.head_count_kv", "num_key_value_heads"},
                                          {"attention.key_length", "head_dim"},
                                          {"attention.value_length", "head_dim"},
                                          {"ssm.conv_kernel", "linear_conv_kernel_dim"},
                                          {"ssm.state_size", "linear_key_head_dim"},
                                          {"ssm.group_count", "linear_num_key_heads"},
                                          {"ssm.time_step_rank", "linear_num_value_heads"}};
    const json_t *rope = json_object_get(config, "rope_parameters");
    int32_t sections[4] = {0};
    h_gguf_kv_str(g, "general.architecture", "qwen35");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) kv(g, same[i][0], integer(config, same[i][1]));
    kv(g, "ssm.inner_size", integer(config, "linear_num_value_heads") * integer(config, "linear_value_head_dim"));
    kv(g, "full_attention_interval", 4);
    h_gguf_kv_f32(g, "qwen35.attention.layer_norm_rms_epsilon",
                  (float)json_number_value(json_object_get(config, "rms_norm_eps")));
    h_gguf_kv_f32(g, "qwen35.rope.freq_base", (float)json_number_value(json_object_get(rope, "rope_theta")));
    kv(g, "rope.dimension_count",
       (json_int_t)((double)integer(config, "head_dim") *
                    json_number_value(json_object_get(rope, "partial_rotary_factor"))));
    for (size_t i = 0; i < 3; i++)
        sections[i] = (int32_t)json_integer_value(json_array_get(json_object_get(rope, "mrope_section"), i));
    h_gguf_arr_i32(g, "qwen35.rope.dimension_sections", sections, 4);
}

/* ---- tensors ---- */

/* How the value heads of a tensor lie: not at all, as rows (groups of width behind the first `before`), as columns. */
typedef enum { NONE, ROWS, COLS } head_axis;

typedef struct {
    int64_t nk, nv, dk, dv;
} head_counts;

static head_counts counts(const json_t *c) {
    return (head_counts){integer(c, "linear_num_key_heads"), integer(c, "linear_num_value_heads"),
                         integer(c, "linear_key_head_dim"), integer(c, "linear_value_head_dim")};
}

/* Index in GGUF order of row or column i in HF order: head k * (nv / nk) + r goes to r * nk + k. */
static int64_t place(const head_counts *n, int64_t before, int64_t width, int64_t i) {
    int64_t per = n->nv / n->nk, head = (i - before) / width;
    if (i < before) return i;
    return before + ((head % per) * n->nk + head / per) * width + (i - before) % width;
}

/* A matrix of 2-byte elements. */
static void matrix(h_gguf *g, const h_hf_tensor *t, const char *name, const head_counts *n, head_axis axis,
                   int64_t before, int64_t width) {
    const int64_t rows = t->shape[0], cols = t->shape[1];
    const uint16_t *from = t->data;
    uint16_t *to = malloc(t->bytes);
    assert_non_null(to);
    assert_string_equal(t->dtype, "BF16");
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t R = axis == ROWS ? place(n, before, width, r) : r, C = axis == COLS ? place(n, 0, width, c) : c;
            to[R * cols + C] = from[r * cols + c];
        }
    h_gguf_tensor(g, name, K_T_BF16, 2, (uint64_t[]){(uint64_t)cols, (uint64_t)rows}, to);
    free(to);
}

/* A vector, or [rows, 1, cols] squeezed, in f32; f: what becomes of each element. */
static void vector(h_gguf *g, const h_hf_tensor *t, const char *name, const head_counts *n, int64_t before,
                   int64_t width, float (*f)(float)) {
    const int64_t rows = t->shape[0], cols = t->ndim == 3 ? t->shape[2] : 1;
    const uint16_t *from = t->data;
    float *to = malloc((size_t)(rows * cols) * sizeof *to);
    assert_non_null(to);
    assert_string_equal(t->dtype, "BF16");
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t R = width ? place(n, before, width, r) : r;
            to[R * cols + c] = f(k_f32_from_bf16(from[r * cols + c]));
        }
    uint64_t ne[] = {(uint64_t)cols, (uint64_t)rows};
    h_gguf_tensor(g, name, K_T_F32, cols > 1 ? 2 : 1, cols > 1 ? ne : ne + 1, to);
    free(to);
}

static float as_is(float x) {
    return x;
}
static float plus_one(float x) {
    return 1.0f + x;
}
static float decay(float x) {
    return (float)-exp((double)x);
}

typedef struct {
    h_gguf *g;
    h_hf *h;
    head_counts n;
    int from, to; /* layer in the checkpoint, block in the file */
    char gguf[96];
} layer;

static const h_hf_tensor *get(layer *l, const char *hf, const char *gguf) {
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.%s", l->from, hf);
    snprintf(l->gguf, sizeof l->gguf, "blk.%d.%s", l->to, gguf);
    return h_hf_get(l->h, name);
}

static void mat(layer *l, const char *hf, const char *gguf, head_axis axis, int64_t before, int64_t width) {
    const h_hf_tensor *t = get(l, hf, gguf);
    matrix(l->g, t, l->gguf, &l->n, axis, before, width);
}

static void vec(layer *l, const char *hf, const char *gguf, int64_t before, int64_t width, float (*f)(float)) {
    const h_hf_tensor *t = get(l, hf, gguf);
    vector(l->g, t, l->gguf, &l->n, before, width, f);
}

static void gdn(layer *l) {
    const int64_t keys = 2 * l->n.nk * l->n.dk, dv = l->n.dv;
    mat(l, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", ROWS, keys, dv);
    mat(l, "linear_attn.in_proj_z.weight", "attn_gate.weight", ROWS, 0, dv);
    mat(l, "linear_attn.in_proj_b.weight", "ssm_beta.weight", ROWS, 0, 1);
    mat(l, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", ROWS, 0, 1);
    mat(l, "linear_attn.out_proj.weight", "ssm_out.weight", COLS, 0, dv);
    vec(l, "linear_attn.conv1d.weight", "ssm_conv1d.weight", keys, dv, as_is);
    vec(l, "linear_attn.dt_bias", "ssm_dt.bias", 0, 1, as_is);
    vec(l, "linear_attn.A_log", "ssm_a", 0, 1, decay);
    vec(l, "linear_attn.norm.weight", "ssm_norm.weight", 0, 0, as_is);
}

static void attn(layer *l) {
    mat(l, "self_attn.q_proj.weight", "attn_q.weight", NONE, 0, 0);
    mat(l, "self_attn.k_proj.weight", "attn_k.weight", NONE, 0, 0);
    mat(l, "self_attn.v_proj.weight", "attn_v.weight", NONE, 0, 0);
    mat(l, "self_attn.o_proj.weight", "attn_output.weight", NONE, 0, 0);
    vec(l, "self_attn.q_norm.weight", "attn_q_norm.weight", 0, 0, plus_one);
    vec(l, "self_attn.k_norm.weight", "attn_k_norm.weight", 0, 0, plus_one);
}

static void rest(layer *l) {
    vec(l, "input_layernorm.weight", "attn_norm.weight", 0, 0, plus_one);
    vec(l, "post_attention_layernorm.weight", "post_attention_norm.weight", 0, 0, plus_one);
    mat(l, "mlp.gate_proj.weight", "ffn_gate.weight", NONE, 0, 0);
    mat(l, "mlp.up_proj.weight", "ffn_up.weight", NONE, 0, 0);
    mat(l, "mlp.down_proj.weight", "ffn_down.weight", NONE, 0, 0);
}

static int has(const h_hf *h, const char *name) {
    for (int i = 0; i < h->n; i++)
        if (!strcmp(h->t[i].name, name)) return 1;
    return 0;
}

void h_dense_tensors(h_gguf *g, h_hf *h) {
    layer l = {.g = g, .h = h, .n = counts(h->config)};
    matrix(g, h_hf_get(h, "model.embed_tokens.weight"), "token_embd.weight", &l.n, NONE, 0, 0);
    if (has(h, "lm_head.weight")) matrix(g, h_hf_get(h, "lm_head.weight"), "output.weight", &l.n, NONE, 0, 0);
    vector(g, h_hf_get(h, "model.norm.weight"), "output_norm.weight", &l.n, 0, 0, plus_one);
    for (l.from = l.to = 0; l.from < integer(h->config, "num_hidden_layers"); l.from = ++l.to) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.linear_attn.A_log", l.from);
        if (has(h, name))
            gdn(&l);
        else
            attn(&l);
        rest(&l);
    }
}

void h_dense_next(h_gguf *g, h_hf *h, int block, int from) {
    static const char *const norms[] = {"nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"};
    const uint64_t D = (uint64_t)integer(h->config, "hidden_size");
    layer l = {.g = g, .h = h, .n = counts(h->config), .from = from, .to = block};
    attn(&l);
    rest(&l);
    snprintf(l.gguf, sizeof l.gguf, "blk.%d.nextn.eh_proj.weight", block);
    h_gguf_tensor(g, l.gguf, K_T_BF16, 2, (uint64_t[]){2 * D, D}, NULL);
    for (size_t i = 0; i < 3; i++) vec(&l, "input_layernorm.weight", norms[i], 0, 0, plus_one);
}

void h_dense_write(h_hf *h, const char *path) {
    h_gguf g;
    h_gguf_init(&g);
    h_dense_keys(&g, h->config);
    h_dense_tensors(&g, h);
    h_buf b = h_gguf_bytes(&g);
    h_write_file(path, b.p, b.n);
    h_buf_free(&b);
    h_gguf_free(&g);
}
