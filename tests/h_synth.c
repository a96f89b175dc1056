#include "tests/h_synth.h"

#include "tests/check.h"

q4x_synth_cost h_synth(const char *path, const q4x_geometry *g, q4x_file_type ft, uint64_t seed, int shards,
                       int threads) {
    q4x_synth s = {.g = g, .type = ft, .seed = seed, .shards = shards, .threads = threads};
    q4x_gguf_out *o = NULL;
    q4x_synth_cost cost = {0};
    q4x_err err = {0};
    assert_rc_ok(q4x_geometry_check(g, &err), &err);
    assert_rc_ok(q4x_synth_declare(&s, path, &o, &err), &err);
    assert_rc_ok(q4x_synth_write(&s, o, NULL, NULL, &cost, &err), &err);
    return cost;
}

void h_synth_tiny(const char *path, uint64_t seed, int shards) {
    const q4x_geometry *g = q4x_geometry_find("tiny");
    h_synth(path, g, g->type, seed, shards, 1);
}
