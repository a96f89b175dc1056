/* What binding makes of GGUF keys and tensors: forms that are equal, and every rule broken in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/arch_qwen4_int.h"
#include "lib/gguf.h"
#include "tests/h_bind.h"
#include "tests/h_gguf.h"

#define FILE_A "tests/models/micro-a-bf16.gguf"
#define P "qwen4exp."

/* The file taken apart: keys as bytes, tensors by name. */
static q4x_model *source;
static h_gguf out;

static int set_up(void **state) {
    (void)state;
    q4x_err err = {0};
    if (q4x_model_open(FILE_A, &source, &err)) fail_msg("%s", err.msg);
    h_gguf_init(&out);
    h_gguf_take_keys(&out, source);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    h_gguf_free(&out);
    q4x_model_close(source);
    source = NULL;
    return 0;
}

/* All tensors but those whose name holds `without`, or is NAME when it is "^NAME". */
static void tensors(const char *without) {
    for (int64_t i = 0; i < q4x_model_ntensors(source); i++) {
        const q4x_tensor *t = q4x_model_tensor(source, i);
        uint64_t ne[4];
        for (int k = 0; k < 4; k++) ne[k] = (uint64_t)t->ne[k];
        if (without && (*without == '^' ? !strcmp(t->name, without + 1) : strstr(t->name, without) != NULL)) continue;
        h_gguf_tensor(&out, t->name, t->type, (uint32_t)t->ndim, ne, t->data);
    }
}

/* On the file that is being made. */
static void forget(const char *key) {
    h_gguf_forget(&out, key);
}
static void set_u32(const char *key, uint32_t v) {
    h_gguf_set_u32(&out, key, v);
}
static void set_f32(const char *key, float v) {
    h_gguf_set_f32(&out, key, v);
}

/* Element i of an array whose elements are `size` bytes. */
static void set_elem(const char *key, size_t i, const void *v, size_t size) {
    memcpy(h_gguf_key(&out, key) + 4 + 12 + i * size, v, size);
}

static int bind(q4x_model **m, q4x_qwen4 **w, q4x_err *err) {
    h_buf b = h_gguf_bytes(&out);
    /* the model borrows the bytes: kept until the next call */
    static h_buf kept;
    h_buf_free(&kept);
    kept = b;
    int rc = q4x_gguf_parse_mem(b.p, b.n, "x.gguf", m, err);
    return rc ? rc : q4x_qwen4_bind(*m, w, err);
}

static void binds_at(int line, const char *diff) {
    q4x_model *m = NULL;
    q4x_qwen4 *w = NULL;
    q4x_err err = {0};
    if (bind(&m, &w, &err)) fail_msg("line %d: %s", line, err.msg);
    h_bound a = h_bind(FILE_A);
    const char *d = h_bind_diff(a.w, w);
    if (diff && strcmp(d, diff)) fail_msg("line %d: differs in '%s'", line, d);
    h_unbind(&a);
    q4x_qwen4_free(w);
    q4x_model_close(m);
}

static void refused_at(int line, int code, const char *words) {
    q4x_model *m = NULL;
    q4x_qwen4 *w = NULL;
    q4x_err err = {0};
    int rc = bind(&m, &w, &err);
    q4x_model_close(m);
    if (rc != code || w) fail_msg("line %d: %d (%s), expected %d with '%s'", line, rc, err.msg, code, words);
    if (!strstr(err.msg, words)) fail_msg("line %d: '%s' lacks '%s'", line, err.msg, words);
    if (strncmp(err.msg, "x.gguf: ", 8)) fail_msg("line %d: '%s' does not name the file", line, err.msg);
}

/* Start over, change keys, expect. */
#define AGAIN() (tear_down(NULL), set_up(NULL))
#define REFUSED(change, code, words) (AGAIN(), (change), tensors(NULL), refused_at(__LINE__, Q4X_E_##code, words))
#define BINDS(change) (AGAIN(), (change), tensors(NULL), binds_at(__LINE__, ""))

static void whole(void **state) {
    (void)state;
    tensors(NULL);
    binds_at(__LINE__, "");
    REFUSED(set_f32(P "attention.layer_norm_rms_epsilon", 1.5f), FORMAT, "layer_norm_rms_epsilon is 1.5");
    AGAIN();
    set_f32(P "attention.layer_norm_rms_epsilon", 1e-5f);
    tensors(NULL);
    binds_at(__LINE__, "dims"); /* the comparison can fail */
}

static void missing_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"block_count",
                                       "context_length",
                                       "embedding_length",
                                       "attention.head_count",
                                       "attention.head_count_kv",
                                       "attention.key_length",
                                       "attention.value_length",
                                       "attention.layer_norm_rms_epsilon",
                                       "rope.freq_base",
                                       "rope.dimension_count",
                                       "ssm.conv_kernel",
                                       "ssm.state_size",
                                       "ssm.group_count",
                                       "ssm.time_step_rank",
                                       "ssm.inner_size",
                                       "expert_count",
                                       "expert_used_count",
                                       "expert_feed_forward_length",
                                       "expert_shared_feed_forward_length",
                                       "hyper_connection.count",
                                       "hyper_connection.low_rank",
                                       "ple.ngram_size",
                                       "ple.heads_per_ngram",
                                       "ple.conv_kernel",
                                       "ple.eos_token_id",
                                       "embedding_length_per_layer_input",
                                       "ple.layer_multipliers",
                                       "ple.head_offsets",
                                       "ple.head_vocab_sizes"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[96], words[128];
        snprintf(key, sizeof key, P "%s", keys[i]);
        snprintf(words, sizeof words, "key %s is missing", key);
        REFUSED(forget(key), FORMAT, words);
    }
    BINDS(forget(P "full_attention_interval"));
    BINDS(forget(P "rope.dimension_sections"));
    BINDS(forget("tokenizer.ggml.tokens")); /* the embedding says how many */
    BINDS(forget("tokenizer.ggml.token_type"));
    REFUSED(forget(P "ple.layers"), MISMATCH, "7 tensors that the architecture does not have: per_layer_token_embd");
}

static void ranges(void **state) {
    (void)state;
    REFUSED(set_u32(P "block_count", 0), FORMAT, P "block_count is 0, expected 1 to 512");
    REFUSED(set_u32(P "block_count", 4000000000u), FORMAT, "block_count is 4000000000");
    REFUSED(set_u32(P "context_length", 0), FORMAT, "context_length is 0");
    REFUSED(set_u32(P "embedding_length", 0), FORMAT, "embedding_length is 0");
    REFUSED(set_u32(P "attention.head_count", 0), FORMAT, "attention.head_count is 0");
    REFUSED(set_u32(P "attention.head_count_kv", 0), FORMAT, "attention.head_count_kv is 0");
    REFUSED(set_u32(P "attention.head_count_kv", 3), FORMAT,
            "is 4, expected a multiple of attention.head_count_kv = 3");
    REFUSED(set_u32(P "attention.value_length", 16), FORMAT,
            "attention.value_length is 16, expected attention.key_length");
    REFUSED(set_f32(P "rope.freq_base", 0), FORMAT, "rope.freq_base is 0");
    REFUSED(set_f32(P "rope.freq_base", (float)(0.0 / 0.0)), FORMAT, "rope.freq_base is");
    REFUSED(set_u32(P "rope.dimension_count", 7), FORMAT, "rope.dimension_count is 7, expected an even number");
    REFUSED(set_u32(P "rope.dimension_count", 34), FORMAT, "rope.dimension_count is 34, expected an even number");
    REFUSED(set_u32(P "rope.dimension_count", 18), FORMAT, "is 18, expected at most attention.indexer.key_length = 16");
    REFUSED(set_u32(P "ssm.conv_kernel", 0), FORMAT, "ssm.conv_kernel is 0");
    REFUSED(set_u32(P "ssm.group_count", 3), FORMAT,
            "ssm.time_step_rank is 4, expected a multiple of ssm.group_count = 3");
    REFUSED(set_u32(P "ssm.inner_size", 65), FORMAT, "ssm.inner_size is 65, expected ssm.time_step_rank = 4 times");
    REFUSED(set_u32(P "ssm.inner_size", 1 << 20), FORMAT, "a head width up to 1024");
    REFUSED(set_u32(P "expert_count", 0), FORMAT, "expert_count is 0");
    REFUSED(set_u32(P "expert_count", 1 << 30), FORMAT, "expert_count is 1073741824");
    REFUSED(set_u32(P "expert_used_count", 9), FORMAT, "expert_used_count is 9, expected at most expert_count = 8");
    REFUSED(set_u32(P "hyper_connection.count", 1), FORMAT, "hyper_connection.count is 1, expected 2");
    REFUSED(set_u32(P "hyper_connection.low_rank", 0), FORMAT, "hyper_connection.low_rank is 0");
    REFUSED(set_u32("tokenizer.ggml.eos_token_id", 256), FORMAT,
            "tokenizer.ggml.eos_token_id is 256, expected 0 to 255");
    REFUSED(set_u32("tokenizer.ggml.padding_token_id", 256), FORMAT, "padding_token_id is 256");
    REFUSED(set_u32(P "ple.eos_token_id", 256), FORMAT, "ple.eos_token_id is 256");
    REFUSED((forget("tokenizer.ggml.token_type"), h_gguf_arr_i32(&out, "tokenizer.ggml.token_type", (int32_t[]){1}, 1)),
            FORMAT, "token_type has 1 elements, expected 256");
    REFUSED(h_gguf_kv_u32(&out, P "vocab_size", 255), FORMAT, "vocab_size is 255, but tokenizer.ggml.tokens has 256");
    BINDS(h_gguf_kv_u32(&out, P "vocab_size", 256));
    BINDS((forget("tokenizer.ggml.tokens"), h_gguf_kv_u32(&out, P "vocab_size", 256)));
    REFUSED((forget("tokenizer.ggml.tokens"), h_gguf_kv_u32(&out, P "vocab_size", 1)), FORMAT, "vocabulary size is 1");
    REFUSED(h_gguf_kv_str(&out, P "rope.scaling.type", "yarn"), UNSUPPORTED, "rope.scaling.type is 'yarn'");
    BINDS(h_gguf_kv_str(&out, P "rope.scaling.type", "none"));
    REFUSED((forget(P "block_count"), h_gguf_kv_f32(&out, P "block_count", 4)), FORMAT, "block_count");
}

static void layers(void **state) {
    (void)state;
    const int32_t two = 2, four = 4, minus = -4, zero = 0;
    REFUSED(set_elem(P "attention.compress_ratios", 1, &two, 4), FORMAT,
            "compress_ratios[3] is 4, expected 0 or one ratio");
    REFUSED(set_elem(P "attention.compress_ratios", 3, &minus, 4), FORMAT, "compress_ratios[3] is -4");
    REFUSED(set_elem(P "attention.compress_ratios", 2, &four, 4), MISMATCH, "tensors are missing");
    REFUSED(set_elem(P "attention.compress_ratios", 1, &four, 4), FORMAT,
            "ple.layers[0] is 1, which is an attention layer");
    REFUSED(set_elem(P "attention.compress_ratios", 3, &zero, 4), MISMATCH, "tensors are missing"); /* all linear */
    REFUSED(forget(P "attention.compress_ratios"), FORMAT, "attention.compress_ratios is missing: expected all");
    REFUSED(forget(P "attention.indexer.top_k"), FORMAT, "2 of attention.indexer");
    REFUSED(forget(P "attention.indexer.head_count"), FORMAT, "2 of attention.indexer");
    REFUSED(set_u32(P "attention.indexer.top_k", 66), FORMAT,
            "top_k is 66, expected a multiple of attention.compress_ratios = 4");
    REFUSED(set_u32(P "attention.indexer.key_length", 0), FORMAT, "attention.indexer.key_length is 0");
    AGAIN();
    forget(P "attention.compress_ratios");
    h_gguf_arr_i32(&out, P "attention.compress_ratios", (int32_t[]){0, 0, 0}, 3);
    tensors(NULL);
    refused_at(__LINE__, Q4X_E_FORMAT, "compress_ratios has 3 elements, expected at least 4");
    BINDS(h_gguf_arr_i32(&out, P "attention.recurrent_layers", (int32_t[]){1, 1, 1, 0}, 4));
    REFUSED(h_gguf_arr_i32(&out, P "attention.recurrent_layers", (int32_t[]){1, 1, 0, 0}, 4), FORMAT,
            "recurrent_layers[2] is 0, which attention.compress_ratios denies");
    /* no indexer: dense attention in the layers that the interval or the list says */
    for (int list = 0; list < 2; list++) {
        AGAIN();
        forget(P "attention.compress_ratios");
        forget(P "attention.indexer.head_count");
        forget(P "attention.indexer.key_length");
        forget(P "attention.indexer.top_k");
        if (list) {
            set_u32(P "full_attention_interval", 3);
            h_gguf_arr(&out, P "attention.recurrent_layers", Q4X_GGUF_BOOL, 4, "\1\1\1\0", 4);
        }
        tensors("indexer.");
        q4x_model *m = NULL;
        q4x_qwen4 *w = NULL;
        q4x_err err = {0};
        if (bind(&m, &w, &err)) fail_msg("%s", err.msg);
        assert_int_equal(w->d.ih, 0);
        assert_int_equal(w->layer[3].is_attn, 1);
        assert_int_equal(w->layer[2].is_attn, 0);
        q4x_qwen4_free(w);
        q4x_model_close(m);
    }
}

static void embedding(void **state) {
    (void)state;
    const int32_t four = 4, minus = -1;
    const uint64_t zero = 0, far = 1855, huge = 1ull << 40;
    REFUSED(set_elem(P "ple.layers", 0, &four, 4), FORMAT, "ple.layers[0] is 4, expected 0 to 3");
    REFUSED(set_elem(P "ple.layers", 0, &minus, 4), FORMAT, "ple.layers[0] is -1");
    REFUSED((forget(P "ple.layers"), h_gguf_arr_i32(&out, P "ple.layers", (int32_t[]){0, 1}, 2)), UNSUPPORTED,
            "ple.layers has 2 entries");
    REFUSED(set_u32(P "ple.ngram_size", 1), FORMAT, "ple.ngram_size is 1");
    REFUSED(set_u32(P "ple.ngram_size", 4), FORMAT, "ple.layer_multipliers has 3 elements, expected at least 4");
    REFUSED(set_u32(P "ple.heads_per_ngram", 5), FORMAT, "ple.head_vocab_sizes has 8 elements, expected at least 10");
    REFUSED(set_u32(P "embedding_length_per_layer_input", 64), MISMATCH,
            "ple_key.weight: expected the shape (512, 256)");
    REFUSED(set_elem(P "ple.layer_multipliers", 1, &zero, 8), FORMAT, "layer_multipliers[1] is 0");
    REFUSED(set_elem(P "ple.head_vocab_sizes", 1, &zero, 8), FORMAT, "head 1 has offset 211 and size 0");
    REFUSED(set_elem(P "ple.head_vocab_sizes", 1, &huge, 8), FORMAT, "head 1 has offset 211");
    REFUSED(set_elem(P "ple.head_offsets", 7, &huge, 8), FORMAT, "head 7 has offset 1099511627776");
    REFUSED(set_elem(P "ple.head_offsets", 7, &far, 8), MISMATCH,
            "per_layer_token_embd.weight: expected the shape (8, 2106), fastest first, found (8, 1856)");
    /* all of it may be absent */
    AGAIN();
    forget(P "ple.layers");
    tensors("ple");
    refused_at(__LINE__, Q4X_E_MISMATCH, "1 tensors that the architecture does not have: per_layer_token_embd.weight");
}

/* Forms of the same weights. */
static void forms(void **state) {
    (void)state;
    /* gate and up of the experts in one tensor */
    tensors("_exps.weight");
    for (int l = 0; l < 4; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", l);
        const q4x_tensor *d = q4x_model_find(source, name);
        h_gguf_tensor(&out, name, d->type, 3, (uint64_t[]){32, 64, 8}, d->data);
        snprintf(name, sizeof name, "blk.%d.ffn_gate_exps.weight", l);
        const q4x_tensor *g = q4x_model_find(source, name);
        snprintf(name, sizeof name, "blk.%d.ffn_up_exps.weight", l);
        const q4x_tensor *u = q4x_model_find(source, name);
        const size_t part = 32 * 64 * 2;
        char *both = malloc(16 * part);
        assert_non_null(both);
        for (size_t e = 0; e < 8; e++) {
            memcpy(both + 2 * e * part, (const char *)g->data + e * part, part);
            memcpy(both + (2 * e + 1) * part, (const char *)u->data + e * part, part);
        }
        snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", l);
        h_gguf_tensor(&out, name, g->type, 3, (uint64_t[]){64, 64, 8}, both);
        free(both);
    }
    binds_at(__LINE__, "");
    /* the shared expert's gate with two dimensions; a head tied to the embedding */
    AGAIN();
    tensors("ffn_gate_inp_shexp");
    for (int l = 0; l < 4; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp_shexp.weight", l);
        h_gguf_tensor(&out, name, K_T_F32, 2, (uint64_t[]){64, 1}, q4x_model_find(source, name)->data);
    }
    binds_at(__LINE__, "");
    AGAIN();
    tensors("^output.weight");
    binds_at(__LINE__, "head");
    /* a block behind the trunk is not run */
    AGAIN();
    set_u32(P "block_count", 5);
    h_gguf_kv_u32(&out, P "nextn_predict_layers", 1);
    tensors(NULL);
    h_gguf_tensor1(&out, "blk.4.nextn.enorm.weight", K_T_F32, 64);
    forget(P "attention.compress_ratios");
    h_gguf_arr_i32(&out, P "attention.compress_ratios", (int32_t[]){0, 0, 0, 4, 4}, 5);
    binds_at(__LINE__, "");
    h_gguf_tensor1(&out, "blk.5.nextn.enorm.weight", K_T_F32, 64);
    refused_at(__LINE__, Q4X_E_MISMATCH, "1 tensors that the architecture does not have: blk.5.nextn.enorm.weight");
    REFUSED(h_gguf_kv_u32(&out, P "nextn_predict_layers", 4), FORMAT, "nextn_predict_layers is 4, expected 0 to 3");
}

static void bad_tensors(void **state) {
    (void)state;
    tensors("blk.0.ssm_norm");
    refused_at(__LINE__, Q4X_E_MISMATCH, "1 tensors are missing: blk.0.ssm_norm.weight");
    h_gguf_tensor(&out, "blk.0.ssm_norm.weight", K_T_I8, 1, (uint64_t[]){16}, NULL);
    refused_at(__LINE__, Q4X_E_MISMATCH, "blk.0.ssm_norm.weight: expected F32, F16 or BF16, found I8");
    AGAIN();
    tensors("blk.0.ssm_norm");
    h_gguf_tensor(&out, "blk.0.ssm_norm.weight", K_T_Q8_0, 1, (uint64_t[]){32}, NULL);
    refused_at(__LINE__, Q4X_E_MISMATCH, "blk.0.ssm_norm.weight: expected the shape (16), fastest first, found (32)");
    AGAIN();
    tensors("blk.3.attn_k.weight");
    h_gguf_tensor(&out, "blk.3.attn_k.weight", K_T_I32, 2, (uint64_t[]){64, 64}, NULL);
    refused_at(__LINE__, Q4X_E_MISMATCH, "blk.3.attn_k.weight: expected floats or a block format, found I32");
    AGAIN();
    tensors("blk.3.attn_k.weight");
    h_gguf_tensor(&out, "blk.3.attn_k.weight", K_T_Q4_0, 2, (uint64_t[]){64, 64}, NULL);
    binds_at(__LINE__, "a mixer's matrix"); /* any format whose blocks fill a row */
    AGAIN();
    tensors(NULL);
    h_gguf_tensor1(&out, "blk.0.attn_norm.weight", K_T_F32, 64);
    refused_at(__LINE__, Q4X_E_MISMATCH, "1 tensors that the architecture does not have: blk.0.attn_norm.weight");
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(whole),     TEST(missing_keys), TEST(ranges),     TEST(layers),
                                       TEST(embedding), TEST(forms),        TEST(bad_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
