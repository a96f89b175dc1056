/* t_convert.c: checkpoints to GGUF: held against the file that llama.cpp wrote, against the checkpoint itself node by
 * node, against every other form of the same checkpoint, and against what must be refused. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

#include "kernels/quant.h"
#include "kernels/round.h"
#include "lib/convert_int.h"
#include "lib/dump.h"
#include "lib/machine.h"
#include "lib/run.h"
#include "lib/tok.h"
#include "tests/h_bind.h"
#include "tests/h_hf.h"
#include "tests/h_sanitizer.h"
#include "tests/h_vec.h"

#define MICRO_A "tests/golden/micro-a"
#define MICRO_B "tests/golden/micro-b"
#define DENSE_A "tests/golden/dense-a"

static char *dir;      /* checkpoints that are made here */
static char out[256];  /* what they become */
static char out2[256]; /* and another */

static int set_up(void **state) {
    (void)state;
    dir = h_tmp();
    snprintf(out, sizeof out, "%s/out.gguf", dir);
    snprintf(out2, sizeof out2, "%s/out2.gguf", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    h_tmp_remove(dir);
    return 0;
}

static int try_convert(const char *from, const char *to, const char *type, int nth, q4x_convert_done *done,
                       q4x_err *err) {
    q4x_model *m;
    int rc = q4x_model_open(from, &m, err);
    if (rc) return rc;
    int ft = q4x_file_type_find(type);
    assert_true(ft >= 0);
    q4x_convert_opts o = {.type = (q4x_file_type)ft, .name = "x", .nth = nth};
    rc = q4x_convert(m, to, &o, done, err);
    q4x_model_close(m);
    return rc;
}

static q4x_convert_done convert(const char *from, const char *to, const char *type, int nth) {
    q4x_err err = {0};
    q4x_convert_done done = {0};
    assert_rc_ok(try_convert(from, to, type, nth, &done, &err), &err);
    struct stat st;
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(st.st_size, done.bytes);
    return done;
}

static int same_file(const char *a, const char *b) {
    size_t na, nb;
    void *pa = vec_read(a, &na), *pb = vec_read(b, &nb);
    assert_true(pa && pb);
    int same = na == nb && !memcmp(pa, pb, na);
    free(pa);
    free(pb);
    return same;
}

static q4x_model *open_model(const char *path) {
    q4x_err err = {0};
    q4x_model *m;
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    return m;
}

/* ---- against llama.cpp's file ---- */

static float *values(const q4x_tensor *t, int64_t *ret_n) {
    *ret_n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    float *x = malloc((size_t)*ret_n * sizeof *x);
    assert_non_null(x);
    k_decode_row(t->type, t->data, x, *ret_n);
    return x;
}

/* 0 equal bits, 1 equal values in another type, 2 within an ulp, 3 neither. */
static int tensor_differs(const q4x_tensor *a, const q4x_tensor *b) {
    int64_t n, nb, far = 0;
    if (a->type == b->type && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes)) return 0;
    float *x = values(a, &n), *y = values(b, &nb);
    for (int64_t i = 0; n == nb && i < n; i++) {
        int64_t d = check_ulp(x[i], y[i]);
        if (d > far) far = d;
    }
    free(x);
    free(y);
    return n != nb ? 3 : far == 0 ? 1 : far == 1 ? 2 : 3;
}

/* Every tensor that llama.cpp wrote is there: name, shape, type and bits. Two are known to be apart: its exp is off by
 * an ulp in one value of a decay, and its file has the taps of the n-gram convolution in F32 where the converter's
 * rules (spec 9.3) keep the file type. */
static void as_llamacpp_wrote(void **state) {
    (void)state;
    convert(MICRO_A, out, "BF16", 2);
    q4x_model *a = open_model("tests/models/micro-a-bf16.gguf"), *b = open_model(out);
    int count[4] = {0};
    assert_int_equal(q4x_model_ntensors(a), q4x_model_ntensors(b));
    for (int64_t i = 0; i < q4x_model_ntensors(a); i++) {
        const q4x_tensor *x = q4x_model_tensor(a, i), *y = q4x_model_find(b, x->name);
        if (!y) fail_msg("%s is missing", x->name);
        assert_int_equal(x->ndim, y->ndim);
        assert_memory_equal(x->ne, y->ne, sizeof x->ne);
        int how = tensor_differs(x, y), taps = !strcmp(x->name, "blk.1.ple_conv1d.weight");
        int decay = strstr(x->name, "ssm_a") && !strstr(x->name, "ssm_alpha");
        if (how > (taps ? 1 : decay ? 2 : 0)) fail_msg("%s differs", x->name);
        count[how]++;
    }
    printf("  %d tensors equal by bits, %d in another type, %d within an ulp\n", count[0], count[1], count[2]);
    assert_int_equal(count[0], 111);
    /* the twin: another model's tensors */
    const q4x_tensor *x = q4x_model_find(a, "blk.0.attn_qkv.weight"), *y = q4x_model_find(b, "blk.1.attn_qkv.weight");
    assert_int_equal(tensor_differs(x, y), 3);
    q4x_model_close(a);
    q4x_model_close(b);
}

/* Hyper-parameters that its file and ours both have are equal; ours lacks none but what belongs to its tokenizer. */
static void keys_as_llamacpp_wrote(void **state) {
    (void)state;
    convert(MICRO_A, out, "BF16", 1);
    q4x_model *a = open_model("tests/models/micro-a-bf16.gguf"), *b = open_model(out);
    int same = 0;
    for (int64_t i = 0; i < q4x_kv_count(a); i++) {
        const char *key = q4x_kv_key(a, i);
        q4x_err err = {0};
        int64_t x, y, *xs, *ys, nx, ny;
        double f, g;
        if (strncmp(key, "qwen4exp.", 9)) continue;
        if (!strcmp(key, "qwen4exp.feed_forward_length")) continue; /* nobody's: experts have widths of their own */
        if (!q4x_kv_i64(a, key, &x, &err)) {
            if (q4x_kv_i64(b, key, &y, &err) || x != y) fail_msg("%s is not %lld", key, (long long)x);
        } else if (!q4x_kv_f64(a, key, &f, &err)) {
            if (q4x_kv_f64(b, key, &g, &err) || f != g) fail_msg("%s is not %g", key, f);
        } else {
            assert_int_equal(q4x_kv_ints(a, key, &xs, &nx, &err), 0);
            if (q4x_kv_ints(b, key, &ys, &ny, &err) || nx != ny || memcmp(xs, ys, (size_t)nx * sizeof *xs))
                fail_msg("%s differs", key);
            free(xs);
            free(ys);
        }
        same++;
    }
    assert_int_equal(same, 36);
    q4x_model_close(a);
    q4x_model_close(b);
}

/* ---- against the checkpoint, node by node ---- */

typedef struct {
    float **data; /* [nodes] the last forward's output, heads in the checkpoint's order */
    int64_t *n;
    const q4x_plan *p;
} taken;

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    taken *t = ctx;
    int64_t n = ev->nrows * ev->cols;
    assert_int_equal(ev->nrows, ev->total); /* one tile */
    t->data[ev->node] = malloc((size_t)n * sizeof(float));
    assert_non_null(t->data[ev->node]);
    memcpy(t->data[ev->node], ev->data, (size_t)n * sizeof(float));
    t->n[ev->node] = n;
    return q4x_heads_to_hf(&t->p->node[ev->node].heads, t->data[ev->node], sizeof(float), ev->nrows, ev->cols, err);
}

/* One forward of the prompt. */
static taken forward(const char *path) {
    q4x_err err = {0};
    q4x_net *net;
    q4x_run *r;
    q4x_arm arm;
    int32_t ids[40];
    assert_rc_ok(q4x_net_open(path, &net, &err), &err);
    assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 64, 64, &r, &err), &err);
    const q4x_plan *p = q4x_net_plan(net);
    taken t = {.p = p};
    t.data = calloc((size_t)p->nnodes, sizeof *t.data);
    t.n = calloc((size_t)p->nnodes, sizeof *t.n);
    assert_true(t.data && t.n);
    q4x_run_on_node(r, on_node, &t);
    for (int i = 0; i < 40; i++) ids[i] = (7 + 13 * i) % 200;
    assert_rc_ok(q4x_run_forward(r, ids, 40, 0, &err), &err);
    t.p = NULL;
    q4x_run_free(r);
    q4x_net_close(net);
    return t;
}

static double rel_l2(const float *a, const float *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return s > 0 ? sqrt(d / s) : d > 0 ? INFINITY : 0;
}

/* The checkpoint and its F32 file. Heads lie in another order, so sums over heads have another order: everything before
 * the first of them (the mixer's output of layer 0) is equal by bits, the rest within `bound`. */
static void same_forward(const char *from, const char *type, double bound, int broken) {
    convert(from, out, type, 2);
    if (broken) { /* one bit of one weight */
        int fd = open(out, O_RDWR);
        char c = 0;
        assert_true(fd >= 0 && pread(fd, &c, 1, 200000) == 1);
        c ^= 64;
        assert_true(pwrite(fd, &c, 1, 200000) == 1);
        close(fd);
    }
    taken a = forward(from), b = forward(out);
    q4x_err err = {0};
    q4x_net *net;
    assert_rc_ok(q4x_net_open(from, &net, &err), &err);
    const q4x_plan *p = q4x_net_plan(net);
    int equal = 0, first = q4x_plan_find(p, "L00.blk");
    double worst = 0;
    int bad = 0, ids_differ = 0;
    assert_true(first > 0);
    for (int i = 0; i < p->nnodes; i++) {
        assert_int_equal(a.n[i], b.n[i]);
        int same = !memcmp(a.data[i], b.data[i], (size_t)a.n[i] * sizeof(float));
        equal += same;
        if (p->node[i].is_ids) {
            ids_differ += !same;
        } else if (!same) {
            double e = rel_l2(b.data[i], a.data[i], a.n[i]);
            if (i < first || !(e <= bound)) bad++;
            if (e > worst) worst = e;
        }
        free(a.data[i]);
        free(b.data[i]);
    }
    printf("  %s: %d of %d nodes equal by bits, %d before the first sum over heads; worst rel L2 %.2g\n", from, equal,
           p->nnodes, first, worst);
    if (!broken && (bad || ids_differ))
        fail_msg("%s: %d nodes out of bound, %d selections differ", from, bad, ids_differ);
    if (broken) assert_true(bad + ids_differ > 0);
    q4x_net_close(net);
    free(a.data);
    free(a.n);
    free(b.data);
    free(b.n);
}

static void forwards(void **state) {
    (void)state;
    same_forward(MICRO_A, "F32", 5e-6, 0);
    same_forward(MICRO_A, "BF16", 5e-6, 0);
    same_forward(MICRO_B, "F32", 5e-6, 0);
    same_forward(DENSE_A, "F32", 5e-6, 0);
    same_forward(DENSE_A, "BF16", 5e-6, 0);
    same_forward(DENSE_A, "F32", 5e-6, 1); /* the twin */
}

/* ---- every form of a checkpoint gives the same file ---- */

static void forms(void **state) {
    (void)state;
    convert(MICRO_A, out, "Q8_0", 1);
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_fuse(h, "model.layers.0", 8, 32, 64);
    h_hf_fuse(h, "model.layers.3", 8, 32, 64);
    h_hf_write(h, dir, 0);
    assert_int_equal(convert(dir, out2, "Q8_0", 1).left_out, 0);
    assert_true(same_file(out, out2));
    h_hf_multimodal(h);
    h_hf_write(h, dir, 0);
    assert_int_equal(convert(dir, out2, "Q8_0", 1).left_out, 1); /* its F8 head is not even listed */
    assert_true(same_file(out, out2));
    for (int i = 0; i < h->n; i++) h->t[i].shard = i % 12;
    char one[300];
    snprintf(one, sizeof one, "%s/model.safetensors", dir);
    unlink(one);
    h_hf_write(h, dir, 12);
    convert(dir, out2, "Q8_0", 1);
    assert_true(same_file(out, out2));
    /* a swapped half of a fused tensor is another file */
    ((char *)h_hf_get(h, "model.language_model.layers.0.mlp.experts.gate_up_proj")->data)[1] ^= (char)0x80;
    h_hf_write(h, dir, 12);
    convert(dir, out2, "Q8_0", 1);
    assert_false(same_file(out, out2));
    h_hf_free(h);
}

/* Tensors of a checkpoint may be F32 or F16 where they hold the same values. */
static void stored_wider(void **state) {
    (void)state;
    static const char *const names[] = {"model.layers.0.linear_attn.A_log",
                                        "model.layers.2.linear_attn.in_proj_z.weight",
                                        "model.layers.1.mlp.experts.3.down_proj.weight", "lm_head.weight"};
    convert(MICRO_A, out, "BF16", 1);
    h_hf *h = h_hf_load(MICRO_A);
    for (int i = 0; i < 4; i++) {
        h_hf_tensor t = *h_hf_get(h, names[i]);
        const uint16_t *w = t.data;
        size_t n = t.bytes / 2;
        float *wide = malloc(n * sizeof *wide);
        assert_non_null(wide);
        for (size_t k = 0; k < n; k++) wide[k] = k_f32_from_bf16(w[k]);
        t.data = NULL;
        h_hf_tensor *new = h_hf_add(h, "new", "F32", t.ndim, t.shape, wide);
        h_hf_drop(h, names[i]);
        snprintf(h_hf_get(h, "new")->name, sizeof new->name, "%s", names[i]);
        free(wide);
    }
    h_hf_write(h, dir, 0);
    convert(dir, out2, "BF16", 1);
    assert_true(same_file(out, out2));
    h_hf_free(h);
}

/* The n-gram table in 16 shards: shard_10 comes after shard_9, not after shard_1. */
static void numeric_shards(void **state) {
    (void)state;
    enum { OLD = 4, NEW = 16, WIDE = 8 };
    static const char prefix[] = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_";
    convert(MICRO_A, out, "BF16", 1);
    h_hf *h = h_hf_load(MICRO_A);
    char name[256];
    uint16_t *all = NULL;
    int64_t rows = 0;
    for (int s = 0; s < OLD; s++) {
        snprintf(name, sizeof name, "%s%d.weight", prefix, s);
        h_hf_tensor *t = h_hf_get(h, name);
        all = realloc(all, (size_t)(rows + t->shape[0]) * WIDE * 2);
        assert_non_null(all);
        memcpy(all + rows * WIDE, t->data, t->bytes);
        rows += t->shape[0];
        h_hf_drop(h, name);
    }
    assert_int_equal(rows % NEW, 0);
    for (int s = 0; s < NEW; s++) {
        snprintf(name, sizeof name, "%s%d.weight", prefix, s);
        h_hf_add(h, name, "BF16", 2, (int64_t[]){rows / NEW, WIDE}, all + s * rows / NEW * WIDE);
    }
    h_hf_set(h->config, "split_ngram_parts", "16");
    h_hf_write(h, dir, 0);
    convert(dir, out2, "BF16", 1);
    assert_true(same_file(out, out2));
    free(all);
    h_hf_free(h);
}

static void threads(void **state) {
    (void)state;
    static const char *const types[] = {"F32", "Q8_0", "Q4_K_M", "UD-IQ1_S"};
    for (int i = 0; i < 4; i++) {
        convert(MICRO_B, out, types[i], 1);
        for (int n = 2; n < 8; n += 3) {
            convert(MICRO_B, out2, types[i], n);
            assert_true(same_file(out, out2));
        }
    }
    convert(MICRO_B, out2, "Q4_K_M", 1);
    assert_false(same_file(out, out2));
}

static float *last_logits(const char *path) {
    q4x_err err = {0};
    q4x_net *net;
    q4x_run *r;
    q4x_arm arm;
    int32_t ids[40], rows;
    assert_rc_ok(q4x_net_open(path, &net, &err), &err);
    assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 64, 64, &r, &err), &err);
    for (int i = 0; i < 40; i++) ids[i] = (7 + 13 * i) % 200;
    assert_rc_ok(q4x_run_forward(r, ids, 40, 0, &err), &err);
    size_t n = (size_t)q4x_net_dims(net)->V * sizeof(float);
    float *y = malloc(n);
    assert_non_null(y);
    memcpy(y, q4x_run_logits(r, &rows), n);
    q4x_run_free(r);
    q4x_net_close(net);
    return y;
}

/* Every file type that has encoders is a file that binds and runs, further from F32 the fewer bits it has. */
static void file_types(void **state) {
    (void)state;
    int written = 0;
    char list[200], types[240];
    snprintf(types, sizeof types, " %s,", q4x_convert_types(list, sizeof list));
    float *first = NULL;
    printf("  logits of random weights, rel L2 from F32:");
    for (int t = 0; t < Q4X_FT_COUNT; t++) {
        q4x_err err = {0};
        q4x_convert_done done;
        int rc = try_convert(MICRO_A, out, q4x_file_types[t].name, 2, &done, &err);
        char word[40]; /* as one of the list of types that can be written */
        snprintf(word, sizeof word, " %s,", q4x_file_types[t].name);
        const int refused = rc == Q4X_E_UNSUPPORTED && strstr(err.msg, "which has no encoder here") != NULL;
        assert_int_equal(!refused, strstr(types, word) != NULL);
        if (refused) continue;
        assert_rc_ok(rc, &err);
        float *logits = last_logits(out);
        q4x_model *m = open_model(out);
        uint64_t number;
        assert_int_equal(q4x_kv_u64(m, "general.file_type", &number, &err), q4x_file_types[t].number < 0);
        if (q4x_file_types[t].number >= 0) assert_int_equal(number, q4x_file_types[t].number);
        q4x_model_close(m);
        if (t == Q4X_FT_F32) first = logits;
        double e = rel_l2(logits, first, 256);
        printf(" %s %.2g", q4x_file_types[t].name, e);
        assert_true(e <= 1);
        if (logits != first) free(logits);
        written++;
    }
    printf("\n  %d of %d file types written\n", written, (int)Q4X_FT_COUNT);
    assert_true(written >= 14);
    free(first);
}

/* ---- heads ---- */

static void head_order(void **state) {
    (void)state;
    k_dims d = {.nk = 16, .nv = 48, .dk = 128, .dv = 128};
    q4x_head_axis z = q4x_head_axis_of(&d, "blk.7.attn_gate.weight"),
                  qkv = q4x_head_axis_of(&d, "blk.0.attn_qkv.weight");
    assert_int_equal(z.width, 128);
    assert_int_equal(qkv.first, 4096);
    for (int64_t i = 0; i < 4096; i++) assert_int_equal(q4x_head_source(&d, &qkv, i), i);
    uint8_t seen[6144] = {0};
    for (int64_t i = 0; i < 6144; i++) {
        int64_t s = q4x_head_source(&d, &z, i), j = i / 128, h = s / 128;
        assert_int_equal(s % 128, i % 128);
        assert_int_equal(j % 16, h / 3); /* GGUF head j uses key head j mod 16, head h of a checkpoint h / 3 */
        assert_int_equal(q4x_head_source(&d, &qkv, 4096 + i), 4096 + s);
        assert_int_equal(seen[s]++, 0);
    }
    assert_int_equal(q4x_head_axis_of(&d, "blk.7.attn_q.weight").width, 0);
    assert_int_equal(q4x_head_axis_of(&d, "attn_gate.weight").width, 0);
}

/* ---- what is refused ---- */

static int files_in(const char *folder) {
    char cmd[400];
    snprintf(cmd, sizeof cmd, "ls -A '%s' | grep -c gguf", folder);
    FILE *f = popen(cmd, "r");
    int n = -1;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

/* Fails with this code and words; nothing is left, neither under the name nor under a temporary one. */
static void refused_as(int line, const char *from, const char *type, int code, const char *words) {
    q4x_err err = {0};
    q4x_convert_done done;
    unlink(out);
    unlink(out2);
    int rc = try_convert(from, out, type, 2, &done, &err);
    if (rc != code || !strstr(err.msg, words))
        fail_msg("line %d: rc %d, '%s'; expected %d, '%s'", line, rc, err.msg, code, words);
    if (strchr(err.msg, '\n')) fail_msg("line %d: more than one line", line);
    if (files_in(dir)) fail_msg("line %d: something is left in %s", line, dir);
}
#define REFUSED(from, type, code, words) refused_as(__LINE__, from, type, Q4X_E_##code, words)

/* A checkpoint with one key changed. */
static void with_key(int line, const char *key, const char *json, int code, const char *words) {
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_set(h->config, key, json);
    h_hf_write(h, dir, 0);
    refused_as(line, dir, "BF16", code, words);
    h_hf_free(h);
}
#define WITH_KEY(key, json, code, words) with_key(__LINE__, key, json, Q4X_E_##code, words)

static void configurations(void **state) {
    (void)state;
    REFUSED("tests/models/micro-a-bf16.gguf", "BF16", UNSUPPORTED, "expected a checkpoint");
    REFUSED("nowhere", "BF16", IO, "nowhere: cannot open");
    REFUSED(MICRO_A, "Q2_K", UNSUPPORTED,
            "file type Q2_K: tensor output_hc_down.weight would be Q2_K, which has no encoder");
    WITH_KEY("model_type", "\"llama\"", UNSUPPORTED, "architecture 'llama' is not one that can be converted");
    WITH_KEY("output_gate_type", "\"silu\"", UNSUPPORTED, "output_gate_type is 'silu', which a GGUF file of qwen4exp");
    WITH_KEY("norm_topk_prob", "false", UNSUPPORTED, "norm_topk_prob is false");
    WITH_KEY("hidden_size", "72", MISMATCH, "expected the shape");
    WITH_KEY("rope_parameters.mrope_section", "[1, 2, 3, 4, 5]", FORMAT,
             "mrope_section: expected an array of up to four");
    WITH_KEY("rope_parameters.mrope_section", "[1, -2]", FORMAT, "mrope_section");
    WITH_KEY("image_token_id", "256", FORMAT, "image_token_id is 256, expected 0 to 255");
}

static void tensors(void **state) {
    (void)state;
    h_hf *h = h_hf_load(MICRO_A);
    h_hf_add(h, "model.layers.0.surplus.weight", "BF16", 1, (int64_t[]){8}, NULL);
    h_hf_write(h, dir, 0);
    REFUSED(dir, "BF16", MISMATCH, "1 tensors that the architecture does not have: model.layers.0.surplus.weight");
    h_hf_drop(h, "model.layers.0.surplus.weight");
    uint16_t *w = h_hf_get(h, "model.layers.2.mlp.experts.5.up_proj.weight")->data, kept = w[64 * 7 + 3];
    w[64 * 7 + 3] = 0x7fc0;
    h_hf_write(h, dir, 0);
    /* rows of all experts are counted: 5 * 32 + 7 */
    REFUSED(
        dir, "Q8_0", FORMAT,
        "tensor blk.2.ffn_up_exps.weight (from model.layers.2.mlp.experts.5.up_proj.weight): element [167, 3] is nan");
    w[64 * 7 + 3] = 0xff80;
    h_hf_write(h, dir, 0);
    REFUSED(dir, "F32", FORMAT, "element [167, 3] is -inf");
    w[64 * 7 + 3] = 0x4780; /* 65536 */
    h_hf_write(h, dir, 0);
    REFUSED(dir, "F16", FORMAT, "element [167, 3] is 65536, expected a finite number within the range of F16");
    convert(dir, out, "BF16", 1); /* the twin: fine there */
    w[64 * 7 + 3] = kept;
    /* what becomes infinite on the way: -exp(A_log) */
    uint16_t *a = h_hf_get(h, "model.layers.0.linear_attn.A_log")->data;
    a[2] = 0x42c8; /* 100 */
    h_hf_write(h, dir, 0);
    REFUSED(dir, "BF16", FORMAT, "tensor blk.0.ssm_a: element [0, 1] is -inf"); /* head 2 of the checkpoint */
    h_hf_drop(h, "model.layers.0.linear_attn.A_log");
    h_hf_write(h, dir, 0);
    REFUSED(dir, "BF16", MISMATCH, "1 tensors are missing: model.layers.0.linear_attn.A_log");
    h_hf_free(h);
}

/* A full disk, a folder that is not there; an older file stays. */
static void places(void **state) {
    (void)state;
    q4x_err err = {0};
    q4x_convert_done done;
    unlink(out2);
    assert_int_equal(try_convert(MICRO_A, "nowhere/x.gguf", "BF16", 1, &done, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "nowhere/x.gguf: cannot create"));
    h_text_write(dir, "out.gguf", "old");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 300000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = try_convert(MICRO_A, out, "BF16", 1, &done, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, Q4X_E_IO);
    assert_non_null(strstr(err.msg, "cannot write: File too large"));
    size_t n;
    char *text = vec_read(out, &n);
    assert_string_equal(text, "old");
    free(text);
    assert_int_equal(files_in(dir), 1);
    convert(MICRO_A, out, "BF16", 1);
    assert_int_equal(files_in(dir), 1);
}

/* ---- checkpoints of holes ---- */

/* A checkpoint of dense-a's form with a vocabulary of V, all weights 0: a file of holes. */
static uint64_t write_wide(int64_t V) {
    h_hf *h = h_hf_load(DENSE_A);
    json_t *head = json_object();
    char number[32], path[300];
    uint64_t at = 0;
    snprintf(number, sizeof number, "%lld", (long long)V);
    h_hf_set(h->config, "vocab_size", number);
    for (int i = 0; i < h->n; i++) {
        h_hf_tensor *t = &h->t[i];
        int wide = strstr(t->name, "embed_tokens") || !strcmp(t->name, "lm_head.weight");
        json_t *shape = json_array();
        for (int k = 0; k < t->ndim; k++) json_array_append_new(shape, json_integer(wide && !k ? V : t->shape[k]));
        uint64_t bytes = wide ? (uint64_t)V * (uint64_t)t->shape[1] * 2 : t->bytes;
        json_object_set_new(head, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(head, JSON_COMPACT), *config = json_dumps(h->config, 0);
    assert_true(text && config);
    h_hf_write_st(dir, "model.safetensors", text, NULL, 0);
    h_text_write(dir, "config.json", config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, (off_t)(8 + strlen(text) + at)), 0);
    free(text);
    free(config);
    json_decref(head);
    h_hf_free(h);
    return at;
}

/* ---- tokenizer ---- */

#define TOKENIZER "tests/golden/demo-tokenizer.json"

/* The demo's tokenizer.json beside a checkpoint of 1030 rows, with this much replaced. */
static void write_tokenizer(const char *from, const char *to) {
    size_t n;
    char *text = vec_read(TOKENIZER, &n), *at;
    assert_non_null(text);
    char *made = malloc(n + 200);
    assert_non_null(made);
    if (from) {
        at = strstr(text, from);
        assert_non_null(at);
        sprintf(made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    } else {
        memcpy(made, text, n + 1);
    }
    h_text_write(dir, "tokenizer.json", made);
    free(made);
    free(text);
}

static q4x_tok *open_tok(const q4x_model *m) {
    q4x_tok *t = NULL;
    q4x_err err = {0};
    assert_rc_ok(q4x_tok_open(m, &t, &err), &err);
    return t;
}

/* Every token and every id of a text: the same from the file as from the checkpoint. */
static void tokenizer(void **state) {
    (void)state;
    static const char text[] = "The day after Monday is Tuesday, isn't it?  12 <|im_start|>\n caf\xc3\xa9";
    write_wide(1030);
    write_tokenizer(NULL, NULL);
    h_text_write(dir, "tokenizer_config.json",
                 "{\"eos_token\": \"<|im_end|>\", \"pad_token\": {\"content\": \"<|endoftext|>\"}, "
                 "\"chat_template\": \"{{ x }}\"}");
    convert(dir, out, "Q8_0", 1);
    q4x_model *a = open_model(dir), *b = open_model(out);
    q4x_tok *x = open_tok(a), *y = open_tok(b);
    const q4x_tok_facts *f = q4x_tok_about(x), *g = q4x_tok_about(y);
    assert_int_equal(f->ids, 1024);
    assert_int_equal(g->ids, 1030);
    assert_int_equal(f->merges, g->merges);
    assert_string_equal(f->pre, g->pre);
    assert_int_equal(g->eos, 2);
    assert_int_equal(g->bos, -1);
    for (int32_t i = 0; i < 1030; i++) {
        const uint8_t *p, *q;
        size_t np, nq;
        q4x_err err = {0};
        assert_int_equal(q4x_tok_type_of(y, i), i < 1024 ? q4x_tok_type_of(x, i) : Q4X_TOK_UNUSED);
        if (i >= 1024) continue;
        assert_rc_ok(q4x_tok_bytes(x, i, &p, &np, &err), &err);
        assert_rc_ok(q4x_tok_bytes(y, i, &q, &nq, &err), &err);
        assert_true(np == nq && !memcmp(p, q, np));
    }
    int32_t *u, *v, nu, nv;
    q4x_err err = {0};
    int rc = q4x_tok_encode(x, text, sizeof text - 1, 0, &u, &nu, &err);
    if (rc != Q4X_E_UNSUPPORTED) { /* a build without PCRE2 */
        assert_rc_ok(rc, &err);
        assert_rc_ok(q4x_tok_encode(y, text, sizeof text - 1, 0, &v, &nv, &err), &err);
        assert_int_equal(nu, nv);
        assert_memory_equal(u, v, (size_t)nu * sizeof *u);
        free(u);
        free(v);
    }
    int64_t pad;
    const char *s;
    size_t n;
    assert_int_equal(q4x_kv_i64(b, "tokenizer.ggml.padding_token_id", &pad, &err), 0);
    assert_int_equal(pad, 0);
    assert_int_equal(q4x_kv_str(b, "tokenizer.chat_template", &s, &n, &err), 0);
    assert_true(n == 7 && !memcmp(s, "{{ x }}", 7));
    q4x_tok_close(x);
    q4x_tok_close(y);
    q4x_model_close(a);
    q4x_model_close(b);
    /* what the keys cannot say */
    write_tokenizer("|\\\\p{N}| ?", "|\\\\p{N}{1,3}| ?");
    REFUSED(dir, "Q8_0", UNSUPPORTED, "its pattern has no name in GGUF files");
    write_tokenizer("\"ignore_merges\": false", "\"ignore_merges\": true");
    REFUSED(dir, "Q8_0", UNSUPPORTED, "model.ignore_merges is true");
    write_tokenizer("\"Ġi\"", "\"Ġi");
    REFUSED(dir, "Q8_0", FORMAT, "tokenizer.json");
    /* and no tokenizer at all: the vocabulary's size is there for all that */
    char path[300];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    unlink(path);
    convert(dir, out, "Q8_0", 1);
    b = open_model(out);
    assert_int_equal(q4x_kv_i64(b, "qwen35.vocab_size", &pad, &err), 0);
    assert_int_equal(pad, 1030);
    assert_int_equal(q4x_kv_str(b, "tokenizer.ggml.model", &s, &n, &err), 0);
    assert_true(n == 4 && !memcmp(s, "none", 4));
    q4x_tok *none = NULL;
    assert_int_equal(q4x_tok_open(b, &none, &err), 1);
    q4x_model_close(b);
}

/* ---- memory ---- */

/* Most bytes that a process of its own has resident while it converts. */
static uint64_t peak_of(const char *type) {
    int fd[2];
    uint64_t peak = 0;
    assert_int_equal(pipe(fd), 0);
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        /* this test's own pages are the child's, too, from the beginning */
        int f = open("/proc/self/clear_refs", O_WRONLY);
        if (f < 0 || write(f, "5", 1) != 1) _exit(2);
        uint64_t before = q4x_machine_resident();
        q4x_err err = {0};
        q4x_convert_done done;
        if (try_convert(dir, out, type, 1, &done, &err)) _exit(1);
        peak = q4x_machine_resident_peak() - before;
        _exit(write(fd[1], &peak, sizeof peak) == (ssize_t)sizeof peak ? 0 : 1);
    }
    int status;
    close(fd[1]);
    ssize_t got = read(fd[0], &peak, sizeof peak);
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) return 0; /* the system does not let its peak be reset */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(got, sizeof peak);
    return peak;
}

static int is_long;

/* Resident memory, mapped pages included, does not grow with the checkpoint. */
static void memory(void **state) {
    (void)state;
#if H_SANITIZER
    skip();
#endif
    uint64_t small = write_wide(80000), a = peak_of("Q8_0"); /* 20 MB */
    uint64_t large = write_wide(is_long ? 2000000 : 400000), b = peak_of("Q8_0");
    unlink(out);
    if (!a || !b) skip();
    printf("  checkpoints of %.0f and %.0f MB: at most %.1f and %.1f MB resident beyond the start\n",
           (double)small * 1e-6, (double)large * 1e-6, (double)a * 1e-6, (double)b * 1e-6);
    assert_true(b <= a + (4u << 20));
    assert_true(b <= 40u << 20);
}

int main(int argc, char **argv) {
    is_long = argc > 1 && !strcmp(argv[1], "long");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_llamacpp_wrote), cmocka_unit_test(keys_as_llamacpp_wrote),
        cmocka_unit_test(forwards),          cmocka_unit_test(forms),
        cmocka_unit_test(stored_wider),      cmocka_unit_test(numeric_shards),
        cmocka_unit_test(threads),           cmocka_unit_test(file_types),
        cmocka_unit_test(head_order),        cmocka_unit_test(configurations),
        cmocka_unit_test(tensors),           cmocka_unit_test(places),
        cmocka_unit_test(tokenizer),         cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
