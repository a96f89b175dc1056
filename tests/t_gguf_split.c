/* t_gguf_split.c: split sets (gguf-quants 1.3): a good one opens from any of its shards; missing, swapped, copied and
 * mixed shards are named. In memory, and once on disk.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/h_gguf.h"
#include "tests/h_walk.h"

#define BAD Q4X_E_FORMAT
#define MIX Q4X_E_MISMATCH

/* A set of three, as publishers cut it: shard 0 has the metadata and no tensor. Each field may be spoilt. */
typedef struct {
    h_gguf g[3];
    const char *name[3];
    int no[3], count[3], total[3]; /* -1: left out */
    int no_type;                   /* of shard 1's split.no */
    int count_type, total_type;    /* of shard 0 */
    const char *arch[3];
    int names_clash;
    int missing; /* a shard that is not there, -1 none */
} set;

static void set_init(set *s) {
    *s = (set){.name = {"dir/m-00001-of-00003.gguf", "dir/m-00002-of-00003.gguf", "dir/m-00003-of-00003.gguf"},
               .no = {0, 1, 2},
               .count = {3, 3, 3},
               .total = {3, 3, 3},
               .no_type = 2,
               .count_type = 2,
               .total_type = 5,
               .arch = {"toy", NULL, NULL},
               .missing = -1};
}

/* A number as any integer type. */
static void put_int(h_gguf *g, const char *key, int type, int64_t v) {
    static const uint8_t size[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    h_gguf_kv(g, key, (uint32_t)type, &v, size[type]);
}

static h_buf shard(const set *s, int i) {
    h_gguf g;
    h_gguf_init(&g);
    if (s->arch[i]) h_gguf_kv_str(&g, "general.architecture", s->arch[i]);
    if (i == 2) { /* alignment is per shard */
        h_gguf_kv_u32(&g, "general.alignment", 64);
        g.align = 64;
    }
    if (s->no[i] >= 0) put_int(&g, "split.no", i == 1 ? s->no_type : 2, s->no[i]);
    if (s->count[i] >= 0) put_int(&g, "split.count", i == 0 ? s->count_type : 2, s->count[i]);
    if (s->total[i] != -1) put_int(&g, "split.tensors.count", i == 0 ? s->total_type : 5, s->total[i]);
    if (i == 1) {
        h_gguf_tensor1(&g, "a", 0, 8);
        h_gguf_tensor1(&g, "b", 2, 32);
    }
    if (i == 2) h_gguf_tensor1(&g, s->names_clash ? "a" : "c", 0, 3);
    h_buf b = h_gguf_bytes(&g);
    if (i == 0) b.n = 24 + g.kv.n; /* without tensors the padding may be absent */
    h_gguf_free(&g);
    return b;
}

static const char *seeds; /* --seeds DIR: leave every set there, framed as fz_gguf.c reads it */

static void leave_seed(const h_buf b[3]) {
    static int n;
    char path[256];
    if (!seeds) return;
    snprintf(path, sizeof path, "%s/set-%03d", seeds, n++);
    h_buf f = {0};
    h_put(&f, "Q4XS", 4);
    for (int i = 0; i < 3; i++) {
        h_u16(&f, (uint16_t)b[i].n);
        h_put(&f, b[i].p, b[i].n);
    }
    h_write_file(path, f.p, f.n);
    h_buf_free(&f);
}

/* Open the set through shard `given`. */
static int open_set(const set *s, int given, q4x_model **ret, q4x_err *err, h_buf keep[3]) {
    q4x_mem_file f[3];
    int n = 0;
    for (int i = 0; i < 3; i++) {
        keep[i] = shard(s, i);
        if (i != s->missing) f[n++] = (q4x_mem_file){s->name[i], keep[i].p, keep[i].n};
    }
    leave_seed(keep);
    return q4x_gguf_open_mem(f, n, s->name[given], ret, err);
}

static void test_good(void **state) {
    (void)state;
    for (int given = 0; given < 3; given++) {
        set s;
        set_init(&s);
        h_buf keep[3];
        q4x_model *m = NULL;
        q4x_err err = {0};
        assert_int_equal(open_set(&s, given, &m, &err, keep), 0);
        walk_model(m);
        assert_int_equal(q4x_model_nshards(m), 3);
        assert_int_equal(q4x_model_ntensors(m), 3);
        assert_string_equal(q4x_model_arch(m), "toy");
        assert_string_equal(q4x_model_path(m), s.name[given]);
        for (int i = 0; i < 3; i++) assert_string_equal(q4x_model_shard(m, i)->path, s.name[i]);
        assert_int_equal(q4x_model_find(m, "a")->shard, 1);
        assert_int_equal(q4x_model_find(m, "b")->shard, 1);
        const q4x_tensor *c = q4x_model_find(m, "c");
        assert_int_equal(c->shard, 2);
        assert_int_equal(q4x_model_shard(m, 2)->data_off % 64, 0);
        assert_ptr_equal(c->data, keep[2].p + q4x_model_shard(m, 2)->data_off);
        assert_int_equal(q4x_model_shard(m, 0)->data_off, keep[0].n);
        assert_int_equal(q4x_kv_count(m), 4);
        q4x_model_close(m);
        for (int i = 0; i < 3; i++) h_buf_free(&keep[i]);
    }
}

/* The same tensors in one file are the same model. */
static void test_fingerprint(void **state) {
    (void)state;
    set s;
    set_init(&s);
    h_buf keep[3];
    q4x_model *m = NULL, *one = NULL;
    assert_int_equal(open_set(&s, 0, &m, NULL, keep), 0);
    char hex[4][33];
    assert_int_equal(q4x_model_fingerprint(m, hex[0], NULL), 0);
    q4x_model_close(m);
    for (int k = 1; k < 4; k++) {
        h_gguf g;
        h_gguf_init(&g);
        h_gguf_kv_str(&g, "general.architecture", k == 3 ? "toz" : "toy");
        h_gguf_kv_u16(&g, "split.count", 0); /* as merging leaves it */
        h_gguf_tensor1(&g, "a", 0, 8);
        h_gguf_tensor1(&g, "b", 2, 32);
        h_gguf_tensor1(&g, "c", 0, 3);
        if (k == 2) g.data.p[0] ^= 1; /* twin: one bit of data */
        h_buf b = h_gguf_bytes(&g);
        assert_int_equal(q4x_gguf_parse_mem(b.p, b.n, "one.gguf", &one, NULL), 0);
        assert_int_equal(q4x_model_fingerprint(one, hex[k], NULL), 0);
        q4x_model_close(one);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
    assert_string_equal(hex[0], hex[1]);
    assert_string_not_equal(hex[0], hex[2]);
    assert_string_not_equal(hex[0], hex[3]);
    for (int i = 0; i < 3; i++) h_buf_free(&keep[i]);
}

/* ---- what is refused ---- */

static void missing1(set *s) {
    s->missing = 1;
}
static void missing0(set *s) {
    s->missing = 0;
}
static void swapped(set *s) {
    const char *t = s->name[1];
    s->name[1] = s->name[2];
    s->name[2] = t;
}
static void copied(set *s) {
    s->no[2] = 1;
}
static void copied_whole(set *s) { /* its tensors too: the keys say why they collide */
    s->no[2] = 1;
    s->names_clash = 1;
}
static void renamed(set *s) {
    s->name[0] = "dir/model.gguf";
}
static void renamed4(set *s) {
    s->name[0] = "dir/m-00001-of-00004.gguf";
}
static void upper(set *s) {
    s->name[0] = "dir/m-00001-OF-00003.gguf";
}
static void count4(set *s) {
    s->count[2] = 4;
}
static void count2(set *s) {
    s->count[1] = 2;
}
static void total4(set *s) {
    s->total[0] = s->total[1] = s->total[2] = 4;
}
static void total_mixed(set *s) {
    s->total[2] = 9;
}
static void total_neg(set *s) {
    s->total[0] = -3;
}
static void arch_mixed(set *s) {
    s->arch[2] = "toz";
}
static void arch_late(set *s) {
    s->arch[0] = NULL, s->arch[1] = "toy";
}
static void clash(set *s) {
    s->names_clash = 1;
}
static void no_none(set *s) {
    s->no[1] = -1;
}
static void no_none0(set *s) {
    s->no[0] = -1;
}
static void no_u32(set *s) {
    s->no_type = 4;
}
static void count_u32(set *s) {
    s->count_type = 4;
}
static void total_u32(set *s) {
    s->total_type = 4;
}
static void count1001(set *s) {
    s->count[0] = 1001;
}
static void no_3(set *s) {
    s->no[0] = 3;
}
static void zero_is_one(set *s) {
    s->no[0] = 1;
}
/* ---- what is not ---- */
static void none(set *s) {
    (void)s;
}
static void sparse(set *s) {
    s->count[1] = s->count[2] = s->total[1] = s->total[2] = -1;
}
static void total_late(set *s) {
    s->total[0] = s->total[1] = -1;
}
static void no_totals(set *s) {
    s->total[0] = s->total[1] = s->total[2] = -1;
}
static void arch_again(set *s) {
    s->arch[1] = "toy";
}
static void bare_name(set *s) {
    s->name[0] = "-00001-of-00003.gguf";
    s->name[1] = "-00002-of-00003.gguf";
    s->name[2] = "-00003-of-00003.gguf";
}

typedef struct {
    const char *name;
    void (*spoil)(set *s);
    int given, rc;
    const char *says[2];
} row;

static void test_rows(void **state) {
    (void)state;
    static const row rows[] = {
        {"good", none, 0, 0, {0}},
        {"keys in shard 0 alone", sparse, 0, 0, {0}},
        {"keys in shard 0 alone, given the last", sparse, 2, 0, {0}},
        {"total in the last shard alone", total_late, 0, 0, {0}},
        {"no totals", no_totals, 1, 0, {0}},
        {"architecture repeated", arch_again, 0, 0, {0}},
        {"no prefix", bare_name, 1, 0, {0}},
        {"missing 2", missing1, 0, Q4X_E_IO, {"shard 2 of 3 is needed", "m-00002-of-00003.gguf"}},
        {"missing 2, given 3", missing1, 2, Q4X_E_IO, {"shard 2 of 3 is needed", "m-00002-of-00003.gguf"}},
        {"missing 1, given 3", missing0, 2, Q4X_E_IO, {"shard 1 of 3 is needed", "m-00001-of-00003.gguf"}},
        {"swapped", swapped, 0, MIX, {"m-00002-of-00003.gguf: split.no: expected 1, found 2", "swapped"}},
        {"swapped, given one", swapped, 1, MIX, {"m-00003-of-00003.gguf: split.no", "the name says"}},
        {"copied", copied, 0, MIX, {"m-00003-of-00003.gguf: split.no: expected 2, found 1", "copied"}},
        {"copied whole", copied_whole, 0, MIX, {"m-00003-of-00003.gguf: split.no: expected 2, found 1", "copied"}},
        {"renamed", renamed, 0, MIX, {"dir/model.gguf: split.count: expected a name", "-00001-of-00003.gguf"}},
        {"renamed to 4", renamed4, 0, MIX, {"m-00001-of-00004.gguf: split.no", "shard 1 of 4"}},
        {"renamed to capitals", upper, 0, MIX, {"m-00001-OF-00003.gguf: split.count"}},
        {"count differs", count4, 0, MIX, {"m-00003-of-00003.gguf: split.count: expected 3", "found 4"}},
        {"count differs, given it", count2, 1, MIX, {"m-00002-of-00003.gguf: split.no", "shard 2 of 2"}},
        {"total too large", total4, 0, MIX, {"split.tensors.count: expected 3", "found 4"}},
        {"total differs", total_mixed, 0, MIX, {"m-00003-of-00003.gguf: split.tensors.count", "found 9"}},
        {"total negative", total_neg, 0, BAD, {"m-00001-of-00003.gguf: split.tensors.count at byte", "found -3"}},
        {"architecture differs", arch_mixed, 0, MIX, {"m-00003-of-00003.gguf: general.architecture", "'toz'"}},
        {"architecture not in shard 0", arch_late, 0, MIX, {"m-00002-of-00003.gguf: general.architecture"}},
        {"name twice", clash, 0, BAD, {"m-00003-of-00003.gguf: tensor 0 'a'", "m-00002-of-00003.gguf"}},
        {"no split.no", no_none, 0, MIX, {"m-00002-of-00003.gguf: split.no: expected 1, found none"}},
        {"no split.no, given it", no_none, 1, BAD, {"m-00002-of-00003.gguf: split.no: expected one"}},
        {"no split.no in shard 0", no_none0, 0, BAD, {"m-00001-of-00003.gguf: split.no: expected one"}},
        {"no split.no in shard 0, given 2", no_none0, 1, MIX, {"m-00001-of-00003.gguf: split.no"}},
        {"split.no u32", no_u32, 0, BAD, {"m-00002-of-00003.gguf: split.no at byte", "type u16, found u32"}},
        {"split.count u32", count_u32, 0, BAD, {"m-00001-of-00003.gguf: split.count at byte", "type u16, found u32"}},
        {"split.tensors.count u32", total_u32, 0, BAD, {"split.tensors.count at byte", "type i32, found u32"}},
        {"1001 shards", count1001, 0, BAD, {"split.count at byte", "0 to 1000, found 1001"}},
        {"split.no beyond", no_3, 0, BAD, {"m-00001-of-00003.gguf: split.no", "below split.count = 3, found 3"}},
        {"first shard is another", zero_is_one, 2, MIX, {"shard 1 of 3", "m-00001-of-00003.gguf: split.no"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set s;
        set_init(&s);
        rows[i].spoil(&s);
        h_buf keep[3];
        q4x_model *m = NULL;
        q4x_err err = {0};
        int rc = open_set(&s, rows[i].given, &m, &err, keep);
        int ok = rc == rows[i].rc && !m == !!rc;
        for (int k = 0; k < 2; k++)
            if (rows[i].says[k] && !strstr(err.msg, rows[i].says[k])) ok = 0;
        if (!ok) print_error("row '%s': rc %d, expected %d; message: %s\n", rows[i].name, rc, rows[i].rc, err.msg);
        assert_true(ok);
        if (rc)
            walk_error(rc, &err, ".gguf");
        else
            walk_model(m);
        q4x_model_close(m);
        for (int k = 0; k < 3; k++) h_buf_free(&keep[k]);
    }
}

/* A single file may say split.count 0 or 1 under any name; a lone later shard may not. */
static void test_single(void **state) {
    (void)state;
    static const struct {
        int no, count, total, rc;
    } rows[] = {{0, 0, 1, 0},   {0, 1, 1, 0},    {-1, 1, -1, 0}, {0, 1, 2, MIX}, {0, 0, 2, MIX},
                {1, 1, 1, BAD}, {1, -1, 1, MIX}, {0, 2, 1, MIX}, {0, -1, 1, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        h_gguf g;
        h_gguf_init(&g);
        if (rows[i].no >= 0) put_int(&g, "split.no", 2, rows[i].no);
        if (rows[i].count >= 0) put_int(&g, "split.count", 2, rows[i].count);
        if (rows[i].total >= 0) put_int(&g, "split.tensors.count", 5, rows[i].total);
        h_gguf_tensor1(&g, "a", 0, 8);
        h_buf b = h_gguf_bytes(&g);
        q4x_model *m = NULL;
        q4x_err err = {0};
        int rc = q4x_gguf_parse_mem(b.p, b.n, "any.gguf", &m, &err);
        if (rc != rows[i].rc) print_error("row %zu: rc %d, message: %s\n", i, rc, err.msg);
        assert_int_equal(rc, rows[i].rc);
        q4x_model_close(m);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
}

/* Through real files, and often enough that descriptors left open would run out. */
static void test_disk(void **state) {
    (void)state;
    char dir[] = "/tmp/q4x-split-XXXXXX", path[128];
    assert_non_null(mkdtemp(dir));
    enum { N = 300 };
    for (int i = 0; i < N; i++) {
        h_gguf g;
        h_gguf_init(&g);
        put_int(&g, "split.no", 2, i);
        put_int(&g, "split.count", 2, N);
        put_int(&g, "split.tensors.count", 5, N);
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        h_gguf_tensor1(&g, name, 0, 4);
        h_buf b = h_gguf_bytes(&g);
        snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", dir, i + 1, N);
        h_write_file(path, b.p, b.n);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
    for (int round = 0; round < 8; round++) { /* 8 x 300 is beyond the usual 1024 descriptors */
        q4x_model *m = NULL;
        q4x_err err = {0};
        snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", dir, 1 + 40 * round, N);
        int rc = q4x_model_open(path, &m, &err);
        if (rc) print_error("%s\n", err.msg);
        assert_int_equal(rc, 0);
        assert_int_equal(q4x_model_ntensors(m), N);
        assert_int_equal(q4x_model_find(m, "t299")->shard, 299);
        q4x_model_close(m);
    }
    snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", dir, 201, N);
    unlink(path);
    q4x_model *m = NULL;
    q4x_err err = {0};
    snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", dir, N, N);
    assert_int_equal(q4x_model_open(path, &m, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "shard 201 of 300 is needed beside the others"));
    for (int i = 0; i < N; i++) {
        snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", dir, i + 1, N);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--seeds"))
        seeds = argv[2];
    else if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),   cmocka_unit_test(test_fingerprint), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_single), cmocka_unit_test(test_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
