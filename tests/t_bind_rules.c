/* What binding refuses in a checkpoint: every rule on its configuration broken in turn, hash constants that do not
 * follow from it, and tensors that are missing, too many or of another shape or type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/arch_qwen4_int.h"
#include "tests/h_bind.h"
#include "tests/h_hf.h"

#define MICRO_A "tests/golden/micro-a"
#define REFUSED(code, words) (h_hf_write(h, dir, 0), h_bind_refused(__LINE__, dir, Q4X_E_##code, words))

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

/* One or two keys changed, and the words of the refusal ("": it must bind). */
typedef struct {
    const char *key, *json, *words, *key2, *json2;
} edit;

#define E(key, json, words)                                                                                            \
    { key, json, words, NULL, NULL }
#define E2(key, json, words, key2, json2)                                                                              \
    { key, json, words, key2, json2 }
static const edit edits[] = {
    /* types and ranges */
    E("hidden_size", "\"64\"", "hidden_size: expected an integer, found a string"),
    E("hidden_size", "64.0", "hidden_size: expected an integer, found a real number"),
    E("hidden_size", "0", "hidden_size is 0, expected 1 to 65536"),
    E("hidden_size", "-64", "hidden_size is -64"),
    E("hidden_size", "9223372036854775807", "hidden_size is 9223372036854775807"),
    E("num_hidden_layers", "0", "num_hidden_layers is 0, expected 1 to 512"),
    E("num_hidden_layers", "513", "num_hidden_layers is 513"),
    E("vocab_size", "1", "vocab_size is 1"),
    E("vocab_size", "16777217", "vocab_size is 16777217"),
    E("max_position_embeddings", "0", "max_position_embeddings is 0"),
    E("max_position_embeddings", "16777217", "max_position_embeddings is 16777217"),
    E("max_position_embeddings", "[]", "max_position_embeddings: expected an integer, found an array"),
    E("num_attention_heads", "0", "num_attention_heads is 0"),
    E("num_attention_heads", "3", "num_attention_heads is 3, expected a multiple of num_key_value_heads = 2"),
    E("num_key_value_heads", "0", "num_key_value_heads is 0"),
    E("num_key_value_heads", "true", "num_key_value_heads: expected an integer, found true"),
    E("head_dim", "0", "head_dim is 0"),
    E("linear_num_key_heads", "0", "linear_num_key_heads is 0"),
    E("linear_num_value_heads", "3", "linear_num_value_heads is 3, expected a multiple of linear_num_key_heads = 2"),
    E("linear_key_head_dim", "0", "linear_key_head_dim is 0"),
    E("linear_value_head_dim", "4097", "linear_value_head_dim is 4097"),
    E("linear_conv_kernel_dim", "0", "linear_conv_kernel_dim is 0"),
    E("hc_count", "1", "hc_count is 1, expected 2 to 64"),
    E("hc_lowrank", "0", "hc_lowrank is 0"),
    E("num_experts", "0", "num_experts is 0, expected 1 to 4096"),
    E("num_experts", "4097", "num_experts is 4097"),
    E("num_experts_per_tok", "0", "num_experts_per_tok is 0"),
    E("num_experts_per_tok", "9", "num_experts_per_tok is 9, expected at most num_experts = 8"),
    E("moe_intermediate_size", "0", "moe_intermediate_size is 0"),
    E("shared_expert_intermediate_size", "0", "shared_expert_intermediate_size is 0"),
    E("rms_norm_eps", "\"x\"", "rms_norm_eps: expected a number"),
    E("rms_norm_eps", "-1e-6", "rms_norm_eps is -1e-06"),
    E("rms_norm_eps", "2", "rms_norm_eps is 2"),
    E("rms_norm_eps", "1e-5", ""),
    E("rms_norm_eps", "null", ""),
    /* words and switches */
    E("hidden_act", "\"gelu\"", "hidden_act is 'gelu', expected 'silu'"),
    E("hidden_act", "1", "hidden_act: expected a string"),
    E("output_gate_type", "\"tanh\"", "output_gate_type is 'tanh', expected 'sigmoid' or 'silu'"),
    E("output_gate_type", "{}", "output_gate_type: expected a string, found an object"),
    E("attention_bias", "true", "attention_bias is true, expected false"),
    E("attention_bias", "0", "attention_bias: expected true or false"),
    E("norm_topk_prob", "1", "norm_topk_prob: expected true or false, found an integer"),
    E("tie_word_embeddings", "\"no\"", "tie_word_embeddings: expected true or false"),
    /* rope */
    E("rope_parameters", NULL, "rope_parameters.rope_theta: expected a number, found none"),
    E("rope_parameters", "[]", "rope_parameters: expected an object"),
    E2("rope_parameters", NULL, "rot", "rope_theta", "1e4"), /* factor 1: 32 dimensions, the indexer has 16 */
    E("rope_parameters.rope_theta", "0", "rope_parameters.rope_theta is 0"),
    E("rope_parameters.rope_theta", "\"1e4\"", "rope_theta: expected a number, found a string"),
    E("rope_parameters.rope_type", "\"yarn\"", "rope_type is yarn, expected 'default'"),
    E("rope_parameters.rope_type", "3", "rope_type is no string"),
    E2("rope_scaling", "{\"type\":\"linear\"}", "rope_type is linear", "rope_parameters.rope_type", NULL),
    E("rope_parameters.partial_rotary_factor", "1.01", "partial_rotary_factor is 1.01"),
    E("rope_parameters.partial_rotary_factor", "0", "partial_rotary_factor is 0, expected an even number"),
    E("rope_parameters.partial_rotary_factor", "0.1", "partial_rotary_factor is 3, expected an even number"),
    E("rope_parameters.partial_rotary_factor", "0.75", "is 24, expected at most indexer_head_dim = 16"),
    E("rope_parameters.partial_rotary_factor", "0.5", ""),
    E2("rope_parameters.partial_rotary_factor", NULL, "", "partial_rotary_factor", "0.25"),
    E("rope_parameters.partial_rotary_factor", NULL, "is 32, expected at most indexer_head_dim"),
    /* layers */
    E("layer_types", "\"linear_attention\"", "layer_types: expected an array"),
    E("layer_types", "[\"linear_attention\"]", "layer_types has 1 entries, expected num_hidden_layers = 4"),
    E("layer_types", "[1,2,3,4]", "layer_types: expected strings"),
    E("layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"sliding_attention\"]",
      "layer_types[3] is 'sliding_attention'"),
    E("layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\"]", ""),
    E("layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"indexed_attention\"]", ""),
    E("layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"hybrid_indexed\"]", ""),
    E("layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"deepseek_sparse_attention\"]",
      ""),
    E("layer_types", "null", ""),
    E2("layer_types", "null", "full_attention_interval is 0", "full_attention_interval", "0"),
    E2("layer_types", "null", "tensors are missing", "full_attention_interval", "2"),
    /* indexer: all five or none, positive, one key head, budget in whole blocks */
    E("indexer_n_heads", NULL, "indexer_n_heads is not: expected all five"),
    E("indexer_kv_heads", "null", "indexer_kv_heads is not: expected all five"),
    E("indexer_head_dim", NULL, "indexer_head_dim is not: expected all five"),
    E("indexer_budget", NULL, "indexer_budget is not: expected all five"),
    E("indexer_compress_ratio", NULL, "indexer_compress_ratio is not: expected all five"),
    E("indexer_n_heads", "0", "indexer_n_heads is 0"),
    E("indexer_kv_heads", "2", "indexer_kv_heads is 2, expected 1 to 1"),
    E("indexer_head_dim", "0", "indexer_head_dim is 0"),
    E("indexer_budget", "0", "indexer_budget is 0"),
    E("indexer_budget", "66", "indexer_budget is 66, expected a multiple of indexer_compress_ratio = 4"),
    E("indexer_compress_ratio", "0", "indexer_compress_ratio is 0"),
    /* per-layer embedding */
    E("ple_layer_ids", "2", "ple_layer_ids: expected an array"),
    E("ple_layer_ids", "[0]", "ple_layer_ids is 0, expected 1 to 4"),
    E("ple_layer_ids", "[5]", "ple_layer_ids is 5, expected 1 to 4"),
    E("ple_layer_ids", "[2.0]", "ple_layer_ids: expected an integer"),
    E("ple_layer_ids", "[2,2]", ""),
    E("ple_embed_dim", "60", "ple_embed_dim is 60, expected a multiple of (ngram_size - 1) * heads_per_ngram = 8"),
    E("ple_embed_dim", "null", ""),
    E("ple_embed_dim", "0", "ple_embed_dim is 0"),
    E("ngram_size", "1", "ngram_size is 1, expected 2 to 16"),
    E("heads_per_ngram", "0", "heads_per_ngram is 0"),
    E("ple_conv_kernel_size", "0", "ple_conv_kernel_size is 0"),
    E("eos_token_id", NULL, "eos_token_id: expected an integer, found none"),
    E("eos_token_id", "[]", "eos_token_id is an empty list"),
    E("eos_token_id", "[0,7]", ""),
    E("eos_token_id", "[0,256]", "eos_token_id is 256, expected 0 to 255"),
    E("eos_token_id", "-1", "eos_token_id is -1"),
    E("eos_token_id", "256", "eos_token_id is 256"),
    E("bos_token_id", "256", "bos_token_id is 256"),
    E("pad_token_id", "\"x\"", "pad_token_id: expected an integer"),
    E("make_ngram_vocab_size_divisible_by", "0", "make_ngram_vocab_size_divisible_by is 0"),
    E("split_ngram_parts", "0", "split_ngram_parts is 0"),
    E("split_ngram_parts", "3", "split_ngram_parts is 3, expected a divisor of the n-gram table's 1856 rows"),
    E("split_ngram_parts", "2", "shard_0.weight: expected the shape (8, 928)"),
    E("split_ngram_parts", "8", "shard_0.weight: expected the shape (8, 232)"),
    E("seed", "\"\"", "seed: expected an integer"),
    E("ngram_vocab_size_base", "0", "ngram_vocab_size_base is 0"),
    /* defaults that matter: seed 1234, a renormalised router */
    E("seed", NULL, ""),
    E("norm_topk_prob", NULL, ""),
    /* the stored hash constants must follow */
    E("seed", "0", "layer 1: layer_multipliers[0] is 4295158889762567, but seed 0, vocab_size 256"),
    E("seed", "1235", "layer_multipliers[0] is 4295158889762567, but seed 1235"),
    E("ngram_vocab_size_base", "201", ""), /* 211 is the next prime of both */
    E("ngram_vocab_size_base", "212",
      "ngram_heads_vocab_sizes[0] is 211, but seed 1234, vocab_size 256 and "
      "ngram_vocab_size_base 212 give 223"),
    E("ngram_vocab_size_base", "1000000000", "would leave int32"),
    /* other models */
    E("model_type", "\"qwen4_exp\"", ""),
    E("model_type", "\"qwen3_5_text\"", "model_type is 'qwen3_5_text', expected qwen4_exp or qwen4_exp_text"),
};

static void rules(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const edit *e = &edits[i];
        json_t *c = json_deep_copy(h->config);
        h_hf_set(c, e->key, e->json);
        if (e->key2) h_hf_set(c, e->key2, e->json2);
        h_hf_write_config(c, dir, MICRO_A);
        json_decref(c);
        q4x_model *m = NULL;
        q4x_qwen4 *w = NULL;
        q4x_err err = {0};
        int rc = q4x_model_open(dir, &m, &err);
        if (!rc) rc = q4x_qwen4_bind(m, &w, &err);
        if (!*e->words ? rc : !rc || !strstr(err.msg, e->words))
            fail_msg("%s = %s: %d '%s', expected '%s'", e->key, e->json, rc, err.msg, e->words);
        if (rc && strncmp(err.msg, dir, strlen(dir))) fail_msg("'%s' does not begin with the file", err.msg);
        q4x_qwen4_free(w);
        q4x_model_close(m);
    }
    h_hf_free(h);
}

/* What the switches do. */
static void switches(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_set(h->config, "output_gate_type", "null");
    h_hf_set(h->config, "norm_topk_prob", "false");
    h_hf_set(h->config, "rms_norm_eps", "3e-5");
    h_hf_set(h->config, "eos_token_id", "[9,0]");
    h_hf_set(h->config, "max_position_embeddings", NULL);
    h_hf_write(h, dir, 0);
    h_bound b = h_bind(dir);
    assert_int_equal(b.w->d.gate_silu, 1);
    assert_int_equal(b.w->d.renorm, 0);
    assert_true(b.w->d.eps == 3e-5f);
    assert_int_equal(b.w->d.eos, 9); /* the first of a list */
    assert_int_equal(b.w->ctx_max, 32768);
    h_unbind(&b);
    h_hf_free(h);
}

/* The released model's constants, section 7.1. */
static void hash_constants(void **state) {
    (void)state;
    static const int64_t want[] = {
        23703573157769, 20109073645365, 8052911324071, 20000003,  20000023,  20000033,  20000047,
        20000059,       20000063,       20000069,      20000077,  20000081,  20000093,  20000107,
        20000147,       20000153,       20000159,      20000161,  20000171,  0,         20000003,
        40000026,       60000059,       80000106,      100000165, 120000228, 140000297, 160000374,
        180000455,      200000548,      220000655,     240000802, 260000955, 280001114, 300001275};
    int64_t got[35], second[35];
    assert_int_equal(q4x_q4_hash(248320, 3, 16, 20000000, 1234, 0, got), 0);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(q4x_q4_hash(248320, 3, 16, 20000000, 1234, 1, second), 0);
    assert_true(second[3] > got[18]); /* the next sixteen primes */
    assert_true(second[0] != got[0]);
    assert_int_equal(q4x_q4_hash(248320, 3, 16, 20000003, 1234, 0, second), 0);
    assert_int_equal(second[3], 20000003); /* a prime base counts */
    assert_int_equal(q4x_q4_hash(2, 2, 1, 1, -5, 0, second), 0);
    assert_int_equal(second[2], 2);
    assert_int_equal(q4x_q4_hash(2, 2, 1, INT32_MAX, 0, 0, second), 0);
    assert_int_equal(q4x_q4_hash(2, 2, 2, INT32_MAX, 0, 0, second), -1);
    assert_int_equal(q4x_q4_hash(2, 3, 16, 200000000, 0, 0, second), -1);
}

/* A changed constant is named. */
static void hash_changed(void **state) {
    (void)state;
#define TABLE "model.layers.1.ple.ple_embedding."
    static const char *const names[] = {TABLE "layer_multipliers", TABLE "ngram_heads_vocab_sizes",
                                        TABLE "ngram_heads_offsets"};
    static const char *const words[] = {"layer_multipliers[2] is", "ngram_heads_vocab_sizes[2] is",
                                        "ngram_heads_offsets[2] is"};
    h_hf *h = h_hf_load(MICRO_A);
    for (size_t i = 0; i < 3; i++) {
        int64_t *v = h_hf_get(h, names[i])->data;
        v[2]++;
        REFUSED(MISMATCH, words[i]);
        v[2] = -1;
        REFUSED(FORMAT, "n-gram hash: ");
        v[2] = INT64_MAX;
        h_hf_write(h, dir, 0);
        h_bind_refused(__LINE__, dir, i ? Q4X_E_FORMAT : Q4X_E_MISMATCH, i ? "n-gram hash: head 2" : words[0]);
        h_hf_free(h);
        h = h_hf_load(MICRO_A);
    }
    h_hf_free(h);
}

/* Two layers with an embedding: the second takes the next primes, whatever the order of the list. */
static void two_embeddings(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    int64_t hash[3 + 16];
    assert_int_equal(q4x_q4_hash(256, 3, 8, 200, 1234, 1, hash), 0);
    int64_t rows = (hash[18] + hash[10] + 15) / 16 * 16;
    for (int i = 0, n = h->n; i < n; i++) {
        h_hf_tensor t = h->t[i];
        char name[256];
        if (strncmp(t.name, "model.layers.1.ple.", 19)) continue;
        snprintf(name, sizeof name, "model.layers.2.ple.%.200s", t.name + 19);
        if (strstr(name, ".shard_")) {
            t.shape[0] = rows / 4;
            h_hf_add(h, name, t.dtype, 2, t.shape, NULL);
            continue;
        }
        const void *data = strstr(name, "layer_mult")      ? hash
                           : strstr(name, "heads_vocab")   ? hash + 3
                           : strstr(name, "heads_offsets") ? hash + 11
                                                           : t.data;
        h_hf_add(h, name, t.dtype, t.ndim, t.shape, data);
    }
    h_hf_set(h->config, "ple_layer_ids", "[3,2,3]");
    h_hf_write(h, dir, 0);
    h_bound b = h_bind(dir);
    assert_true(!b.w->layer[0].has_ple && b.w->layer[1].has_ple && b.w->layer[2].has_ple);
    assert_int_equal(b.w->layer[1].hash[3], 211);
    assert_int_equal(b.w->layer[2].hash[3], 257);
    h_unbind(&b);
    h_hf_set(h->config, "ple_layer_ids", "[2]");
    REFUSED(MISMATCH, "13 tensors that the architecture does not have: ");
    h_hf_free(h);
}

/* ---- tensors that are not as they should be ---- */

static void bad_tensors(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    const char *norm = "model.layers.0.attn_hyper_connection.hc_norm.weight";
    h_hf_tensor *t = h_hf_get(h, norm);
    t->ndim = 2, t->shape[0] = 1, t->shape[1] = 256;
    REFUSED(MISMATCH, "hc_norm.weight: expected the shape (256), fastest first, found (256, 1)");
    t->ndim = 1, t->shape[0] = 255, t->bytes = 510;
    REFUSED(MISMATCH, "expected the shape (256), fastest first, found (255)");
    t->shape[0] = 256, t->bytes = 512;
    snprintf(t->dtype, sizeof t->dtype, "I16");
    REFUSED(MISMATCH, "hc_norm.weight: expected F32, F16 or BF16, found I16");
    snprintf(t->dtype, sizeof t->dtype, "BF16");
    t = h_hf_get(h, "model.layers.0.linear_attn.conv1d.weight");
    t->ndim = 2, t->shape[1] = 4;
    REFUSED(MISMATCH, "expected the shape (4, 1, 128), fastest first, found (4, 128)");
    t->ndim = 3, t->shape[1] = 1;
    t = h_hf_get(h, "model.layers.2.linear_attn.out_proj.weight");
    snprintf(t->dtype, sizeof t->dtype, "I16");
    REFUSED(MISMATCH, "out_proj.weight: expected floats or a block format, found I16");
    snprintf(t->dtype, sizeof t->dtype, "F64");
    t->shape[1] /= 4;
    REFUSED(MISMATCH, "out_proj.weight: expected the shape (64, 64)");
    snprintf(t->dtype, sizeof t->dtype, "BF16");
    t->shape[1] *= 4;
    t = h_hf_get(h, "model.layers.1.ple.ple_embedding.layer_multipliers");
    snprintf(t->dtype, sizeof t->dtype, "F64");
    REFUSED(MISMATCH, "layer_multipliers: expected I64");
    snprintf(t->dtype, sizeof t->dtype, "I64");
    t = h_hf_get(h, "model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight");
    t->shape[0] = 232, t->shape[1] = 16;
    REFUSED(MISMATCH, "shard_2.weight: expected the shape (8, 464), fastest first, found (16, 232)");
    t->shape[0] = 464, t->shape[1] = 8;
    snprintf(t->dtype, sizeof t->dtype, "F16");
    REFUSED(MISMATCH, "shard_2.weight: another type than shard 0");
    snprintf(t->dtype, sizeof t->dtype, "BF16");
    h_hf_write(h, dir, 0);
    h_bound ok = h_bind(dir); /* all of the above was undone */
    h_unbind(&ok);

    h_hf_free(h);
}

static void missing(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    const char *norm = "model.layers.0.attn_hyper_connection.hc_norm.weight";
    snprintf(h_hf_get(h, norm)->name, 256, "model.layers.0.attn_hyper_connection.hc_norms.weight");
    REFUSED(MISMATCH, "1 tensors are missing (model.layers.0.attn_hyper_connection.hc_norm.weight) and 1 unknown ones "
                      "are there (model.layers.0.attn_hyper_connection.hc_norms.weight)");
    for (int i = h->n - 1; i >= 0; i--)
        if (strstr(h->t[i].name, ".hc_norms.")) h_hf_drop(h, h->t[i].name);
    REFUSED(MISMATCH, "1 tensors are missing: model.layers.0.attn_hyper_connection.hc_norm.weight");
    h_hf_drop(h, "lm_head.weight");
    h_hf_drop(h, "model.embed_tokens.weight");
    h_hf_drop(h, "model.layers.3.mlp.experts.7.up_proj.weight");
    REFUSED(MISMATCH, "4 tensors are missing: model.embed_tokens.weight, lm_head.weight, "
                      "model.layers.0.attn_hyper_connection.hc_norm.weight, ..");
    for (int e = 0; e < 8; e++)
        for (int p = 0; p < 3; p++) {
            char name[128];
            if (e == 7 && p == 1) continue;
            snprintf(name, sizeof name, "model.layers.3.mlp.experts.%d.%s_proj.weight", e,
                     p == 0   ? "gate"
                     : p == 1 ? "up"
                              : "down");
            h_hf_drop(h, name);
        }
    REFUSED(MISMATCH, "5 tensors are missing"); /* of absent experts only the two fused tensors */
    h_hf_free(h);
}

static void surplus(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_add(h, "model.norm.weight", "BF16", 1, (int64_t[]){64}, NULL);
    REFUSED(MISMATCH, "1 tensors that the architecture does not have: model.norm.weight");
    h_hf_add(h, "model.layers.4.mlp.gate.weight", "BF16", 2, (int64_t[]){8, 64}, NULL);
    h_hf_add(h, "x", "I8", 0, NULL, NULL);
    h_hf_add(h, "y", "I8", 0, NULL, NULL);
    REFUSED(MISMATCH, "4 tensors that the architecture does not have: ");
    h_hf_free(h);
    h = h_hf_load(MICRO_A);
    h_hf_add(h, "model.layers.0.mlp.experts.down_proj", "BF16", 3, (int64_t[]){8, 64, 32}, NULL);
    REFUSED(MISMATCH, "1 tensors that the architecture does not have: model.layers.0.mlp.experts.down_proj");
    h_hf_free(h);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(rules),          TEST(switches),    TEST(hash_constants), TEST(hash_changed),
        TEST(two_embeddings), TEST(bad_tensors), TEST(missing),        TEST(surplus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
