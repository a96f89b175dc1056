/* t_geometry.c: the released files as gguf-quants 3 describes them: every tensor, type and size, the manifest that
 * others published, and a header that binds. Nothing here writes weights.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "lib/arch_qwen4.h"
#include "lib/io.h"
#include "lib/manifest.h"
#include "lib/names.h"
#include "lib/run.h"
#include "lib/sha256.h"
#include "lib/synth.h"
#include "tests/check.h"

static const q4x_geometry *flash(void) {
    return q4x_geometry_find("qwen3.8-flash-next");
}

static q4x_gguf_out *declared(const q4x_geometry *g, int shards) {
    q4x_synth s = {.g = g, .type = g->type, .shards = shards};
    q4x_gguf_out *o = NULL;
    q4x_err err = {0};
    assert_rc_ok(q4x_geometry_check(g, &err), &err);
    assert_rc_ok(q4x_synth_declare(&s, "m.gguf", &o, &err), &err);
    assert_rc_ok(q4x_gguf_out_layout(o, &err), &err);
    return o;
}

/* ---- SHA-256 and the manifest ---- */

static void sha(const char *text, size_t repeat, char hex[65]) {
    q4x_sha256 s;
    q4x_sha256_begin(&s);
    for (size_t i = 0; i < repeat; i++) q4x_sha256_add(&s, text, strlen(text));
    q4x_sha256_end(&s, hex);
}

static void test_sha256(void **state) {
    (void)state;
    char hex[65], again[65];
    sha("", 1, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha("abc", 1, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    sha("a", 1000000, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    for (size_t n = 0; n < 200; n++) { /* in one piece and byte by byte, around every block's end */
        char text[200];
        q4x_sha256 s;
        memset(text, 'x', n);
        text[n] = 0;
        sha(text, 1, hex);
        q4x_sha256_begin(&s);
        for (size_t i = 0; i < n; i++) q4x_sha256_add(&s, text + i, 1);
        q4x_sha256_end(&s, again);
        assert_string_equal(hex, again);
    }
}

static void test_manifest(void **state) {
    (void)state;
    char hex[65], other[65];
    q4x_err err = {0};
    q4x_gguf_out *o = declared(flash(), 0);
    int64_t n = q4x_gguf_out_ntensors(o);
    assert_int_equal(n, 1224);
    assert_rc_ok(q4x_manifest(q4x_gguf_out_tensors(o), n, hex, &err), &err);
    assert_string_equal(hex, "25a1e6a2073caf19d3a3835dd23702a19fa09cc651506e11a13de7b48076359d");
    /* twins: another type, one tensor less; another order is the same */
    q4x_tensor *t = malloc((size_t)n * sizeof *t);
    assert_non_null(t);
    for (int64_t i = 0; i < n; i++) t[i] = q4x_gguf_out_tensors(o)[n - 1 - i];
    assert_rc_ok(q4x_manifest(t, n, other, &err), &err);
    assert_string_equal(hex, other);
    assert_rc_ok(q4x_manifest(t, n - 1, other, &err), &err);
    assert_string_not_equal(hex, other);
    t[n - 1].type = K_T_Q8_0; /* output.weight */
    assert_rc_ok(q4x_manifest(t, n, other, &err), &err);
    assert_string_not_equal(hex, other);
    free(t);
    q4x_gguf_out_abort(o);
}

/* ---- sums ---- */

typedef struct {
    int type;
    int64_t count, weights, bytes;
} sum;

static void check_sums(const q4x_gguf_out *o, const sum *want, size_t n) {
    const q4x_tensor *t = q4x_gguf_out_tensors(o);
    int64_t known = 0;
    for (size_t s = 0; s < n; s++) {
        int64_t count = 0, weights = 0, bytes = 0;
        for (int64_t i = 0; i < q4x_gguf_out_ntensors(o); i++) {
            if (t[i].type != want[s].type) continue;
            count++;
            weights += t[i].ne[0] * t[i].ne[1] * t[i].ne[2] * t[i].ne[3];
            bytes += (int64_t)t[i].bytes;
        }
        assert_int_equal(count, want[s].count);
        if (want[s].weights) assert_int_equal(weights, want[s].weights);
        if (want[s].bytes) assert_int_equal(bytes, want[s].bytes);
        known += count;
    }
    assert_int_equal(known, q4x_gguf_out_ntensors(o));
}

static void test_flash(void **state) {
    (void)state;
    static const sum want[] = {
        {K_T_IQ4_NL, 49, 91465564160, 51449379840}, {K_T_IQ1_S, 68, 57042534400, 11141120000},
        {K_T_IQ2_XXS, 28, 23488102400, 6055526400}, {K_T_Q5_K, 212, 2219704320, 1526046720},
        {K_T_Q8_0, 244, 747110400, 793804800},      {K_T_Q4_K, 2, 1271398400, 715161600},
        {K_T_Q6_K, 40, 611450880, 501580800},       {K_T_F32, 557, 78373760, 313495040},
        {K_T_BF16, 24, 19660800, 39321600},
    };
    q4x_gguf_out *o = declared(flash(), 0);
    check_sums(o, want, sizeof want / sizeof *want);
    /* the published files: 0, 595 and 629 tensors, the later two of exactly these sizes */
    const q4x_tensor *t = q4x_gguf_out_tensors(o);
    assert_int_equal(q4x_gguf_out_nshards(o), 3);
    int64_t in[3] = {0};
    for (int64_t i = 0; i < q4x_gguf_out_ntensors(o); i++) in[t[i].shard]++;
    assert_true(in[0] == 0 && in[1] == 595 && in[2] == 629);
    assert_int_equal(q4x_gguf_out_shard(o, 1)->size, 49990818368);
    assert_int_equal(q4x_gguf_out_shard(o, 2)->size, 22544696352);
    assert_string_equal(q4x_gguf_out_shard(o, 2)->path, "m-00003-of-00003.gguf");
    assert_string_equal(t[0].name, "output.weight");
    assert_string_equal(t[5].name, "token_embd.weight");
    assert_string_equal(t[6].name, "blk.0.attn_gate.weight");
    assert_string_equal(t[595].name, "blk.23.attn_q.weight");
    q4x_gguf_out_abort(o);
    assert_int_equal(q4x_geometry_rows(flash()), 320001536);
    assert_int_equal(q4x_geometry_special(flash()), 248044);
}

static void test_27b(void **state) {
    (void)state;
    static const sum want[] = {
        {K_T_F32, 456, 0, 0}, {K_T_Q4_K, 294, 0, 0}, {K_T_Q6_K, 67, 0, 0}, {K_T_Q5_K, 48, 0, 0}, {K_T_Q8_0, 1, 0, 0}};
    q4x_gguf_out *o = declared(q4x_geometry_find("qwen3.8-27b"), 0);
    check_sums(o, want, sizeof want / sizeof *want);
    const q4x_tensor *t = q4x_gguf_out_tensors(o);
    int64_t n = q4x_gguf_out_ntensors(o), weights = 0, trunk = 0, mtp = 0;
    assert_int_equal(n, 866);
    for (int64_t i = 0; i < n; i++) {
        weights += t[i].ne[0] * t[i].ne[1] * t[i].ne[2] * t[i].ne[3];
        *(strncmp(t[i].name, "blk.64.", 7) ? &trunk : &mtp) += (int64_t)t[i].bytes;
    }
    assert_int_equal(weights, 27320697856);
    assert_int_equal(trunk, 16806250496);
    assert_int_equal(mtp, 289527808);
    assert_int_equal(q4x_gguf_out_nshards(o), 1);
    assert_int_equal(q4x_gguf_out_shard(o, 0)->size - q4x_gguf_out_shard(o, 0)->data_off, 17095778304);
    q4x_gguf_out_abort(o);
}

/* ---- cuts ---- */

/* A tensor of a cut is that of the whole but for the dimensions that were cut. */
static void test_cut(void **state) {
    (void)state;
    q4x_geometry g = *flash();
    g.L = 5;
    g.E = 16;
    g.V = 4096;
    g.ngram_base = 1009;
    q4x_gguf_out *whole = declared(flash(), 0), *cut = declared(&g, 0);
    const q4x_tensor *a = q4x_gguf_out_tensors(whole), *b = q4x_gguf_out_tensors(cut);
    int64_t n = q4x_gguf_out_ntensors(cut), same = 0, k = 0;
    for (int64_t i = 0; i < n; i++) {
        while (k < 1224 && strcmp(a[k].name, b[i].name) != 0) k++;
        assert_true(k < 1224 && a[k].type == b[i].type && a[k].ndim == b[i].ndim);
        int differ = memcmp(a[k].ne, b[i].ne, sizeof a[k].ne) != 0;
        int may = strstr(b[i].name, "_exps.") || strstr(b[i].name, "ffn_gate_inp.") || b[i].ne[1] == 4096 ||
                  !strncmp(b[i].name, "per_layer", 9);
        assert_true(!differ || may);
        same += !differ;
    }
    assert_int_equal(n, 6 + 5 * 16 + 4 * 9 + 10 + 6);
    assert_int_equal(n - same, 3 + 5 * 4);
    q4x_gguf_out_abort(whole);
    q4x_gguf_out_abort(cut);
}

static void test_check(void **state) {
    (void)state;
    static const struct {
        int L, E, V;
        int64_t base;
        const char *says;
    } row[] = {
        {48, 512, 248320, 20000000, NULL},
        {2, 10, 512, 2, NULL},
        {511, 4096, 1 << 24, 100000000, NULL},
        {1, 512, 248320, 20000000, "layers: expected 2 to 511, found 1"},
        {512, 512, 248320, 20000000, "layers"},
        {48, 9, 248320, 20000000, "experts: expected 10 to 4096, found 9"},
        {48, 4097, 248320, 20000000, "experts"},
        {48, 512, 511, 20000000, "vocabulary: expected 512"},
        {48, 512, (1 << 24) + 1, 20000000, "vocabulary"},
        {48, 512, 248320, 1, "n-gram base: expected 2"},
        {48, 512, 248320, 134217727, "n-gram base: 134217727 leads to more rows"},
        {48, 512, 248320, 134217728, "n-gram base: expected 2 to 134217727"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        q4x_geometry g = *flash();
        q4x_err err = {0};
        g.L = row[i].L, g.E = row[i].E, g.V = row[i].V, g.ngram_base = row[i].base;
        int rc = q4x_geometry_check(&g, &err);
        assert_int_equal(rc, row[i].says ? Q4X_E_ARG : 0);
        if (rc && !strstr(err.msg, row[i].says)) fail_msg("row %zu: %s", i, err.msg);
    }
    assert_null(q4x_geometry_find("qwen3.8"));
    for (int i = 0; i < Q4X_GEOMETRIES; i++) {
        assert_ptr_equal(q4x_geometry_find(q4x_geometries[i].name), &q4x_geometries[i]);
        assert_int_equal(q4x_geometry_check(&q4x_geometries[i], NULL), 0);
    }
}

/* ---- the header as a file ---- */

static char dir[] = "/tmp/q4x-geo-XXXXXX";

/* Files with these headers and no data: holes of the right size. Returns the path of the first. */
static const char *holes(const q4x_geometry *g, int shards) {
    static char first[128];
    q4x_gguf_out *o = NULL;
    q4x_synth s = {.g = g, .type = g->type, .shards = shards};
    q4x_err err = {0};
    char path[96];
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    assert_rc_ok(q4x_synth_declare(&s, path, &o, &err), &err);
    assert_rc_ok(q4x_gguf_out_layout(o, &err), &err);
    for (int i = 0; i < q4x_gguf_out_nshards(o); i++) {
        uint8_t *head = NULL;
        size_t n = 0;
        q4x_out *f = NULL;
        const q4x_shard *x = q4x_gguf_out_shard(o, i);
        assert_rc_ok(q4x_gguf_out_header(o, i, &head, &n, &err), &err);
        assert_rc_ok(q4x_out_open(x->path, &f, &err), &err);
        assert_rc_ok(q4x_out_write(f, head, n, &err), &err);
        assert_rc_ok(q4x_out_close(f, &err), &err);
        assert_int_equal(truncate(x->path, (off_t)x->size), 0);
        if (!i) snprintf(first, sizeof first, "%s", x->path);
        free(head);
    }
    q4x_gguf_out_abort(o);
    return first;
}

static void remove_holes(const char *first, int shards) {
    char path[128];
    snprintf(path, sizeof path, "%s", first);
    for (int i = 1; i <= shards; i++) {
        if (shards > 1) snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", dir, i, shards);
        assert_int_equal(unlink(path), 0);
    }
}

static void check_tokenizer(const q4x_model *m, int32_t V, int32_t special) {
    q4x_names seen = {0};
    q4x_err err = {0};
    int64_t n = 0, *type = NULL, id;
    const char *s;
    size_t len;
    assert_rc_ok(q4x_kv_strs_count(m, "tokenizer.ggml.tokens", &n, &err), &err);
    assert_int_equal(n, V);
    for (int64_t i = 0; i < n; i++) {
        assert_rc_ok(q4x_kv_strs_get(m, "tokenizer.ggml.tokens", i, &s, &len, &err), &err);
        assert_int_equal(q4x_names_add(&seen, s, len, i), 0); /* no token twice */
    }
    assert_int_equal(q4x_names_find(&seen, "<|endoftext|>", 13), special);
    assert_int_equal(q4x_names_find(&seen, "<|im_end|>", 10), special + 2);
    assert_int_equal(q4x_names_find(&seen, "!", 1), 0);
    assert_int_equal(q4x_names_find(&seen, "\xc4\x80", 2), 188); /* byte 0 */
    assert_int_equal(q4x_names_find(&seen, "\xc4\xa0", 2), 220); /* the blank, as in the released vocabulary */
    assert_rc_ok(q4x_kv_ints(m, "tokenizer.ggml.token_type", &type, &n, &err), &err);
    assert_true(n == V && type[0] == 1 && type[special] == 3 && type[special - 1] != 3);
    free(type);
    /* a merge joins two tokens into a third */
    assert_rc_ok(q4x_kv_strs_count(m, "tokenizer.ggml.merges", &n, &err), &err);
    assert_int_equal(n, 156);
    for (int64_t i = 0; i < n; i++) {
        char both[16];
        assert_rc_ok(q4x_kv_strs_get(m, "tokenizer.ggml.merges", i, &s, &len, &err), &err);
        const char *blank = memchr(s, ' ', len);
        assert_non_null(blank);
        size_t a = (size_t)(blank - s), b = len - a - 1;
        memcpy(both, s, a);
        memcpy(both + a, blank + 1, b);
        assert_true(q4x_names_find(&seen, s, a) >= 0 && q4x_names_find(&seen, blank + 1, b) >= 0);
        assert_true(q4x_names_find(&seen, both, a + b) >= 0);
    }
    assert_true(!q4x_kv_i64(m, "tokenizer.ggml.eos_token_id", &id, &err) && id == special + 2);
    q4x_names_free(&seen);
}

static void check_dims(const k_dims *d, const q4x_geometry *g) {
    assert_true(d->D == g->D && d->V == g->V && d->L == g->L && d->E == g->E && d->K == g->K && d->F == g->F);
    assert_true(d->H == g->H && d->G == g->G && d->hd == g->hd && d->rot == g->rot);
    assert_true(d->nk == g->nk && d->nv == g->nv && d->dk == g->dk && d->dv == g->dv && d->Kc == g->Kc);
    assert_true(d->N == g->N && d->R == g->R && d->n == g->n && d->pw == g->pw && d->Kp == g->Kp && d->Fs == g->Fs);
    assert_int_equal(d->eos, q4x_geometry_special(g));
    if (g->L < g->interval) return; /* no block attends */
    assert_true(d->ih == g->ih && d->id == g->id && d->ratio == g->ratio && d->nsel * d->ratio == g->budget);
}

/* The whole header, 72.5 GB of holes behind it, opens and binds; so does every cut. */
static void test_binds(void **state) {
    (void)state;
    q4x_geometry small = *flash();
    small.L = 2, small.E = 10, small.V = 512, small.ngram_base = 2;
    const q4x_geometry *row[] = {flash(), &small, q4x_geometry_find("tiny")};
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *path = holes(row[i], 0);
        q4x_err err = {0};
        q4x_model *m = NULL;
        q4x_qwen4 *w = NULL;
        char hex[65];
        assert_rc_ok(q4x_model_open(path, &m, &err), &err);
        assert_rc_ok(q4x_qwen4_bind(m, &w, &err), &err);
        check_dims(&w->d, row[i]);
        check_tokenizer(m, row[i]->V, q4x_geometry_special(row[i]));
        int shards = q4x_model_nshards(m);
        if (i == 0) {
            static const int64_t mult[] = {23703573157769, 20109073645365, 8052911324071};
            const q4x_layer4 *l = &w->layer[1];
            assert_true(l->has_ple && !memcmp(l->hash, mult, sizeof mult));
            assert_int_equal(l->hash[3], 20000003);
            assert_int_equal(l->hash[3 + 16 + 15], 300001275);
            assert_int_equal(shards, 3);
            assert_rc_ok(q4x_manifest(q4x_model_tensor(m, 0), q4x_model_ntensors(m), hex, &err), &err);
            assert_string_equal(hex, "25a1e6a2073caf19d3a3835dd23702a19fa09cc651506e11a13de7b48076359d");
        }
        q4x_qwen4_free(w);
        q4x_model_close(m);
        remove_holes(path, shards);
    }
    assert_int_equal(rmdir(dir), 0);
}

/* The dense sibling's header, 17.1 GB of holes behind it, and a cut of it. */
static void test_binds_27b(void **state) {
    (void)state;
    q4x_geometry small = *q4x_geometry_find("qwen3.8-27b");
    small.L = 5, small.V = 512;
    const q4x_geometry *row[] = {q4x_geometry_find("qwen3.8-27b"), &small};
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        const char *path = holes(row[i], 0);
        const q4x_geometry *g = row[i];
        q4x_err err = {0};
        q4x_net *net = NULL;
        assert_rc_ok(q4x_net_open(path, &net, &err), &err);
        const k_dims *d = q4x_net_dims(net);
        assert_true(d->D == g->D && d->V == g->V && d->L == g->L && d->H == g->H && d->G == g->G && d->hd == g->hd);
        assert_true(d->rot == g->rot && d->nk == g->nk && d->nv == g->nv && d->dk == g->dk && d->dv == g->dv);
        check_tokenizer(q4x_net_model(net), g->V, q4x_geometry_special(g));
        q4x_net_close(net);
        remove_holes(path, 1);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256), cmocka_unit_test(test_manifest),  cmocka_unit_test(test_flash),
        cmocka_unit_test(test_27b),    cmocka_unit_test(test_cut),       cmocka_unit_test(test_check),
        cmocka_unit_test(test_binds),  cmocka_unit_test(test_binds_27b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
