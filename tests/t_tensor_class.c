/* t_tensor_class.c: every tensor of the released files and of ours belongs somewhere; the same tensor of a checkpoint
 * and of a GGUF file belongs to the same part. */
#include <stdio.h>
#include <stdlib.h>

#include "lib/geometry.h"
#include "lib/tensor_class.h"
#include "tests/check.h"

static void names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t trunk;
        q4x_tensor_class want;
    } rows[] = {
        {"token_embd.weight", 48, Q4X_TC_EMBEDDING},
        {"model.language_model.embed_tokens.weight", -1, Q4X_TC_EMBEDDING},
        {"lm_head.weight", -1, Q4X_TC_HEAD},
        {"output_norm.weight", 64, Q4X_TC_NORM},
        {"model.norm.weight", -1, Q4X_TC_NORM},
        {"output_hc_down.weight", 48, Q4X_TC_HYPER},
        {"model.hyper_connection_mixer.hc_norm.weight", -1, Q4X_TC_HYPER},
        {"blk.3.attn_q_norm.weight", 48, Q4X_TC_ATTENTION},
        {"blk.2.attn_qkv.weight", 48, Q4X_TC_GDN},
        {"model.layers.2.linear_attn.A_log", -1, Q4X_TC_GDN},
        {"blk.3.indexer.q_proj.weight", 48, Q4X_TC_INDEXER},
        {"model.layers.3.self_attn.indexer.index_qk_proj.weight", -1, Q4X_TC_INDEXER},
        {"model.layers.3.self_attn.q_proj.weight", -1, Q4X_TC_ATTENTION},
        {"blk.0.ffn_gate_inp.weight", 48, Q4X_TC_ROUTER},
        {"blk.0.ffn_gate_inp_shexp.weight", 48, Q4X_TC_SHARED},
        {"blk.0.ffn_gate_exps.weight", 48, Q4X_TC_EXPERTS},
        {"model.layers.0.mlp.experts.7.up_proj.weight", -1, Q4X_TC_EXPERTS},
        {"model.layers.0.mlp.gate_proj.weight", -1, Q4X_TC_MLP},
        {"blk.63.ffn_down.weight", 64, Q4X_TC_MLP},
        {"blk.64.ffn_down.weight", 64, Q4X_TC_PREDICTION},
        {"blk.64.ffn_down.weight", -1, Q4X_TC_MLP}, /* not known where the trunk ends */
        {"blk.64.nextn.eh_proj.weight", -1, Q4X_TC_PREDICTION},
        {"mtp.fc.weight", -1, Q4X_TC_PREDICTION},
        {"model.visual.blocks.0.norm1.weight", -1, Q4X_TC_VISION},
        {"blk.1.ple_key.weight", 48, Q4X_TC_NGRAM},
        {"per_layer_token_embd.weight", 48, Q4X_TC_TABLE},
        {"model.layers.1.ple.ple_embedding.ngram_embedding.shard_12.weight", -1, Q4X_TC_TABLE},
        {"model.layers.1.ple.ple_embedding.layer_multipliers", -1, Q4X_TC_NGRAM},
        {"blk.", -1, Q4X_TC_OTHER},
        {"blk.x.ffn_up.weight", -1, Q4X_TC_OTHER},
        {"", -1, Q4X_TC_OTHER},
        {"rope_freqs.weight", 48, Q4X_TC_OTHER},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        q4x_tensor_class c = q4x_tensor_class_of(rows[i].name, rows[i].trunk);
        if (c != rows[i].want)
            fail_msg("%s: %s, expected %s", rows[i].name, q4x_tensor_classes[c].name,
                     q4x_tensor_classes[rows[i].want].name);
    }
}

static void released(void **state) {
    (void)state;
    for (int g = 0; g < Q4X_GEOMETRIES; g++) {
        q4x_geometry_tensor *t;
        int64_t n;
        q4x_err err = {0};
        int seen[Q4X_TC_COUNT] = {0};
        assert_rc_ok(q4x_geometry_tensors(&q4x_geometries[g], q4x_geometries[g].type, &t, &n, &err), &err);
        for (int64_t i = 0; i < n; i++) seen[q4x_tensor_class_of(t[i].name, q4x_geometries[g].L)]++;
        assert_int_equal(seen[Q4X_TC_OTHER], 0);
        assert_int_equal(seen[Q4X_TC_EMBEDDING], 1);
        assert_int_equal(seen[Q4X_TC_PREDICTION], q4x_geometries[g].mtp ? 15 : 0);
        assert_true(seen[Q4X_TC_GDN] > 0 && seen[Q4X_TC_ATTENTION] > 0);
        free(t);
    }
}

/* The table: each tensor once, sorted, sums right. */
static void table(const char *path, int64_t trunk) {
    q4x_err err = {0};
    q4x_model *m;
    q4x_group *g;
    int n;
    int64_t count = 0;
    uint64_t bytes = 0, want = 0;
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    assert_rc_ok(q4x_inventory_by_class(m, trunk, &g, &n, &err), &err);
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) want += q4x_model_tensor(m, i)->bytes;
    for (int i = 0; i < n; i++) {
        count += g[i].n;
        bytes += g[i].bytes;
        assert_string_not_equal(g[i].name, "other");
        for (int k = 0; k < i; k++) assert_false(g[k].type == g[i].type && !strcmp(g[k].name, g[i].name));
        if (i && !strcmp(g[i].name, g[i - 1].name)) assert_true(g[i].bytes <= g[i - 1].bytes);
    }
    assert_int_equal(count, q4x_model_ntensors(m));
    assert_true(bytes == want);
    free(g);
    q4x_model_close(m);
}

static void tables(void **state) {
    (void)state;
    table("tests/models/demo.gguf", 8);
    table("tests/golden/micro-b", 8);
    table("tests/golden/dense-a", 4);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(released), cmocka_unit_test(tables)};
    return cmocka_run_group_tests_name("tensor_class", tests, NULL, NULL);
}
