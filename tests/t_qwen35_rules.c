/* What binding qwen35 refuses, and how it says so: every rule on its configuration and on its GGUF keys broken in turn,
 * and tensors that are missing, too many or of another shape or type. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arch_qwen35_int.h"
#include "tests/check.h"
#include "tests/h_bind.h"
#include "tests/h_dense.h"

#define DENSE_A "tests/golden/dense-a"

static char *dir, gguf[512]; /* of the test that runs */
static h_hf *src;

static int set_up(void **state) {
    (void)state;
    dir = h_tmp();
    snprintf(gguf, sizeof gguf, "%s/dense.gguf", dir);
    src = h_hf_load(DENSE_A);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    h_hf_free(src);
    h_tmp_remove(dir);
    return 0;
}

/* ---- config.json ---- */

/* A key changed, and the words of the refusal ("": it must bind). */
static const struct {
    const char *key, *json, *words;
} edits[] = {
    {"hidden_size", "\"64\"", "hidden_size: expected an integer, found a string"},
    {"hidden_size", "0", "hidden_size is 0, expected 1 to 65536"},
    {"hidden_size", "65", "expected the shape (65, 256), fastest first, found (64, 256)"},
    {"num_hidden_layers", "513", "num_hidden_layers is 513"},
    {"num_hidden_layers", "3", "layer_types has 4 entries, expected num_hidden_layers = 3"},
    {"vocab_size", "1", "vocab_size is 1"},
    {"vocab_size", "257", "embed_tokens.weight: expected the shape (64, 257)"},
    {"max_position_embeddings", "16777217", "max_position_embeddings is 16777217"},
    {"num_attention_heads", "3", "num_attention_heads is 3, expected a multiple of num_key_value_heads = 2"},
    {"num_attention_heads", "8", "q_proj.weight: expected the shape (64, 512)"},
    {"num_key_value_heads", "4", "k_proj.weight: expected the shape (64, 128)"},
    {"head_dim", "0", "head_dim is 0"},
    {"head_dim", "null", "q_proj.weight: expected the shape (64, 2048)"}, /* 256 */
    {"linear_num_value_heads", "5", "linear_num_value_heads is 5, expected a multiple of linear_num_key_heads = 2"},
    {"linear_num_key_heads", "0", "linear_num_key_heads is 0"},
    {"linear_key_head_dim", "1025", "linear_key_head_dim is 1025"},
    {"linear_value_head_dim", "8", "in_proj_qkv.weight: expected the shape (64, 112)"},
    {"linear_conv_kernel_dim", "1", "linear_conv_kernel_dim is 1, expected 2 to 64"},
    {"linear_conv_kernel_dim", "5", "conv1d.weight: expected the shape (5, 1, 160)"},
    {"intermediate_size", "0", "intermediate_size is 0, expected 1 to 1048576"},
    {"intermediate_size", "[96]", "intermediate_size: expected an integer, found an array"},
    {"intermediate_size", "128", "gate_proj.weight: expected the shape (64, 128)"},
    {"intermediate_size", NULL, "gate_proj.weight: expected the shape (64, 12288)"},
    {"rms_norm_eps", "\"x\"", "rms_norm_eps: expected a number"},
    {"rms_norm_eps", "2", "rms_norm_eps is 2"},
    {"hidden_act", "\"gelu\"", "hidden_act is 'gelu', expected 'silu'"},
    {"hidden_act", "null", ""},
    {"output_gate_type", "\"tanh\"", "output_gate_type is 'tanh', expected 'sigmoid' or 'silu'"},
    {"output_gate_type", "\"silu\"", ""},
    {"attention_bias", "true", "attention_bias is true, expected false"},
    {"tie_word_embeddings", "1", "tie_word_embeddings: expected true or false, found an integer"},
    {"rope_parameters", NULL, "rope_parameters.rope_theta: expected a number, found none"},
    {"rope_parameters", "[]", "rope_parameters: expected an object"},
    {"rope_parameters.rope_theta", "0.5", "rope_parameters.rope_theta is 0.5"},
    {"rope_parameters.rope_type", "\"yarn\"", "rope_type is yarn, expected 'default'"},
    {"rope_parameters.partial_rotary_factor", "0.1", "partial_rotary_factor is 3, expected an even number from 2 to"},
    {"rope_parameters.partial_rotary_factor", "1", ""},
    {"rope_parameters.partial_rotary_factor", "1.5", "partial_rotary_factor is 1.5"},
    {"rope_parameters.mrope_section", "[2,1]", "mrope_section: expected an array of at least three, found an array"},
    {"rope_parameters.mrope_section", "\"2,1,1\"", "mrope_section: expected an array of at least three"},
    {"rope_parameters.mrope_section", "[2,1,-1]", "mrope_section is -1, expected 0 to 4096"},
    {"rope_parameters.mrope_section", "[2,1,1.0]", "mrope_section: expected an integer"},
    {"rope_parameters.mrope_section", "null", ""},
    {"layer_types", "\"full_attention\"", "layer_types: expected an array"},
    {"layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"indexed_attention\"]",
     "layer_types[3] is 'indexed_attention', expected linear_attention or full_attention"},
    {"layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"\"]", "layer_types[3] is ''"},
    {"layer_types", "[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]",
     "18 tensors are missing"},
    {"full_attention_interval", "2", ""}, /* layer_types decides */
    {"bos_token_id", "256", "bos_token_id is 256"},
    {"pad_token_id", "\"x\"", "pad_token_id: expected an integer"},
    {"num_experts", "8", ""}, /* of other models: says nothing here */
};

static void config_rules(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *c = json_deep_copy(src->config);
        h_hf_set(c, edits[i].key, edits[i].json);
        h_hf_write_config(c, dir, DENSE_A);
        json_decref(c);
        q4x_model *m = NULL;
        q4x_qwen35 *w = NULL;
        q4x_err err = {0};
        int rc = q4x_model_open(dir, &m, &err);
        if (!rc) rc = q4x_qwen35_bind(m, &w, &err);
        if (!*edits[i].words ? rc : !rc || !strstr(err.msg, edits[i].words))
            fail_msg("%s = %s: %d '%s', expected '%s'", edits[i].key, edits[i].json, rc, err.msg, edits[i].words);
        if (rc && strncmp(err.msg, dir, strlen(dir))) fail_msg("'%s' does not begin with the file", err.msg);
        q4x_qwen35_free(w);
        q4x_model_close(m);
    }
}

/* Asked to bind what is not its own, the binder says so; asked by name, the right one is found. */
static void other_architectures(void **state) {
    (void)state;
    static const char *const files[] = {"tests/golden/micro-a", "tests/models/micro-a-bf16.gguf"};
    static const char *const words[] = {"model_type is 'qwen4_exp_text', expected qwen3_5 or qwen3_5_text",
                                        "general.architecture is 'qwen4exp', expected qwen35"};
    for (size_t i = 0; i < 2; i++) {
        q4x_model *m = NULL;
        q4x_qwen35 *w = NULL;
        q4x_err err = {0};
        assert_rc_ok(q4x_model_open(files[i], &m, &err), &err);
        assert_int_equal(q4x_qwen35_bind(m, &w, &err), Q4X_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, words[i]));
        assert_null(w);
        q4x_model_close(m);
    }
    h_hf_set(src->config, "model_type", "\"qwen3_5_moe\"");
    h_hf_write(src, dir, 0);
    h_bind_refused(__LINE__, dir, Q4X_E_UNSUPPORTED,
                   "architecture 'qwen3_5_moe' is not one that this build runs (qwen4exp, qwen35)");
}

/* ---- tensors of a checkpoint ---- */

#define REFUSED(code, words) (h_hf_write(src, dir, 0), h_bind_refused(__LINE__, dir, Q4X_E_##code, words))

static void checkpoint_tensors(void **state) {
    (void)state;
    h_hf_tensor *t = h_hf_get(src, "model.layers.2.post_attention_layernorm.weight");
    t->shape[0] = 63, t->bytes = 126;
    REFUSED(MISMATCH, "post_attention_layernorm.weight: expected the shape (64), fastest first, found (63)");
    t->shape[0] = 64, t->bytes = 128;
    snprintf(t->dtype, sizeof t->dtype, "I16");
    REFUSED(MISMATCH, "post_attention_layernorm.weight: expected F32, F16 or BF16, found I16");
    snprintf(t->dtype, sizeof t->dtype, "BF16");
    t = h_hf_get(src, "model.layers.2.mlp.down_proj.weight");
    snprintf(t->dtype, sizeof t->dtype, "I16");
    REFUSED(MISMATCH, "down_proj.weight: expected floats or a block format, found I16");
    snprintf(t->dtype, sizeof t->dtype, "BF16");
    h_hf_add(src, "model.layers.0.linear_attn.in_proj_ba.weight", "BF16", 2, (int64_t[]){12, 64}, NULL);
    h_hf_add(src, "model.layers.4.input_layernorm.weight", "BF16", 1, (int64_t[]){64}, NULL);
    REFUSED(MISMATCH, "2 tensors that the architecture does not have: model.layers.0.linear_attn.in_proj_ba.weight, "
                      "model.layers.4.input_layernorm.weight");
    h_hf_drop(src, "model.layers.4.input_layernorm.weight");
    h_hf_drop(src, "model.norm.weight");
    REFUSED(MISMATCH, "1 tensors are missing (model.norm.weight) and 1 unknown ones are there "
                      "(model.layers.0.linear_attn.in_proj_ba.weight)");
    h_hf_drop(src, "model.layers.0.linear_attn.in_proj_ba.weight");
    REFUSED(MISMATCH, "1 tensors are missing: model.norm.weight");
}

/* ---- GGUF keys ---- */

#define P "qwen35."

static void write_gguf(const h_gguf *g) {
    h_buf b = h_gguf_bytes(g);
    h_write_file(gguf, b.p, b.n);
    h_buf_free(&b);
}

static void start(h_gguf *g) {
    h_gguf_init(g);
    h_dense_keys(g, src->config);
    h_dense_tensors(g, src);
}

static void binds_at(int line, h_gguf *g) {
    write_gguf(g);
    q4x_model *m = NULL;
    q4x_qwen35 *w = NULL;
    q4x_err err = {0};
    if (q4x_model_open(gguf, &m, &err) || q4x_qwen35_bind(m, &w, &err)) fail_msg("line %d: %s", line, err.msg);
    q4x_qwen35_free(w);
    q4x_model_close(m);
    h_gguf_free(g);
}

static void refused_at(int line, h_gguf *g, int code, const char *words) {
    write_gguf(g);
    h_bind_refused(line, gguf, code, words);
    h_gguf_free(g);
}

#define G_REFUSED(change, code, words) (start(&g), (change), refused_at(__LINE__, &g, Q4X_E_##code, words))
#define G_BINDS(change) (start(&g), (change), binds_at(__LINE__, &g))

static void missing_keys(void **state) {
    (void)state;
    static const char *const keys[] = {
        "block_count",          "context_length",         "embedding_length",
        "feed_forward_length",  "attention.head_count",   "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
        "rope.freq_base",       "rope.dimension_count",   "rope.dimension_sections",
        "ssm.conv_kernel",      "ssm.state_size",         "ssm.group_count",
        "ssm.time_step_rank",   "ssm.inner_size"};
    h_gguf g;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[96], words[128];
        snprintf(key, sizeof key, P "%s", keys[i]);
        snprintf(words, sizeof words, "key %s is missing", key);
        G_REFUSED(h_gguf_forget(&g, key), FORMAT, words);
    }
    G_BINDS(h_gguf_forget(&g, P "full_attention_interval"));
}

static void key_ranges(void **state) {
    (void)state;
    h_gguf g;
    G_BINDS((void)0);
    G_REFUSED(h_gguf_set_u32(&g, P "block_count", 0), FORMAT, P "block_count is 0, expected 1 to 512");
    G_REFUSED(h_gguf_set_u32(&g, P "block_count", 3), MISMATCH,
              "11 tensors that the architecture does not have: blk.3.");
    G_REFUSED(h_gguf_set_u32(&g, P "embedding_length", 65537), FORMAT, "embedding_length is 65537");
    G_REFUSED(h_gguf_set_u32(&g, P "feed_forward_length", 0), FORMAT, "feed_forward_length is 0");
    G_REFUSED(h_gguf_set_u32(&g, P "feed_forward_length", 95), MISMATCH,
              "ffn_gate.weight: expected the shape (64, 95)");
    G_REFUSED(h_gguf_set_u32(&g, P "attention.head_count_kv", 3), FORMAT,
              "attention.head_count is 4, expected a multiple of attention.head_count_kv = 3");
    G_REFUSED(h_gguf_set_u32(&g, P "attention.value_length", 16), FORMAT,
              "attention.value_length is 16, expected attention.key_length = 32");
    G_REFUSED(h_gguf_set_u32(&g, P "rope.dimension_count", 34), FORMAT,
              "rope.dimension_count is 34, expected an even number");
    G_REFUSED(h_gguf_set_f32(&g, P "rope.freq_base", (float)(0.0 / 0.0)), FORMAT, "rope.freq_base is");
    G_REFUSED(h_gguf_set_f32(&g, P "attention.layer_norm_rms_epsilon", -1), FORMAT, "layer_norm_rms_epsilon is -1");
    G_REFUSED(h_gguf_set_u32(&g, P "ssm.inner_size", 97), FORMAT,
              "ssm.inner_size is 97, expected ssm.time_step_rank = 6");
    G_REFUSED(h_gguf_set_u32(&g, P "ssm.group_count", 4), FORMAT,
              "ssm.time_step_rank is 6, expected a multiple of ssm.group_count = 4");
    G_REFUSED(h_gguf_set_u32(&g, P "full_attention_interval", 0), FORMAT, "full_attention_interval is 0");
    G_REFUSED(h_gguf_set_u32(&g, P "full_attention_interval", 2), MISMATCH, "tensors are missing");
    G_REFUSED(h_gguf_kv_str(&g, P "rope.scaling.type", "yarn"), UNSUPPORTED, "rope.scaling.type is 'yarn'");
    G_REFUSED((h_gguf_forget(&g, P "rope.dimension_sections"),
               h_gguf_arr_i32(&g, P "rope.dimension_sections", (int32_t[]){2, 2}, 2)),
              FORMAT, "rope.dimension_sections has 2 elements, expected at least 3");
    G_REFUSED((h_gguf_forget(&g, P "rope.dimension_sections"),
               h_gguf_arr_i32(&g, P "rope.dimension_sections", (int32_t[]){2, -1, 1, 0}, 4)),
              FORMAT, "rope.dimension_sections is -1, expected 0 to 4096");
    G_REFUSED(h_gguf_kv_u32(&g, P "vocab_size", 255), MISMATCH, "token_embd.weight: expected the shape (64, 255)");
    G_REFUSED(h_gguf_kv_u32(&g, "tokenizer.ggml.eos_token_id", 256), FORMAT, "eos_token_id is 256, expected 0 to 255");
}

static void kinds_of_layers(void **state) {
    (void)state;
    h_gguf g;
    /* the list is stronger than the interval */
    G_BINDS((h_gguf_set_u32(&g, P "full_attention_interval", 2),
             h_gguf_arr(&g, P "attention.recurrent_layers", 7, 4, "\1\1\1\0", 4)));
    G_REFUSED(h_gguf_arr_i32(&g, P "attention.recurrent_layers", (int32_t[]){1, 1, 0, 1}, 4), MISMATCH,
              "tensors are missing");
    G_REFUSED(h_gguf_arr_i32(&g, P "attention.recurrent_layers", (int32_t[]){1, 1, 1}, 3), FORMAT,
              "recurrent_layers has 3 elements, expected at least 4");
}

/* A prediction block: all of it or none, of the right shapes; what it may share with the trunk may be there. */
static void prediction_block(void **state) {
    (void)state;
    h_gguf g;
#define NEXT() (h_gguf_set_u32(&g, P "block_count", 5), h_gguf_kv_u32(&g, P "nextn_predict_layers", 1))
    G_BINDS((NEXT(), h_dense_next(&g, src, 4, 3)));
    G_REFUSED(NEXT(), MISMATCH, "15 tensors are missing: blk.4.attn_norm.weight, blk.4.attn_q.weight,");
    G_REFUSED(h_dense_next(&g, src, 4, 3), MISMATCH, "15 tensors that the architecture does not have: blk.4.");
    G_REFUSED((NEXT(), h_dense_next(&g, src, 5, 3)), MISMATCH, "15 tensors are missing (blk.4.attn_norm");
    G_REFUSED(h_gguf_kv_u32(&g, P "nextn_predict_layers", 4), FORMAT, "nextn_predict_layers is 4, expected 0 to 3");
    G_BINDS((NEXT(), h_dense_next(&g, src, 4, 3),
             h_gguf_tensor(&g, "blk.4.nextn.embed_tokens.weight", K_T_F16, 2, (uint64_t[]){64, 256}, NULL),
             h_gguf_tensor(&g, "blk.4.nextn.shared_head_head.weight", K_T_Q8_0, 2, (uint64_t[]){64, 256}, NULL)));
    G_REFUSED((NEXT(), h_dense_next(&g, src, 4, 3),
               h_gguf_tensor(&g, "blk.4.nextn.shared_head_head.weight", K_T_F16, 2, (uint64_t[]){64, 255}, NULL)),
              MISMATCH, "shared_head_head.weight: expected the shape (64, 256), fastest first, found (64, 255)");
    G_REFUSED((NEXT(), h_dense_next(&g, src, 4, 3), h_gguf_tensor1(&g, "blk.4.nextn.fnorm.weight", K_T_F32, 64)),
              MISMATCH, "1 tensors that the architecture does not have: blk.4.nextn.fnorm.weight");
#undef NEXT
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(config_rules), TEST(other_architectures), TEST(checkpoint_tensors), TEST(missing_keys),
        TEST(key_ranges),   TEST(kinds_of_layers),     TEST(prediction_block),
    };
    return cmocka_run_group_tests_name("qwen35_rules", tests, NULL, NULL);
}
