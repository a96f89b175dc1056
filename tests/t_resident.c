/* t_resident.c [long]: rows of the n-gram table are gathered from the mapped file, never read whole: what is resident
 * stays within the pages that were touched and 200 MiB, and of the table only the rows of the ids that came are
 * touched. `tiny` with a table of 58 MB always; long: a cut of 1.8 GB at full width, 1.4 GB of it table, in TMPDIR.
 * Rows that are asked for ahead are those that a forward then gathers.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/ahead.h"
#include "lib/machine.h"
#include "lib/run.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_sanitizer.h"
#include "tests/h_synth.h"

static int is_long;

/* Pages of [p, p + n) that this process has mapped now: bit 63 of its page map. */
static int64_t present(const void *p, size_t n) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    assert_true(fd >= 0);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)p / page, last = ((uintptr_t)p + n - 1) / page;
    uint64_t entry[512];
    int64_t count = 0;
    for (uint64_t at = first; at <= last;) {
        size_t k = last - at + 1 < 512 ? (size_t)(last - at + 1) : 512;
        ssize_t got = pread(fd, entry, k * 8, (off_t)(at * 8));
        assert_true(got == (ssize_t)(k * 8));
        for (size_t i = 0; i < k; i++) count += (int64_t)(entry[i] >> 63);
        at += k;
    }
    close(fd);
    return count;
}

/* Out of the page cache, where a file just written lies in pieces of up to 2 MiB that are mapped whole. */
static void forget(const char *path) {
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

static void measure(const char *path, int forwards, double most_of_table) {
    q4x_err err = {0};
    q4x_net *net = h_net(path);
    q4x_run *r = NULL;
    q4x_arm arm;
    int32_t top[2], id = 0, ids = 0;
    float val[2];
    const double mib = 1 << 20;
    assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 64, 0, &r, &err), &err);
    for (int f = 0; f < forwards; f++, ids++) {
        assert_rc_ok(q4x_run_forward(r, f ? &id : (int32_t[]){1, 2, 3, 4, 5}, f ? 1 : 5, 0, &err), &err);
        id = q4x_run_choose(r, top, val);
    }
    const q4x_model *m = q4x_net_model(net);
    const q4x_tensor *table = q4x_model_find(m, "per_layer_token_embd.weight");
    int64_t touched = 0;
    double page = (double)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) {
        const q4x_tensor *t = q4x_model_tensor(m, i);
        touched += present(t->data, t->bytes);
    }
    int64_t of_table = present(table->data, table->bytes);
    double peak = (double)q4x_machine_resident_peak(), share = (double)of_table * page / (double)table->bytes;
    print_message("    file %.0f MiB, touched %.1f, peak resident %.1f; table %.0f, touched %.2f (%.2f %%), %d ids\n",
                  (double)q4x_model_shard(m, 0)->size / mib, (double)touched * page / mib, peak / mib,
                  (double)table->bytes / mib, (double)of_table * page / mib, 100 * share, ids + 4);
    assert_true(peak > 0 && touched > 0 && of_table > 0);
    assert_true(peak <= (double)touched * page + 200 * mib);
    assert_true(share <= most_of_table);
    /* the twin: read whole, the table is all there */
    uint64_t sum = 0;
    for (size_t i = 0; i < table->bytes; i += 512) sum += ((const uint8_t *)table->data)[i];
    assert_true(sum > 0);
    assert_true((double)present(table->data, table->bytes) * page >= (double)table->bytes);
    q4x_run_free(r);
    q4x_net_close(net);
}

/* Which pages of the table the page cache has; returns how many. */
static int64_t cached(const q4x_tensor *table, unsigned char *ret, size_t pages) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)table->data / page * page;
    int64_t n = 0;
    assert_int_equal(mincore((void *)at, pages * page, ret), 0);
    for (size_t i = 0; i < pages; i++) n += ret[i] &= 1;
    return n;
}

static int64_t waits_for_disk(void) {
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_majflt;
}

/* How often a forward of three ids waits for the disk after the rows of `asked` were asked for, everything but the rows
 * having been read before. Which pages the cache has in the end tells nothing: a kernel that sees pages used reads on
 * behind them. */
static int64_t waits_after(const char *path, const int32_t *asked) {
    static const int32_t other[] = {1, 2, 3}, ids[] = {7, 8, 9};
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_arm arm;
    forget(path);
    q4x_net *net = h_net(path);
    const q4x_plan *p = q4x_net_plan(net);
    const q4x_model *m = q4x_net_model(net);
    const q4x_tensor *table = q4x_model_find(m, "per_layer_token_embd.weight");
    const size_t pages = table->bytes / (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *has = malloc(pages);
    k_state *st = calloc((size_t)p->nstates, sizeof *st);
    assert_true(has && st);
    assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 64, 0, &r, &err), &err);
    assert_rc_ok(q4x_run_forward(r, other, 3, 0, &err), &err);
    q4x_run_reset(r);
    for (int32_t i = 0; i < p->nstates; i++) st[i] = *h_run_state(r, i);
    const int64_t first = cached(table, has, pages);
    if (2 * first > (int64_t)pages) skip(); /* a cache that cannot be emptied */
    assert_int_equal(q4x_read_ahead(m, p, st, asked, 3), 3 * p->d.P);
    assert_int_equal(q4x_read_ahead(m, p, st, asked, Q4X_AHEAD_MOST), 0); /* too many */
    int64_t now = 0, then = -1;
    for (int i = 0, still = 0; i < 100 && (still < 5 || now == first); i++) { /* they come by themselves */
        then = now;
        usleep(100000);
        now = cached(table, has, pages);
        still = now == then ? still + 1 : 0;
    }
    assert_true(now > first);
    const int64_t before = waits_for_disk();
    assert_rc_ok(q4x_run_forward(r, ids, 3, 0, &err), &err);
    const int64_t waits = waits_for_disk() - before;
    print_message("    %lld pages of %zu, %lld with those asked for; then %lld waits\n", (long long)first, pages,
                  (long long)now, (long long)waits);
    free(st);
    free(has);
    q4x_run_free(r);
    q4x_net_close(net);
    return waits;
}

static const char *temporary(void) {
    static char path[4096];
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/q4x-resident-%ld.gguf", tmp ? tmp : "/tmp", (long)getpid());
    return path;
}

static void test_ahead(void **state) {
    const char *path = temporary();
    q4x_geometry g = *q4x_geometry_find("tiny");
    (void)state;
    g.ngram_base = 400009;
    h_synth(path, &g, g.type, 0, 0, 0);
    const int64_t asked = waits_after(path, (int32_t[]){7, 8, 9}),
                  other = waits_after(path, (int32_t[]){7, 9, 8}); /* the twin: other rows */
    assert_true(other >= 8);
    assert_true(4 * asked < other);
    unlink(path);
}

static void test_resident(void **state) {
    (void)state;
#if H_SANITIZER
    print_message("    a sanitizer owns memory\n");
    skip();
#endif
    const char *path = temporary();
    q4x_geometry g = *q4x_geometry_find(is_long ? "qwen3.8-flash-next" : "tiny");
    if (is_long) g.L = 4, g.E = 16, g.V = 4096;
    g.ngram_base = is_long ? 1000003 : 400009;
    h_synth(path, &g, g.type, 0, 0, 0);
    forget(path);
    /* an id has (n - 1) heads rows; where the cache cannot be emptied a fault maps up to 16 pages */
    measure(path, 16, is_long ? 0.05 : 0.25);
    unlink(path);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resident), cmocka_unit_test(test_ahead)};
    is_long = argc > 1 && !strcmp(argv[1], "long");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
