/* t_type_rules.c: the tables of gguf-quants 3 and the rules of qwen4_exp 9.3, row by row. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/quant.h"
#include "lib/type_rules.h"
#include "tests/check.h"

typedef struct {
    const char *name; /* %d: the layer */
    int64_t ne[3];
    const char *type, *special; /* special: in the layers of the row's set */
    const int *set;             /* ends with -1 */
} fact;

static const int wide[] = {1, 2, 4, 14, 16, 25, 30, 32, 37, 39, 42, 45, 46, 47, -1}, two[] = {2, -1};
static const int edge65[] = {0,  1,  2,  3,  4,  5,  6,  7,  10, 13, 16, 19, 22, 25, 28, 31, 34,
                             37, 40, 43, 46, 49, 52, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, -1};

static int has(const int *set, int i) {
    for (; set && *set >= 0; set++)
        if (*set == i) return 1;
    return 0;
}

static const char *type_of(const char *ft, const char *name, const int64_t ne[3], int n) {
    int ndim = ne[2] ? 3 : ne[1] ? 2 : 1, t = q4x_file_type_find(ft);
    assert_true(t >= 0);
    return k_quant_get(q4x_type_rule((q4x_file_type)t, name, ndim, ne, n))->name;
}

/* Every fact at every layer of n (once for a tensor of no layer). */
static void hold(const char *ft, const fact *f, size_t nf, int n) {
    for (; nf; nf--, f++)
        for (int i = 0; i < n; i++) {
            char name[64];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(name, sizeof name, f->name, i);
#pragma GCC diagnostic pop
            const char *want = has(f->set, i) ? f->special : f->type, *got = type_of(ft, name, f->ne, n);
            if (strcmp(got, want) != 0) fail_msg("%s: %s is %s, expected %s", ft, name, got, want);
        }
}

static void test_ud_iq1_s(void **state) {
    (void)state;
    static const fact f[] = {
        {"token_embd.weight", {2560, 248320}, "Q4_K", NULL, NULL},
        {"output.weight", {2560, 248320}, "Q4_K", NULL, NULL},
        {"per_layer_token_embd.weight", {160, 320001536}, "IQ4_NL", NULL, NULL},
        {"output_hc_down.weight", {10240, 320}, "Q8_0", NULL, NULL},
        {"output_hc_up.weight", {320, 10240}, "Q8_0", NULL, NULL},
        {"output_hc_norm.weight", {10240}, "F32", NULL, NULL},
        {"blk.%d.hc_attn_down.weight", {10240, 320}, "Q8_0", NULL, NULL},
        {"blk.%d.hc_ffn_up.weight", {320, 10240}, "Q8_0", NULL, NULL},
        {"blk.%d.hc_ffn_norm.weight", {10240}, "F32", NULL, NULL},
        {"blk.%d.hc_attn_inject.weight", {10240, 4}, "F32", NULL, NULL},
        {"blk.%d.ffn_gate_exps.weight", {2560, 640, 512}, "IQ1_S", "IQ2_XXS", wide},
        {"blk.%d.ffn_up_exps.weight", {2560, 640, 512}, "IQ1_S", "IQ2_XXS", wide},
        {"blk.%d.ffn_down_exps.weight", {640, 2560, 512}, "IQ4_NL", NULL, NULL},
        {"blk.%d.ffn_gate_shexp.weight", {2560, 640}, "Q5_K", "Q6_K", two},
        {"blk.%d.ffn_up_shexp.weight", {2560, 640}, "Q5_K", "Q6_K", two},
        {"blk.%d.ffn_down_shexp.weight", {640, 2560}, "Q8_0", NULL, NULL},
        {"blk.%d.ffn_gate_inp.weight", {2560, 512}, "F32", NULL, NULL},
        {"blk.%d.ffn_gate_inp_shexp.weight", {2560}, "F32", NULL, NULL},
        {"blk.%d.ffn_gate_inp_shexp.weight", {2560, 1}, "F32", NULL, NULL},
        {"blk.%d.attn_qkv.weight", {2560, 10240}, "Q5_K", "Q6_K", two},
        {"blk.%d.attn_gate.weight", {2560, 6144}, "Q5_K", "Q6_K", two},
        {"blk.%d.ssm_out.weight", {6144, 2560}, "Q6_K", NULL, NULL},
        {"blk.%d.ssm_a", {48}, "F32", NULL, NULL},
        {"blk.%d.ssm_dt.bias", {48}, "F32", NULL, NULL},
        {"blk.%d.ssm_alpha.weight", {2560, 48}, "F32", NULL, NULL},
        {"blk.%d.ssm_beta.weight", {2560, 48}, "F32", NULL, NULL},
        {"blk.%d.ssm_conv1d.weight", {4, 10240}, "F32", NULL, NULL},
        {"blk.%d.ssm_norm.weight", {128}, "F32", NULL, NULL},
        {"blk.%d.attn_q.weight", {2560, 12288}, "Q5_K", NULL, NULL},
        {"blk.%d.attn_k.weight", {2560, 512}, "Q5_K", NULL, NULL},
        {"blk.%d.attn_v.weight", {2560, 512}, "Q5_K", NULL, NULL},
        {"blk.%d.attn_output.weight", {6144, 2560}, "Q5_K", NULL, NULL},
        {"blk.%d.attn_q_norm.weight", {256}, "F32", NULL, NULL},
        {"blk.%d.indexer.k_norm.weight", {128}, "F32", NULL, NULL},
        {"blk.%d.indexer.q_proj.weight", {2560, 512}, "BF16", NULL, NULL},
        {"blk.%d.indexer.k_proj.weight", {2560, 128}, "BF16", NULL, NULL},
        {"blk.%d.ple_key.weight", {2560, 10240}, "Q8_0", NULL, NULL},
        {"blk.%d.ple_value.weight", {2560, 2560}, "Q8_0", NULL, NULL},
        {"blk.%d.ple_norm_query.weight", {10240}, "F32", NULL, NULL},
        {"blk.%d.ple_conv1d.weight", {4, 10240}, "F32", NULL, NULL},
    };
    hold("UD-IQ1_S", f, sizeof f / sizeof *f, 48);
    hold("ud-iq1_s", f, sizeof f / sizeof *f, 48);
    hold("UD-IQ1_S", f, sizeof f / sizeof *f, 4); /* a cut keeps the numbers of its layers */
}

static void test_q4_k_m(void **state) {
    (void)state;
    static const fact f[] = {
        {"token_embd.weight", {5120, 248320}, "Q4_K", NULL, NULL},
        {"output.weight", {5120, 248320}, "Q6_K", NULL, NULL},
        {"output_norm.weight", {5120}, "F32", NULL, NULL},
        {"blk.%d.ffn_gate.weight", {5120, 17408}, "Q4_K", NULL, NULL},
        {"blk.%d.ffn_up.weight", {5120, 17408}, "Q4_K", NULL, NULL},
        {"blk.%d.ffn_down.weight", {17408, 5120}, "Q4_K", "Q6_K", edge65},
        {"blk.%d.attn_qkv.weight", {5120, 10240}, "Q4_K", "Q6_K", edge65},
        {"blk.%d.attn_gate.weight", {5120, 6144}, "Q4_K", NULL, NULL},
        {"blk.%d.ssm_out.weight", {6144, 5120}, "Q5_K", NULL, NULL},
        {"blk.%d.ssm_alpha.weight", {5120, 48}, "F32", NULL, NULL},
        {"blk.%d.ssm_beta.weight", {5120, 48}, "F32", NULL, NULL},
        {"blk.%d.ssm_conv1d.weight", {4, 10240}, "F32", NULL, NULL},
        {"blk.%d.ssm_a", {48}, "F32", NULL, NULL},
        {"blk.%d.ssm_dt.bias", {48}, "F32", NULL, NULL},
        {"blk.%d.ssm_norm.weight", {128}, "F32", NULL, NULL},
        {"blk.%d.attn_q.weight", {5120, 12288}, "Q4_K", NULL, NULL},
        {"blk.%d.attn_k.weight", {5120, 1024}, "Q4_K", NULL, NULL},
        {"blk.%d.attn_output.weight", {6144, 5120}, "Q4_K", NULL, NULL},
        {"blk.%d.attn_v.weight", {5120, 1024}, "Q4_K", "Q6_K", edge65},
        {"blk.%d.nextn.eh_proj.weight", {10240, 5120}, "Q8_0", NULL, NULL},
        {"blk.%d.nextn.enorm.weight", {5120}, "F32", NULL, NULL},
        {"blk.%d.post_attention_norm.weight", {5120}, "F32", NULL, NULL},
    };
    hold("Q4_K_M", f, sizeof f / sizeof *f, 65);
}

/* Rows that are no whole number of blocks (gguf-quants 3.1, "Reading"; qwen4_exp 9.3). */
static void test_fallback(void **state) {
    (void)state;
    static const struct {
        const char *ft, *at640, *at320, *at160, *at4;
    } row[] = {
        {"F32", "F32", "F32", "F32", "F32"},
        {"F16", "F16", "F16", "F16", "F16"},
        {"BF16", "BF16", "BF16", "BF16", "BF16"},
        {"Q8_0", "Q8_0", "Q8_0", "Q8_0", "F16"},
        {"IQ4_NL", "IQ4_NL", "IQ4_NL", "IQ4_NL", "F16"},
        {"IQ1_S", "IQ4_NL", "IQ4_NL", "IQ4_NL", "F16"},
        {"Q4_K", "Q5_0", "Q5_0", "Q5_0", "F16"},
        {"Q5_K", "Q5_1", "Q5_1", "Q5_1", "F16"},
        {"Q6_K", "Q8_0", "Q8_0", "Q8_0", "F16"},
        {"TQ2_0", "Q4_0", "Q4_0", "Q4_0", "F16"},
        {"NVFP4", "NVFP4", "NVFP4", "MXFP4", "F16"},
        {"Q1_0", "Q1_0", "Q4_0", "Q4_0", "F16"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *ft = row[i].ft;
        assert_string_equal(type_of(ft, "blk.0.ffn_down_exps.weight", (int64_t[]){640, 2560, 8}, 48), row[i].at640);
        assert_string_equal(type_of(ft, "blk.0.hc_ffn_up.weight", (int64_t[]){320, 10240, 0}, 48), row[i].at320);
        assert_string_equal(type_of(ft, "per_layer_token_embd.weight", (int64_t[]){160, 99, 0}, 48), row[i].at160);
        assert_string_equal(type_of(ft, "blk.1.ple_conv1d.weight", (int64_t[]){4, 10240, 0}, 48), row[i].at4);
        assert_string_equal(type_of(ft, "blk.0.ssm_conv1d.weight", (int64_t[]){4, 10240, 0}, 48), "F32");
        assert_string_equal(type_of(ft, "blk.0.ssm_a", (int64_t[]){48, 0, 0}, 48), "F32");
        assert_string_equal(type_of(ft, "blk.0.hc_attn_norm.weight", (int64_t[]){256, 2, 0}, 48), "F32");
    }
    assert_string_equal(type_of("Q4_K_M", "blk.0.ffn_down_exps.weight", (int64_t[]){640, 2560, 8}, 48), "Q8_0");
    assert_string_equal(type_of("Q4_K_M", "blk.9.ffn_down_exps.weight", (int64_t[]){640, 2560, 8}, 48), "Q5_0");
    /* every file type ends somewhere, whatever the row */
    for (int t = 0; t < Q4X_FT_COUNT; t++)
        for (int64_t n = 1; n < 600; n++) {
            int64_t ne[2] = {n, 3};
            const k_quant *q = k_quant_get(q4x_type_rule((q4x_file_type)t, "x.weight", 2, ne, 48));
            assert_true(q && q->stored && n % q->elems == 0);
        }
}

static void test_names(void **state) {
    (void)state;
    for (int t = 0; t < Q4X_FT_COUNT; t++) {
        assert_int_equal(q4x_file_type_find(q4x_file_types[t].name), t);
        assert_non_null(k_quant_get(q4x_file_types[t].dflt));
    }
    assert_int_equal(q4x_file_type_find("Q9_K"), -1);
    assert_int_equal(q4x_file_type_find(""), -1);
    /* what only looks like a layer is none */
    int64_t ne[2] = {256, 256};
    assert_int_equal(q4x_type_rule(Q4X_FT_Q4_K_M, "blk.x.ffn_down.weight", 2, ne, 65), K_T_Q4_K);
    assert_int_equal(q4x_type_rule(Q4X_FT_Q4_K_M, "blk.0ffn_down.weight", 2, ne, 65), K_T_Q4_K);
    assert_int_equal(q4x_type_rule(Q4X_FT_Q4_K_M, "blk.0.ffn_down.weight", 2, ne, 65), K_T_Q6_K);
    assert_int_equal(q4x_type_rule(Q4X_FT_Q4_K_M, "ffn_down.weight", 2, ne, 65), K_T_Q4_K);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ud_iq1_s), cmocka_unit_test(test_q4_k_m),
                                       cmocka_unit_test(test_fallback), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
