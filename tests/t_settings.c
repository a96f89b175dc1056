/* t_settings.c: every hyper-parameter that a reader takes is listed with its value and where that came from. What is
 * read is not known from a second list: each key of a file is spoilt in turn, and where the reader complains, it read
 * it. Each key is then left out, and the setting must not claim that the file said it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "lib/arch_qwen35_int.h"
#include "lib/arch_qwen4_int.h"
#include "lib/gguf.h"
#include "lib/json_in.h"
#include "lib/run.h"
#include "tests/check.h"
#include "tests/h_dense.h"

/* ---- the fields of k_dims ---- */

static const struct {
    const char *name, *field;
    size_t at, size;
} dims[] = {
#define DIM(field, name) {name, #field, offsetof(k_dims, field), sizeof((k_dims *)0)->field},
#include "lib/dims.def"
#undef DIM
};
enum { NDIMS = (int)(sizeof dims / sizeof *dims) };

static void all_fields(void **state) {
    (void)state;
    size_t at = 0;
    for (int i = 0; i < NDIMS; at += dims[i++].size) assert_int_equal(dims[i].at, at);
    assert_int_equal(at, sizeof(k_dims)); /* none is left out, none stands twice */
}

static int is_value(const k_dims *d, int i, const q4x_setting *s) {
    int32_t v;
    float f;
    memcpy(&v, (const char *)d + dims[i].at, 4);
    memcpy(&f, &v, 4);
    if (s->kind == Q4X_SAYS_REAL) return (float)s->r == f;
    return (s->kind == Q4X_SAYS_INT || s->kind == Q4X_SAYS_BOOL) && s->i == v;
}

/* Names of a list of keys, blank-separated ones left out. */
static void keys_listed(const q4x_settings *s, const q4x_traits *t, int n, const char *without) {
    for (int i = 0; i < n; i++) {
        if (q4x_word_in(without, t->key[i].name)) continue;
        if (!q4x_settings_find(s, t->key[i].name)) fail_msg("key list: %s is not among the settings", t->key[i].name);
    }
}

static void model(const char *path, const char *lacks, const char *keys_lack) {
    q4x_err err = {0};
    q4x_net *net = NULL;
    q4x_settings s;
    int n = 0;
    assert_rc_ok(q4x_net_open(path, &net, &err), &err);
    assert_rc_ok(q4x_settings_read(q4x_net_model(net), &s, &err), &err);
    k_dims d = *q4x_net_dims(net);
    for (int i = 0; i < NDIMS; i++) {
        const q4x_setting *x = q4x_settings_find(&s, dims[i].name);
        int absent = q4x_word_in(lacks, dims[i].name);
        if ((x == NULL) != absent) fail_msg("%s: %s: listed %d, expected %d", path, dims[i].name, x != NULL, !absent);
        if (x && !is_value(&d, i, x)) fail_msg("%s: %s has another value than the model", path, dims[i].name);
        n += x != NULL;
    }
    int dense = !strcmp(q4x_net_plan(net)->arch, "qwen35");
    const q4x_traits *t = dense ? &q4x_q35_traits : &q4x_q4_traits;
    keys_listed(&s, t, dense ? (int)Q4X_Q35_END : (int)Q4X_Q4_END, keys_lack);
    for (int i = 0; i < s.n; i++) {
        const q4x_setting *x = &s.s[i];
        char value[80];
        q4x_setting_value(x, value, sizeof value);
        assert_true(*value && *x->name);
        if (x->from == Q4X_FROM_FILE ? !*x->key : !*x->why) fail_msg("%s: %s does not say where from", path, x->name);
    }
    d.H++, d.eps *= 2; /* the twin: another model's value is seen */
    assert_false(is_value(&d, 14, q4x_settings_find(&s, "heads")));
    assert_false(is_value(&d, NDIMS - 1, q4x_settings_find(&s, "epsilon")));
    print_message("    %s: %d settings, %d of them of k_dims\n", path, s.n, n);
    q4x_net_close(net);
}

#define SPARSE_ALONE                                                                                                   \
    "streams wide hc_rank indexer_heads indexer_width block_ratio blocks_selected experts experts_used expert_width "  \
    "shared_expert_width renormalised ngram ngram_heads ngram_width ngram_conv_taps eos"
#define HASH_MADE "ngram_base ngram_multiple ngram_parts ngram_seed"

static void models(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512];
    snprintf(path, sizeof path, "%s/dense.gguf", dir);
    h_hf *h = h_hf_load("tests/golden/dense-a");
    h_dense_write(h, path);
    h_hf_free(h);
    model("tests/models/micro-a-bf16.gguf", "mlp_width", HASH_MADE);
    model("tests/models/demo.gguf", "mlp_width", HASH_MADE);
    model("tests/golden/micro-a", "mlp_width", "");
    model("tests/golden/micro-b", "mlp_width", "");
    model("tests/golden/dense-a", SPARSE_ALONE, "");
    model(path, SPARSE_ALONE, "");
    h_tmp_remove(dir);
}

/* ---- what is read is listed: config.json ---- */

static int dense; /* which architecture's reader */

static int read_json(const json_t *root, q4x_settings *ret) {
    const json_t *text = json_object_get(root, "text_config");
    q4x_err err = {0};
    k_dims d;
    int rc;
    if (!text) text = root;
    if (dense) {
        q4x_cfg c;
        rc = q4x_q35_cfg_hf(root, text, "config.json", &c, &err);
        if (!rc) rc = q4x_q35_check(&c, &d, &err);
        if (!rc) *ret = c.said;
    } else {
        q4x_q4_cfg q;
        rc = q4x_q4_cfg_hf(root, text, "config.json", &q, &err);
        if (!rc) rc = q4x_q4_check(&q, &d, &err);
        if (!rc) *ret = q.c.said;
    }
    return rc;
}

static const q4x_setting *by_key(const q4x_settings *s, const char *key) {
    for (int i = 0; i < s->n; i++)
        if (s->s[i].from == Q4X_FROM_FILE && !strcmp(s->s[i].key, key)) return &s->s[i];
    return NULL;
}

/* What becomes of a setting when the key that gave it is gone: it must not be said to be the file's. */
static int flips(const q4x_settings *before, const q4x_settings *after, const char *key) {
    const q4x_setting *x = by_key(before, key), *y = x ? q4x_settings_find(after, x->name) : NULL;
    if (by_key(after, key)) fail_msg("%s is gone, and still named as a source", key);
    return y && y->from != Q4X_FROM_FILE;
}

typedef struct {
    int keys, read, optional, flipped;
} tally;

/* Every key of the object `of`, which lies in root under the path `before`. */
static void spoil(json_t *root, json_t *of, const char *before, tally *n) {
    q4x_settings s, t;
    const char *key;
    json_t *v;
    json_t *all = json_copy(of); /* to walk while it changes */
    assert_int_equal(read_json(root, &s), 0);
    json_object_foreach(all, key, v) {
        char path[160];
        snprintf(path, sizeof path, "%s%s", before, key);
        if (!strcmp(key, "text_config")) continue;
        if (json_is_object(v)) {
            char deeper[200];
            snprintf(deeper, sizeof deeper, "%s.", path);
            spoil(root, json_object_get(of, key), deeper, n);
            continue;
        }
        json_incref(v);
        json_object_set_new(of, key, json_pack("{s:i}", "x", 1)); /* no key of any type but those of objects */
        int is_read = read_json(root, &t) != 0;
        if (is_read && !by_key(&s, path)) fail_msg("%s is read and not listed", path);
        if (!is_read && by_key(&s, path)) fail_msg("%s is listed and not read", path);
        json_object_del(of, key);
        int optional = !read_json(root, &t);
        if (optional && is_read) n->flipped += flips(&s, &t, path);
        json_object_set_new(of, key, v);
        n->keys++;
        n->read += is_read;
        n->optional += optional && is_read;
    }
    json_decref(all);
}

static json_t *load(const char *dir) {
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static void config(const char *dir, int is_dense, int form, tally *n) {
    json_t *j = load(dir);
    dense = is_dense;
    h_hf_set(j, "bos_token_id", "1");
    h_hf_set(j, "pad_token_id", "2");
    h_hf_set(j, "hidden_act", "\"silu\"");
    h_hf_set(j, "output_gate_type", "\"silu\"");
    if (form == 1) { /* as older files have it */
        h_hf_set(j, "layer_types", NULL);
        h_hf_set(j, "full_attention_interval", "4");
        h_hf_set(j, "rope_parameters", NULL);
        h_hf_set(j, "rope_theta", "10000");
        h_hf_set(j, "partial_rotary_factor", "0.5");
        h_hf_set(j, "rope_scaling", "{\"type\": \"default\"}");
    }
    if (form == 2) { /* with vision */
        h_hf_set(j, "tie_word_embeddings", NULL);
        j = json_pack("{s:s, s:b, s:o}", "model_type", "x", "tie_word_embeddings", 0, "text_config", j);
        spoil(j, json_object_get(j, "text_config"), "text_config.", n);
    }
    spoil(j, j, "", n);
    json_decref(j);
}

static void read_is_listed(void **state) {
    (void)state;
    for (int form = 0; form < 3; form++) {
        tally n = {0};
        config("tests/golden/micro-a", 0, form, &n);
        print_message("    micro-a, form %d: %d keys, %d read, %d optional, %d say default or derived then\n", form,
                      n.keys, n.read, n.optional, n.flipped);
        assert_true(n.read >= 38 && n.read < n.keys && n.flipped >= 25);
        n = (tally){0};
        config("tests/golden/dense-a", 1, form, &n);
        print_message("    dense-a, form %d: %d keys, %d read, %d optional, %d say default or derived then\n", form,
                      n.keys, n.read, n.optional, n.flipped);
        assert_true(n.read >= 21 && n.read < n.keys && n.flipped >= 14);
    }
}

/* ---- the same for GGUF ---- */

/* The settings of these keys alone, with the tensors that decide something. */
static int read_keys(const h_gguf *g, q4x_settings *ret) {
    q4x_err err = {0};
    q4x_model *m = NULL;
    h_buf b = h_gguf_bytes(g);
    assert_rc_ok(q4x_gguf_parse_mem(b.p, b.n, "x.gguf", &m, &err), &err);
    int rc = q4x_settings_read(m, ret, &err);
    q4x_model_close(m);
    h_buf_free(&b);
    return rc;
}

static void spoil_keys(const char *path, int more, tally *n) {
    q4x_err err = {0};
    q4x_model *m = NULL;
    q4x_settings s, t;
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    const int64_t keys = q4x_kv_count(m);
    const char *arch = q4x_model_arch(m);
    for (int64_t i = -1; i < keys + 3; i++) {
        /* then keys that files may have */
        static const char *const others[] = {"rope.scaling.type", "nextn_predict_layers", "attention.recurrent_layers"};
        const char *key = i < 0 ? "" : i < keys ? q4x_kv_key(m, i) : others[i - keys];
        char full[120];
        snprintf(full, sizeof full, "%s%s%s", i < keys ? "" : arch, i < keys ? "" : ".", key);
        if (!more && i >= keys) break;
        h_gguf g;
        h_gguf_init(&g);
        h_gguf_take_keys(&g, m);
        if (more) {
            char k[3][64];
            for (int j = 0; j < 3; j++) snprintf(k[j], sizeof k[j], "%s.%s", arch, others[j]);
            h_gguf_kv_str(&g, k[0], "none");
            h_gguf_kv_u32(&g, k[1], 0);
            h_gguf_arr(&g, k[2], Q4X_GGUF_BOOL, 4, "\1\1\1\0", 4);
        }
        uint64_t ne[2] = {8, 256};
        h_gguf_tensor(&g, "token_embd.weight", 30, 2, ne, NULL);
        if (i < 0) {
            assert_int_equal(read_keys(&g, &s), 0);
        } else if (strncmp(full, "general.", 8)) {
            h_gguf_forget(&g, full);
            int optional = !read_keys(&g, &t);
            h_gguf_kv_bool(&g, full, 1); /* no key has this type */
            q4x_settings u;
            int is_read = read_keys(&g, &u) != 0;
            int tokenizer = !strncmp(full, "tokenizer.", 10) && strcmp(full, "tokenizer.ggml.tokens");
            if (!tokenizer && is_read && !by_key(&s, full)) fail_msg("%s: %s is read and not listed", path, full);
            if (!is_read && by_key(&s, full)) fail_msg("%s: %s is listed and not read", path, full);
            if (optional && is_read && !tokenizer) n->flipped += flips(&s, &t, full);
            n->keys++;
            n->read += is_read;
            n->optional += optional && is_read;
        }
        h_gguf_free(&g);
    }
    q4x_model_close(m);
}

static void read_keys_are_listed(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512];
    snprintf(path, sizeof path, "%s/dense.gguf", dir);
    h_hf *h = h_hf_load("tests/golden/dense-a");
    h_dense_write(h, path);
    h_hf_free(h);
    const char *const paths[] = {"tests/models/micro-a-bf16.gguf", path};
    for (int i = 0; i < 4; i++) {
        tally n = {0};
        spoil_keys(paths[i / 2], i % 2, &n);
        print_message("    %s%s: %d keys, %d read, %d optional, %d say default or derived then\n",
                      i / 2 ? "dense" : "micro-a", i % 2 ? ", more keys" : "", n.keys, n.read, n.optional, n.flipped);
        assert_true(n.read >= (i / 2 ? 17 : 31) && n.flipped >= (i % 2 ? 2 : i / 2));
    }
    h_tmp_remove(dir);
}

/* ---- texts ---- */

static void texts(void **state) {
    (void)state;
    q4x_settings s = {0};
    char buf[80];
    int64_t many[40] = {0};
    q4x_setting x = q4x_say_ints("list", many, 40);
    assert_int_equal(strlen(x.text) < sizeof x.text, 1);
    assert_string_equal(x.text + strlen(x.text) - 4, "0,..");
    x = q4x_say_ints("list", (int64_t[]){1, -2}, 2);
    assert_string_equal(x.text, "1,-2");
    x = q4x_say_text("word", "a\x1b[2J\x80");
    assert_string_equal(x.text, "a?[2J?");
    q4x_settings_note(&s, &x);
    x = q4x_say_real("word", 1e-6);
    q4x_settings_note(&s, &x); /* replaced */
    assert_int_equal(s.n, 1);
    q4x_setting_value(q4x_settings_find(&s, "word"), buf, sizeof buf);
    assert_string_equal(buf, "1e-06");
    x = q4x_say_real("word", (double)1e-6f); /* as a float has it */
    q4x_setting_value(&x, buf, sizeof buf);
    assert_string_equal(buf, "1e-06");
    x = q4x_say_real("word", 0.1234567890123);
    q4x_setting_value(&x, buf, sizeof buf);
    assert_string_equal(buf, "0.1234567890123");
    x = q4x_say_real("word", 1.0 / 3);
    q4x_setting_value(&x, buf, sizeof buf);
    assert_true(strtod(buf, NULL) == x.r);
    assert_null(q4x_settings_find(&s, "words"));
}

/* Which layers attend, in words. */
static void kinds(void **state) {
    (void)state;
    static const struct {
        const char *list, *want;
    } rows[] = {
        {"[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\"]", "3 delta, 1 attention"},
        {"[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\"]", "4 delta"},
        {"[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", "4 attention"},
        {"[\"linear_attention\",\"full_attention\",\"full_attention\",\"linear_attention\"]", "dAAd"}};
    dense = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *j = load("tests/golden/dense-a");
        q4x_settings s;
        h_hf_set(j, "layer_types", rows[i].list);
        assert_int_equal(read_json(j, &s), 0);
        assert_string_equal(q4x_settings_find(&s, "layer_kinds")->text, rows[i].want);
        json_decref(j);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_fields),     cmocka_unit_test(models),
                                       cmocka_unit_test(read_is_listed), cmocka_unit_test(read_keys_are_listed),
                                       cmocka_unit_test(texts),          cmocka_unit_test(kinds)};
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
