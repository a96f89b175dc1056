/* t_odd.c: what is unusual about a model is found, each thing by a change to a file that makes it so; the file without
 * the change, or with one that is nearly as far, says nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "lib/model_int.h"
#include "lib/odd.h"
#include "tests/check.h"
#include "tests/h_dump.h"
#include "tests/h_gguf.h"
#include "tests/h_hf.h"
#include "tests/h_synth.h"

#define P "qwen4exp."

static char *dir;
static q4x_model *source; /* micro-a as GGUF */

static int set_up(void **state) {
    (void)state;
    q4x_err err = {0};
    dir = h_tmp();
    return q4x_model_open("tests/models/micro-a-bf16.gguf", &source, &err);
}

static int tear_down(void **state) {
    (void)state;
    q4x_model_close(source);
    h_tmp_remove(dir);
    return 0;
}

/* All findings of a model as "word: what" lines. */
static const char *findings(const char *path) {
    static char text[8192];
    q4x_err err = {0};
    q4x_model *m = NULL;
    q4x_tok *tok = NULL;
    q4x_settings s;
    q4x_odd odd[Q4X_ODD_COUNT];
    size_t at = 0;
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    int has = !q4x_settings_read(m, &s, &err);
    if (q4x_tok_open(m, &tok, &err)) tok = NULL;
    int n = q4x_odds_find(m, has ? &s : NULL, tok, odd);
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        for (const char *p = odd[i].what; *p; p++) assert_true(*p >= 0x20 && *p <= 0x7e);
        assert_true(*q4x_odd_infos[odd[i].id].why);
        at += (size_t)snprintf(text + at, sizeof text - at, "%s: %s\n", q4x_odd_infos[odd[i].id].word, odd[i].what);
    }
    q4x_tok_close(tok);
    q4x_model_close(m);
    return text;
}

static void says_nothing(const char *path) {
    const char *text = findings(path);
    if (*text) fail_msg("%s: a false alarm: %s", path, text);
}

static void no_false_alarm(void **state) {
    (void)state;
    static const char *const ours[] = {"tests/models/demo.gguf", "tests/models/micro-a-bf16.gguf",
                                       "tests/golden/micro-a", "tests/golden/micro-b", "tests/golden/dense-a"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) says_nothing(ours[i]);
}

/* ---- changes to a GGUF file ---- */

typedef struct {
    const char *drop;   /* names that hold this are left out */
    const char *retype; /* the tensor of this name gets another type or shape, with made-up data */
    int32_t type;
    uint64_t ne[2];
    const char *more; /* one more tensor */
    int surplus;      /* bytes behind the file; negative: as many of its last ones are cut off */
} tensors;

static void write_gguf(h_gguf *g, const tensors *t, const char *path) {
    for (int64_t i = 0; i < q4x_model_ntensors(source); i++) {
        const q4x_tensor *x = q4x_model_tensor(source, i);
        uint64_t ne[4];
        for (int k = 0; k < 4; k++) ne[k] = (uint64_t)x->ne[k];
        if (t->drop && strstr(x->name, t->drop)) continue;
        if (t->retype && !strcmp(x->name, t->retype))
            h_gguf_tensor(g, x->name, t->type, t->ne[1] ? 2 : (uint32_t)x->ndim, t->ne[1] ? t->ne : ne, NULL);
        else
            h_gguf_tensor(g, x->name, x->type, (uint32_t)x->ndim, ne, x->data);
    }
    if (t->more) h_gguf_tensor1(g, t->more, 0, 8);
    h_buf b = h_gguf_bytes(g);
    const size_t n = (size_t)((long)b.n + t->surplus);
    uint8_t *file = calloc(n, 1);
    assert_non_null(file);
    memcpy(file, b.p, n < b.n ? n : b.n);
    h_write_file(path, file, n);
    free(file);
    h_buf_free(&b);
}

static h_gguf again(void) {
    h_gguf g;
    h_gguf_init(&g);
    h_gguf_take_keys(&g, source);
    return g;
}

/* Element i of an array whose elements are `size` bytes. */
static void set_elem(h_gguf *g, const char *key, size_t i, const void *v, size_t size) {
    memcpy(h_gguf_key(g, key) + 4 + 12 + i * size, v, size);
}

/* want "": nothing is found; else findings must be this one line's beginning, and no other line. */
static void expect_at(int line, h_gguf *g, tensors t, const char *want) {
    char path[600];
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    write_gguf(g, &t, path);
    h_gguf_free(g);
    const char *text = findings(path), *end = strchr(text, '\n');
    if (!*want ? *text != 0 : (strncmp(text, want, strlen(want)) != 0 || !end || end[1]))
        fail_msg("line %d: found '%s', expected '%s'", line, text, want);
}
#define EXPECT(want, ...) expect_at(__LINE__, &g, (tensors){__VA_ARGS__}, want)
#define NONE .drop = NULL

static void copy(void **state) {
    (void)state;
    h_gguf g = again();
    EXPECT("", NONE); /* the twin of all that follows */
}

static void types(void **state) {
    (void)state;
    h_gguf g = again();
    EXPECT("not_f32: 1 norms, routers, vectors or taps are not F32; the first is blk.0.ffn_gate_inp.weight: BF16",
           .retype = "blk.0.ffn_gate_inp.weight", .type = 30);
    g = again();
    EXPECT("not_f32: 1 norms, routers, vectors or taps are not F32; the first is blk.1.hc_ffn_norm.weight: F16",
           .retype = "blk.1.hc_ffn_norm.weight", .type = 1);
    g = again();
    EXPECT("", .retype = "blk.0.hc_ffn_inject.weight", .type = 8);
    g = again();
    EXPECT("", .retype = "blk.1.ple_conv1d.weight", .type = 1); /* its writers differ */
    g = again();
    EXPECT("no_cuda_prompt: 1 tensors, 112 bytes, are IQ1_M or its like; the first is blk.3.attn_q.weight",
           .retype = "blk.3.attn_q.weight", .type = 29, .ne = {256, 2});
    g = again();
    EXPECT("", .retype = "blk.3.attn_q.weight", .type = 19, .ne = {256, 2}); /* IQ1_S */
}

static void label(void **state) {
    (void)state;
    h_gguf g = again();
    h_gguf_set_u32(&g, "general.file_type", 15);
    EXPECT("file_type_label: general.file_type is 15, Q4_K_M, and no tensor is Q4_K", NONE);
    g = again();
    h_gguf_set_u32(&g, "general.file_type", 32); /* BF16 */
    EXPECT("", NONE);
    g = again();
    h_gguf_set_u32(&g, "general.file_type", 1000000); /* nobody knows */
    EXPECT("", NONE);
    g = again();
    h_gguf_forget(&g, "general.file_type");
    h_gguf_kv_str(&g, "general.file_type", "x");
    EXPECT("", NONE);
}

static void parts(void **state) {
    (void)state;
    h_gguf g = again();
    EXPECT("tied_head: there is no output.weight", .drop = "output.weight");
    g = again();
    h_gguf_forget(&g, P "attention.compress_ratios");
    h_gguf_forget(&g, P "attention.indexer.head_count");
    h_gguf_forget(&g, P "attention.indexer.key_length");
    h_gguf_forget(&g, P "attention.indexer.top_k");
    EXPECT("no_indexer: there is no indexer", .drop = "indexer.");
    g = again();
    h_gguf_forget(&g, P "ple.layers");
    EXPECT("no_ngram: there is no n-gram embedding", .drop = "ple_");
    g = again();
    h_gguf_set_u32(&g, P "block_count", 5);
    h_gguf_kv_u32(&g, P "nextn_predict_layers", 1);
    EXPECT("not_run: 1 tensors, 32 bytes, of a prediction head or a vision tower, from blk.4.nextn.enorm.weight",
           .more = "blk.4.nextn.enorm.weight");
}

static void ids(void **state) {
    (void)state;
    const int32_t unused = 5;
    h_gguf g = again();
    h_gguf_set_u32(&g, "tokenizer.ggml.eos_token_id", 5);
    EXPECT("eos: the end of a text is id 5, whose type is 'normal' and not control", NONE);
    g = again();
    h_gguf_set_u32(&g, P "ple.eos_token_id", 6);
    EXPECT("eos: n-grams are cut at id 6, whose type is 'normal' and not control", NONE);
    g = again();
    set_elem(&g, "tokenizer.ggml.token_type", 255, &unused, 4);
    EXPECT("filler_rows: 1 of 256 ids have no token, the first is 255; of 1 such rows of the embedding 0 are all zero",
           NONE);
}

/* Rows of zeros are told from others; not more than 64 are looked at. */
static void zero_rows(void **state) {
    (void)state;
    const int32_t unused = 5;
    h_gguf g = again();
    for (size_t i = 100; i < 256; i++) set_elem(&g, "tokenizer.ggml.token_type", i, &unused, 4);
    char path[600];
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    write_gguf(&g, &(tensors){NONE}, path);
    h_gguf_free(&g);
    q4x_err err = {0};
    q4x_model *m = NULL;
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    const q4x_tensor *t = q4x_model_find(m, "token_embd.weight");
    long at = (long)((const char *)t->data - (const char *)m->map[0].data) + 128L * 110;
    q4x_model_close(m);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    for (int i = 0; i < 3 * 128; i++) fputc(0, f);
    fclose(f);
    const char *text = findings(path);
    assert_string_equal(text, "filler_rows: 156 of 256 ids have no token, the first is 100; of 64 such rows of the "
                              "embedding 3 are all zero\n");
}

static void positions(void **state) {
    (void)state;
    h_gguf g = again();
    h_gguf_set_u32(&g, P "context_length", 262145);
    EXPECT("context: the context is 262145", NONE);
    g = again();
    h_gguf_set_u32(&g, P "context_length", 262144);
    EXPECT("", NONE);
    g = again();
    h_gguf_kv_u32(&g, P "rope.scaling.original_context_length", 2048);
    EXPECT("context: the context is 4096, and the file says that 2048 were trained", NONE);
    g = again();
    h_gguf_kv_u32(&g, P "rope.scaling.original_context_length", 4096);
    EXPECT("", NONE);
}

static void hash(void **state) {
    (void)state;
    const uint64_t odd = 12345, small = 97;
    h_gguf g = again();
    set_elem(&g, P "ple.layer_multipliers", 1, &odd, 8);
    EXPECT("ngram_hash: the n-gram hash has other multipliers than seed 1234", NONE);
    g = again();
    set_elem(&g, P "ple.head_vocab_sizes", 3, &small, 8);
    EXPECT("ngram_hash: the n-gram hash has other sizes of heads than seed 1234", NONE);
    g = again();
    set_elem(&g, P "ple.head_offsets", 3, &small, 8);
    EXPECT("ngram_hash: the n-gram hash has other offsets of heads than seed 1234", NONE);
    g = again();
    set_elem(&g, P "ple.head_vocab_sizes", 0, &(uint64_t){0}, 8);
    EXPECT("ngram_hash: the n-gram hash has a first head of 0 rows, which no base gives", NONE);
}

static void places(void **state) {
    (void)state;
    h_gguf g = again();
    h_gguf_set_u32(&g, "general.alignment", 8);
    g.align = 8;
    EXPECT("unaligned: ", .retype = "token_embd.weight", .type = 0, .ne = {6, 7}); /* 168 bytes: 8 over 32 */
    g = again();
    h_gguf_set_u32(&g, "general.alignment", 64);
    g.align = 64;
    EXPECT("", NONE);
}

/* What no header accounts for is told from the padding behind the last tensor, which may be there or not. */
static void trailing(void **state) {
    (void)state;
    const q4x_tensor *last = q4x_model_tensor(source, q4x_model_ntensors(source) - 1);
    h_gguf g = again();
    EXPECT("trailing_bytes: 1000 bytes lie behind the last tensor of ", .surplus = 1000);
    g = again();
    EXPECT("trailing_bytes: 1 bytes lie behind the last tensor of ", .surplus = 1);
    g = again();
    EXPECT("", .retype = last->name, .type = 0, .ne = {6, 7}); /* 168 bytes, 24 of padding */
    g = again();
    EXPECT("", .retype = last->name, .type = 0, .ne = {6, 7}, .surplus = -24);
    g = again();
    EXPECT("trailing_bytes: 1 bytes", .retype = last->name, .type = 0, .ne = {6, 7}, .surplus = 1);
}

static void synthetic(void **state) {
    (void)state;
    h_gguf g = again();
    h_gguf_kv_bool(&g, "q4x.synthetic", 1);
    h_gguf_kv_str(&g, "q4x.synthetic.geometry", "ti\x1bny");
    h_gguf_kv_u64(&g, "q4x.synthetic.seed", UINT64_MAX);
    EXPECT("synthetic: synthetic weights of seed 18446744073709551615 in the shapes of ti?ny", NONE);
    g = again();
    h_gguf_kv_bool(&g, "q4x.synthetic", 0);
    EXPECT("", NONE);
    char path[600];
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    h_synth_tiny(path, 7, 1);
    const char *text = findings(path);
    assert_non_null(strstr(text, "synthetic: synthetic weights of seed 7 in the shapes of tiny\n"));
    assert_non_null(strstr(text, "filler_rows: "));
}

/* ---- changes to a checkpoint ---- */

static void hf_at(int line, const char *from, const char *key, const char *json, const char *want) {
    h_hf *h = h_hf_load(from);
    if (key) h_hf_set(h->config, key, json);
    char *into = h_tmp();
    h_hf_write(h, into, 0);
    h_hf_free(h);
    const char *text = findings(into);
    h_tmp_remove(into);
    if (!*want ? *text != 0 : strncmp(text, want, strlen(want)) != 0 || strlen(text) != strlen(want))
        fail_msg("line %d: found '%s', expected '%s'", line, text, want);
}
#define HF(from, key, json, want) hf_at(__LINE__, "tests/golden/" from, key, json, want)

static void checkpoints(void **state) {
    (void)state;
    HF("dense-a", NULL, NULL, "");
    HF("dense-a", "tie_word_embeddings", "true",
       "tied_head: tie_word_embeddings is true\n"
       "spare_head: lm_head.weight is there, and tie_word_embeddings is true\n");
    HF("dense-a", "model_type", "\"qwen3_5\"",
       "alias: model_type is 'qwen3_5', the multimodal model's, and there is no text_config\n");
    HF("micro-a", "layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"hybrid_indexed\"]",
       "alias: layer_types[3] is 'hybrid_indexed'\n");
    HF("micro-a", "layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\"]",
       "");
    HF("micro-a", "seed", "77", "ngram_hash: the seed of the n-gram hash is 77, not 1234\n");
    HF("micro-a", "max_position_embeddings", "300000", "context: the context is 300000\n");
    HF("micro-a", "rope_parameters.original_max_position_embeddings", "1024",
       "context: the context is 4096, and the file says that 1024 were trained\n");
    HF("micro-a", "rope_parameters.original_max_position_embeddings", "4096", "");
}

/* A header whose length is odd, and BF16 behind it. */
static void odd_header(void **state) {
    (void)state;
    h_hf *h = h_hf_load("tests/golden/dense-a");
    char *into = h_tmp(), path[600];
    h_hf_write(h, into, 0);
    h_hf_free(h);
    says_nothing(into);
    snprintf(path, sizeof path, "%s/model.safetensors", into);
    size_t n;
    uint64_t len;
    uint8_t *file = h_file_read(path, &n);
    memcpy(&len, file, 8);
    char *head = malloc(len + 2);
    assert_non_null(head);
    memcpy(head, file + 8, len);
    memcpy(head + len, " ", 2);
    h_hf_write_st(into, "model.safetensors", head, file + 8 + len, n - 8 - len);
    const char *text = findings(into);
    if (strncmp(text, "unaligned: 56 tensors do not begin at a multiple of their elements' size", 70))
        fail_msg("found '%s'", text);
    free(head);
    free(file);
    h_tmp_remove(into);
}

static void multimodal(void **state) {
    (void)state;
    h_hf *h = h_hf_load("tests/golden/micro-a");
    h_hf_multimodal(h);
    h_hf_add(h, "mtp.norm.weight", "BF16", 1, (int64_t[]){8}, NULL);
    char *into = h_tmp();
    h_hf_write(h, into, 0);
    h_hf_free(h);
    assert_string_equal(findings(into), "not_run: 2 tensors, 32 bytes, of a prediction head or a vision tower, from "
                                        "model.visual.blocks.0.norm1.weight\n");
    h_tmp_remove(into);
}

/* Of a file whose architecture is not ours, and whose keys are of the wrong types. */
static void strangers(void **state) {
    (void)state;
    char path[600];
    h_gguf g;
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    h_gguf_everything(&g);
    h_gguf_kv_str(&g, "q4x.synthetic", "yes");
    h_buf b = h_gguf_bytes(&g);
    h_write_file(path, b.p, b.n);
    h_buf_free(&b);
    h_gguf_free(&g);
    assert_string_equal(findings(path), "not_f32: 2 norms, routers, vectors or taps are not F32; the first is blk.0.w: "
                                        "Q4_0\n");
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {T(no_false_alarm), T(copy),       T(types),      T(label),
                                       T(parts),          T(ids),        T(zero_rows),  T(positions),
                                       T(hash),           T(places),     T(trailing),   T(synthetic),
                                       T(checkpoints),    T(odd_header), T(multimodal), T(strangers)};
    return cmocka_run_group_tests_name("odd", tests, NULL, NULL);
}
