/* t_topk.c: the four tie rules: against a full sort, against the C++ library itself, against recorded selections. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "kernels/moe.h"
#include "kernels/quant.h"
#include "kernels/topk.h"
#include "tests/h_vec.h"

enum { MAXN = 3000 };

static void pick(const float *x, int32_t n, int32_t k, int32_t tie, int32_t *ids) {
    float *work = malloc(2 * (size_t)n * sizeof *work);
    assert_non_null(work);
    k_topk(x, n, k, tie, ids, work);
    free(work);
}

/* ---- lowest, highest: a stable selection by hand ---- */

static int above(float a, float b) {
    return isnan(b) ? !isnan(a) : a > b;
}
static int equal(float a, float b) {
    return (isnan(a) && isnan(b)) || a == b;
}

static void by_hand(const float *x, int32_t n, int32_t k, int highest, int32_t *ids) {
    char *used = calloc((size_t)n, 1);
    assert_non_null(used);
    for (int32_t r = 0; r < k; r++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            if (used[i]) continue;
            if (best < 0 || above(x[i], x[best]) || (highest && equal(x[i], x[best]))) best = i;
        }
        used[best] = 1;
        ids[r] = best;
    }
    free(used);
}

/* Scores with ties: values of a grid of `kinds`, sometimes NaN, infinities and both zeros. */
static void scores(float *x, int32_t n, uint64_t kinds, int wild, uint64_t *seed) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-149f, -0x1p-149f};
    for (int32_t i = 0; i < n; i++) {
        x[i] = (float)(int64_t)(vec_u64(seed) % kinds) - (float)(kinds / 2);
        if (wild && vec_u64(seed) % 4 == 0) x[i] = odd[vec_u64(seed) % 7];
    }
}

static void total_orders(void **state) {
    (void)state;
    uint64_t seed = 7;
    float x[200];
    int32_t got[200], want[200];
    for (int round = 0; round < 4000; round++) {
        int32_t n = 1 + (int32_t)(vec_u64(&seed) % 200), k = (int32_t)(vec_u64(&seed) % (uint64_t)(n + 1));
        if (round % 3) k = k % 12 < n ? k % 12 : n;
        scores(x, n, 1 + vec_u64(&seed) % 40, round & 1, &seed);
        for (int highest = 0; highest < 2; highest++) {
            memset(got, 0x55, sizeof got);
            pick(x, n, k, highest ? K_TIE_HIGHEST : K_TIE_LOWEST, got);
            by_hand(x, n, k, highest, want);
            assert_memory_equal(got, want, (size_t)k * sizeof *got);
            if (k < 200) assert_int_equal(got[k], 0x55555555);
        }
    }
    /* twin: with a tie at the cut the two rules must differ */
    float tie[] = {1, 2, 2, 0};
    pick(tie, 4, 1, K_TIE_LOWEST, got);
    pick(tie, 4, 1, K_TIE_HIGHEST, want);
    assert_int_equal(got[0], 1);
    assert_int_equal(want[0], 2);
}

/* Whatever the rule, the scores picked are the k largest in descending order, by different indices. */
static void every_rule_picks_the_largest(void **state) {
    (void)state;
    uint64_t seed = 99;
    static float x[MAXN];
    static int32_t a[MAXN], b[MAXN];
    for (int round = 0; round < 400; round++) {
        int32_t n = 1 + (int32_t)(vec_u64(&seed) % 400), k = 1 + (int32_t)(vec_u64(&seed) % (uint64_t)n);
        scores(x, n, 1 + vec_u64(&seed) % 60, round & 1, &seed);
        pick(x, n, k, K_TIE_LOWEST, a);
        for (int32_t tie = K_TIE_TORCH; tie <= K_TIE_STL; tie++) {
            char seen[400] = {0};
            pick(x, n, k, tie, b);
            for (int32_t i = 0; i < k; i++) {
                assert_true(b[i] >= 0 && b[i] < n && !seen[b[i]]);
                seen[b[i]] = 1;
                assert_true(equal(x[a[i]], x[b[i]]));
            }
        }
    }
}

/* ---- the library itself ---- */

/* Reads cases (n, k, rule, kill, n floats), writes the n floats used and k indices. rule 0: torch, 1: partial_sort.
 * kill: instead of the floats, an input on which splitting goes wrong (McIlroy's adversary), two scores to a value. */
static const char program[] =
    "#include <algorithm>\n#include <cstdio>\n#include <cstdint>\n#include <utility>\n#include <vector>\n"
    "typedef std::pair<float, int64_t> P;\n"
    "static bool better(const P &a, const P &b) { return a.first > b.first; }\n"
    "static void kill(std::vector<float> &x, int k) {\n"
    "    int n = (int)x.size(), solid = 0, candidate = 0;\n"
    "    std::vector<int> v(n, n), p(n);\n"
    "    for (int i = 0; i < n; i++) p[i] = i;\n"
    "    auto less = [&](int a, int b) {\n"
    "        if (v[a] == n && v[b] == n) { if (a == candidate) v[a] = solid++; else v[b] = solid++; }\n"
    "        if (v[a] == n) candidate = a; else if (v[b] == n) candidate = b;\n"
    "        return v[a] < v[b]; };\n"
    "    if (k) std::nth_element(p.begin(), p.begin() + k - 1, p.end(), less); else std::sort(p.begin(), p.end(), "
    "less);\n"
    "    for (int i = 0; i < n; i++) x[i] = (float)-(v[i] / 2);\n"
    "}\n"
    "int main() {\n"
    "    int32_t h[4];\n"
    "    while (fread(h, 4, 4, stdin) == 4) {\n"
    "        int n = h[0], k = h[1];\n"
    "        std::vector<float> x(n);\n"
    "        if (fread(x.data(), 4, n, stdin) != (size_t)n) return 1;\n"
    "        if (h[3]) kill(x, h[3] == 1 ? k : 0);\n"
    "        std::vector<P> q(n);\n"
    "        for (int i = 0; i < n; i++) q[i] = P(x[i], i);\n"
    "        if (h[2] == 1 || 64 * (int64_t)k <= n) std::partial_sort(q.begin(), q.begin() + k, q.end(), better);\n"
    "        else {\n"
    "            std::nth_element(q.begin(), q.begin() + k - 1, q.end(), better);\n"
    "            std::sort(q.begin(), q.begin() + k - 1, better);\n"
    "        }\n"
    "        fwrite(x.data(), 4, n, stdout);\n"
    "        for (int i = 0; i < k; i++) { int32_t id = (int32_t)q[i].second; fwrite(&id, 4, 1, stdout); }\n"
    "    }\n"
    "    return 0;\n"
    "}\n";

typedef struct {
    int32_t n, k, rule, kill;
} lib_case;

static void write_cases(FILE *f) {
    static float x[MAXN];
    uint64_t seed = 12345;
    for (int i = 0; i < 6000; i++) {
        int big = i % 10 == 0;
        lib_case c = {.rule = i & 1, .kill = i % 23 == 0 ? 1 + i % 2 : 0};
        c.n = 1 + (int32_t)(vec_u64(&seed) % (big ? MAXN : 96));
        c.k = 1 + (int32_t)(vec_u64(&seed) % (uint64_t)c.n);
        if (i % 3 == 0 && c.k > 12) c.k = 12;
        scores(x, c.n, 1 + vec_u64(&seed) % (i % 5 ? 12 : 1000), 0, &seed);
        if (c.kill) c.n = 200 + (int32_t)(vec_u64(&seed) % 1500), c.k = c.kill == 1 ? c.n / 3 : c.n, c.rule = 0;
        assert_int_equal(fwrite(&c, sizeof c, 1, f), 1);
        assert_int_equal(fwrite(x, 4, (size_t)c.n, f), c.n);
    }
}

static void the_library(void **state) {
    (void)state;
    if (system("command -v g++ >/dev/null 2>&1") != 0) {
        print_message("skipped: there is no g++ to compile the real algorithms with\n");
        skip();
    }
    char dir[] = "/tmp/t_topk.XXXXXX", command[512], in[64], out[64];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command, "%s/a.cc", dir);
    FILE *f = fopen(command, "w");
    assert_non_null(f);
    fputs(program, f);
    fclose(f);
    snprintf(in, sizeof in, "%s/in", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    f = fopen(in, "wb");
    assert_non_null(f);
    write_cases(f);
    fclose(f);
    snprintf(command, sizeof command, "g++ -O1 -o %s/a %s/a.cc && %s/a <%s >%s", dir, dir, dir, in, out);
    assert_int_equal(system(command), 0);
    FILE *a = fopen(in, "rb"), *b = fopen(out, "rb");
    assert_true(a && b);
    static float x[MAXN];
    static int32_t want[MAXN], got[MAXN], low[MAXN];
    int cases = 0, other = 0;
    for (lib_case c; fread(&c, sizeof c, 1, a) == 1; cases++) {
        assert_int_equal(fread(x, 4, (size_t)c.n, a), c.n);
        assert_int_equal(fread(x, 4, (size_t)c.n, b), c.n);
        assert_int_equal(fread(want, 4, (size_t)c.k, b), c.k);
        pick(x, c.n, c.k, c.rule ? K_TIE_STL : K_TIE_TORCH, got);
        if (memcmp(got, want, (size_t)c.k * sizeof *got) != 0)
            fail_msg("case %d: n %d k %d rule %d kill %d: another order", cases, c.n, c.k, c.rule, c.kill);
        pick(x, c.n, c.k, K_TIE_LOWEST, low);
        other += memcmp(low, want, (size_t)c.k * sizeof *low) != 0;
    }
    assert_int_equal(cases, 6000);
    assert_true(other > cases / 2); /* twin: lowest first is another order, so the cases decide something */
    fclose(a);
    fclose(b);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* ---- recorded selections ---- */

/* Rows of the file whose ids a rule does not give; ids that differ must have equal logits (at[] says which rank). */
static int64_t differing(const vec_st *f, const char *logits, const char *ids, int32_t tie, int64_t *rows) {
    int64_t T, E, T2, K, n = 0;
    float *l = vec_st_get(f, logits, &T, &E);
    int32_t *want = vec_st_get(f, ids, &T2, &K);
    assert_true(l && want && T == T2);
    int32_t *got = malloc((size_t)(T * K) * sizeof *got);
    float *scratch = malloc(3 * (size_t)E * sizeof *scratch);
    assert_true(got && scratch);
    k_levers lv = {.tie = tie};
    k_dims d = {.E = (int32_t)E, .K = (int32_t)K};
    k_call c = {.T = (int32_t)T, .cols = K, .d = &d, .lv = &lv, .scratch = scratch, .scratch_n = 3 * E, .nth = 1};
    c.out_i = got, c.in[0] = l, c.in_cols[0] = E;
    moe_ids_cpu(&c);
    for (int64_t t = 0; t < T; t++) {
        n += memcmp(got + t * K, want + t * K, (size_t)K * 4) != 0;
        for (int64_t k = 0; k < K; k++) assert_true(l[t * E + got[t * K + k]] == l[t * E + want[t * K + k]]);
    }
    *rows += T;
    free(l);
    free(want);
    free(got);
    free(scratch);
    return n;
}

/* Every layer and forward of a golden file: rows in which a rule differs. */
static int64_t golden_rows(const char *path, int32_t tie, int64_t *rows) {
    vec_st f;
    assert_int_equal(vec_st_open(&f, path), 0);
    int64_t n = 0, r, k;
    int32_t type;
    for (int fw = 0; fw < 16; fw++)
        for (int layer = 0; layer < 16; layer++) {
            char a[64], b[64];
            snprintf(a, sizeof a, "f%d/L%02d.moe.logits", fw, layer);
            snprintf(b, sizeof b, "f%d/L%02d.moe.ids", fw, layer);
            if (vec_st_raw(&f, b, &r, &k, &type)) n += differing(&f, a, b, tie, rows);
        }
    vec_st_close(&f);
    return n;
}

static void goldens(void **state) {
    (void)state;
    static const char *const path[] = {
        "tests/golden/micro-a/golden-bf16.safetensors", "../shared/golden/micro-b/golden-bf16.safetensors",
        "tests/golden/micro-a/golden-f32.safetensors", "../shared/golden/micro-b/golden-f32.safetensors"};
    for (int i = 0; i < 4; i++) {
        if (access(path[i], R_OK) != 0) {
            if (path[i][0] != '.') fail_msg("no %s", path[i]);
            print_message("skipped: no %s\n", path[i]);
            continue;
        }
        int64_t rows = 0;
        assert_int_equal(golden_rows(path[i], K_TIE_TORCH, &rows), 0);
        assert_true(rows > 30);
        int64_t low = golden_rows(path[i], K_TIE_LOWEST, &rows), high = golden_rows(path[i], K_TIE_HIGHEST, &rows);
        print_message("%s: %d rows, %d differ with lowest, %d with highest\n", path[i], (int)(rows / 3), (int)low,
                      (int)high);
        if (i == 1) assert_true(low > 0 && high > 0); /* twin: these rows hold ties that the rules break differently */
        if (i >= 2) assert_true(low == 0 && high == 0);
    }
}

static void moe_block(void **state) {
    (void)state;
    vec_st f;
    if (vec_st_open(&f, "../shared/golden/moe-block/moe-golden.safetensors")) {
        print_message("skipped: no ../shared/golden/moe-block\n");
        vec_st_close(&f);
        skip();
    }
    int64_t rows = 0, low = 0;
    int seen = 0;
    json_t *json = f.json;
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value) {
        char *at = strstr(key, "router_logits"), ids[256];
        if (!at) continue;
        snprintf(ids, sizeof ids, "%.*sselected_experts%s", (int)(at - key), key, at + strlen("router_logits"));
        assert_int_equal(differing(&f, key, ids, K_TIE_TORCH, &rows), 0);
        low += differing(&f, key, ids, K_TIE_LOWEST, &rows);
        seen++;
    }
    assert_int_equal(seen, 4);
    assert_true(low > 0);
    vec_st_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(total_orders), cmocka_unit_test(every_rule_picks_the_largest),
        cmocka_unit_test(the_library),  cmocka_unit_test(goldens),
        cmocka_unit_test(moe_block),
    };
    return cmocka_run_group_tests_name("topk", tests, NULL, NULL);
}
