/* t_io.c: mappings, the cursor in memory and through its window, the writer that renames, hex, and the name table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/doomed.h"
#include "lib/io.h"
#include "lib/names.h"
#include "tests/h_gguf.h"

static char dir[] = "/tmp/q4x-io-XXXXXX";
static char path[64], other[64];

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/a", dir);
    snprintf(other, sizeof other, "%s/b", dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

static int files_in_dir(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* What a killed process left is named as a temporary. */
static void drop_temporaries(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
        if (strstr(name, ".tmp")) unlink(name);
    }
    closedir(d);
}

/* The file's bytes are exactly these. */
static void holds(const char *name, const void *data, size_t n) {
    q4x_map m;
    assert_int_equal(q4x_map_open(name, &m, NULL), 0);
    assert_true(m.size == n && (n == 0 || !memcmp(m.data, data, n)));
    q4x_map_close(&m);
}

/* ---- mapping ---- */

static void test_map(void **state) {
    (void)state;
    q4x_map m = {.fd = 77};
    q4x_err err = {0};
    assert_int_equal(q4x_map_open(path, &m, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(q4x_map_open(dir, &m, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "found a folder"));
    assert_int_equal(q4x_map_open("/dev/zero", &m, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "/dev/zero: expected a regular file"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(q4x_map_open(path, &m, &err), Q4X_E_IO); /* and does not wait for a writer */
    assert_int_equal(m.fd, 77);
    unlink(path);
    h_write_file(path, "", 0);
    assert_int_equal(q4x_map_open(path, &m, &err), 0);
    assert_true(m.size == 0 && !m.data);
    q4x_map_close(&m);
    h_write_file(path, "hello", 5);
    assert_int_equal(q4x_map_open(path, &m, &err), 0);
    assert_true(m.size == 5 && !memcmp(m.data, "hello", 5));
    assert_int_equal(q4x_map_check(&m, path, &err), 0);
    q4x_map_scattered(&m, 0, 5); /* advice, whatever the range: the bytes stay */
    q4x_map_scattered(&m, 6, 1);
    q4x_map_scattered(&m, 1, UINT64_MAX);
    q4x_map_wanted(&m, 4, 1);
    q4x_map_wanted(&m, 5, 1);
    q4x_map_wanted(&m, 1, UINT64_MAX);
    assert_memory_equal(m.data, "hello", 5);
    assert_int_equal(truncate(path, 9), 0); /* longer is no harm */
    assert_int_equal(q4x_map_check(&m, path, &err), 0);
    assert_int_equal(truncate(path, 4), 0);
    assert_int_equal(q4x_map_check(&m, path, &err), Q4X_E_TRUNCATED);
    assert_true(strstr(err.msg, path) && strstr(err.msg, "had 5 bytes") && strstr(err.msg, "has 4 now"));
    q4x_map_close(&m);
    assert_int_equal(m.fd, -1);
    q4x_map_close(&m); /* twice is fine */
    q4x_map v = q4x_map_mem("abc", 3);
    assert_int_equal(q4x_map_check(&v, "v", &err), 0);
    q4x_map_scattered(&v, 0, 3);
    q4x_map_wanted(&v, 0, 3);
    q4x_map_close(&v);
    unlink(path);
}

static void test_tail(void **state) {
    (void)state;
    char longer[300];
    memset(longer, 'x', sizeof longer);
    longer[299] = 0;
    assert_string_equal(q4x_tail("a/b"), "a/b");
    assert_true(strlen(q4x_tail(longer)) == 160 && q4x_tail(longer) + 160 == longer + 299);
}

/* ---- cursor ---- */

/* The same walk over the same bytes, once in memory and once through the window: takes and skips of many sizes. */
static void test_cursor(void **state) {
    (void)state;
    size_t n = 300001;
    uint8_t *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(i * 2654435761u >> 24);
    h_write_file(path, p, n);
    q4x_map f, v = q4x_map_mem(p, n);
    q4x_cur a, b;
    assert_int_equal(q4x_map_open(path, &f, NULL), 0);
    for (uint32_t seed = 1; seed < 40; seed++) {
        assert_int_equal(q4x_cur_open(&f, &a, NULL), 0);
        assert_int_equal(q4x_cur_open(&v, &b, NULL), 0);
        uint32_t r = seed;
        for (int step = 0;; step++) {
            r = r * 1664525u + 1013904223u;
            uint64_t k = (r >> 8) % (step % 5 == 0 ? Q4X_CUR_TAKE + 1 : 40);
            int ok = k <= n - b.pos;
            assert_int_equal(q4x_cur_need(&a, k), ok);
            const uint8_t *x = NULL, *y = NULL;
            uint64_t at = b.pos;
            q4x_err ea = {0}, eb = {0};
            int ra = step % 7 == 6 ? q4x_cur_skip(&a, k, "f", &ea) : q4x_cur_take(&a, k, "f", &x, &ea);
            int rb = step % 7 == 6 ? q4x_cur_skip(&b, k, "f", &eb) : q4x_cur_take(&b, k, "f", &y, &eb);
            assert_true(ra == rb && ra == (ok ? 0 : Q4X_E_TRUNCATED) && a.pos == b.pos && a.pos <= n);
            assert_string_equal(ea.msg, eb.msg);
            if (!ok) {
                assert_true(a.pos == at && strstr(ea.msg, "f at byte ") && strstr(ea.msg, "before the end"));
                break;
            }
            assert_true(a.pos == at + k);
            if (x) assert_true(k == 0 || (!memcmp(x, p + at, k) && y == p + at));
        }
        q4x_cur_close(&a);
        q4x_cur_close(&b);
    }
    q4x_map_close(&f);
    unlink(path);
    free(p);
}

static void test_cursor_ends(void **state) {
    (void)state;
    static const uint8_t bytes[13] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
    q4x_map v = q4x_map_mem(bytes, sizeof bytes);
    q4x_cur c;
    uint32_t a = 77;
    uint64_t b = 77;
    q4x_err err = {0};
    assert_int_equal(q4x_cur_open(&v, &c, NULL), 0);
    assert_true(!q4x_cur_need(&c, UINT64_MAX) && !q4x_cur_need(&c, 14) && q4x_cur_need(&c, 13));
    assert_int_equal(q4x_cur_u32(&c, "a", &a, &err), 0);
    assert_int_equal(a, 0x04030201);
    assert_int_equal(q4x_cur_u64(&c, "b", &b, &err), 0);
    assert_true(b == 0x0c0b0a0908070605);
    assert_int_equal(q4x_cur_u32(&c, "c", &a, &err), Q4X_E_TRUNCATED);
    assert_string_equal(err.msg, "c at byte 12: expected 4 more bytes, found 1 before the end of the file");
    assert_int_equal(q4x_cur_skip(&c, UINT64_MAX, "d", &err), Q4X_E_TRUNCATED);
    assert_true(a == 0x04030201 && c.pos == 12);
    q4x_cur_close(&c);
    v = q4x_map_mem(NULL, 0);
    assert_int_equal(q4x_cur_open(&v, &c, NULL), 0);
    const uint8_t *p = NULL;
    assert_int_equal(q4x_cur_take(&c, 0, "e", &p, &err), 0);
    assert_int_equal(q4x_cur_take(&c, 1, "e", &p, &err), Q4X_E_TRUNCATED);
    q4x_cur_close(&c);
}

/* ---- writer ---- */

static void test_out(void **state) {
    (void)state;
    size_t n = 210000;
    uint8_t *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(i ^ i >> 8);
    q4x_out *o = NULL;
    q4x_err err = {0};
    /* sizes around the buffer's, in every order */
    static const size_t cuts[] = {1, 65535, 1, 65536, 0, 2, 65537, 3};
    assert_int_equal(q4x_out_open(path, &o, &err), 0);
    size_t at = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        assert_int_equal(q4x_out_write(o, p + at, cuts[i], &err), 0);
        at += cuts[i];
        assert_true(q4x_out_pos(o) == at);
    }
    assert_int_equal(q4x_out_zeros(o, 5000, &err), 0);
    assert_true(access(path, F_OK) != 0); /* nothing under the name before close */
    assert_int_equal(files_in_dir(), 1);
    assert_int_equal(q4x_out_close(o, &err), 0);
    memset(p + at, 0, n - at);
    assert_true(at + 5000 <= n);
    holds(path, p, at + 5000);
    assert_int_equal(files_in_dir(), 1);
    /* replacing: the old file stays until close, and its mode stays after */
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(q4x_out_open(path, &o, &err), 0);
    assert_int_equal(q4x_out_write(o, "new", 3, &err), 0);
    holds(path, p, at + 5000);
    assert_int_equal(q4x_out_close(o, &err), 0);
    holds(path, "new", 3);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    /* giving up leaves the old file and nothing else */
    assert_int_equal(q4x_out_open(path, &o, &err), 0);
    assert_int_equal(q4x_out_write(o, p, n, &err), 0);
    assert_int_equal(files_in_dir(), 2);
    q4x_out_abort(o);
    q4x_out_abort(NULL);
    holds(path, "new", 3);
    assert_int_equal(files_in_dir(), 1);
    /* sealed: all is on the disk, nothing under the name yet */
    assert_int_equal(q4x_out_open(path, &o, &err), 0);
    assert_int_equal(q4x_out_write(o, p, n, &err), 0);
    assert_int_equal(q4x_out_seal(o, &err), 0);
    holds(path, "new", 3);
    assert_int_equal(files_in_dir(), 2);
    assert_int_equal(q4x_out_close(o, &err), 0);
    holds(path, p, n);
    assert_int_equal(q4x_out_open(path, &o, &err), 0);
    assert_int_equal(q4x_out_seal(o, &err), 0);
    q4x_out_abort(o);
    holds(path, p, n);
    assert_int_equal(files_in_dir(), 1);
    /* an empty file is a file */
    assert_int_equal(q4x_out_open(path, &o, &err), 0);
    assert_int_equal(q4x_out_close(o, &err), 0);
    holds(path, "", 0);
    unlink(path);
    free(p);
}

/* What is taken back is gone, whether it was buffered or written; through a pipe it is refused. */
static void test_out_back(void **state) {
    (void)state;
    q4x_err err = {0};
    q4x_out *o = NULL;
    static char big[200000];
    memset(big, 'x', sizeof big);
    for (size_t n = 1; n <= sizeof big; n *= n < 1000 ? 999 : 200) {
        assert_int_equal(q4x_out_open(path, &o, &err), 0);
        assert_int_equal(q4x_out_write(o, "abc", 3, &err), 0);
        assert_int_equal(q4x_out_write(o, big, n, &err), 0);
        assert_int_equal(q4x_out_back(o, 2, &err), 0);
        assert_true(q4x_out_pos(o) == 2);
        assert_int_equal(q4x_out_write(o, "d", 1, &err), 0);
        assert_int_equal(q4x_out_close(o, &err), 0);
        holds(path, "abd", 3);
    }
    assert_int_equal(q4x_out_open("/dev/null", &o, &err), 0);
    assert_int_equal(q4x_out_write(o, big, sizeof big, &err), 0);
    assert_int_equal(q4x_out_back(o, 2, &err), Q4X_E_UNSUPPORTED);
    assert_int_equal(q4x_out_write(o, "abc", 3, &err), 0);
    assert_int_equal(q4x_out_back(o, sizeof big + 1, &err), 0); /* still buffered */
    q4x_out_abort(o);
    unlink(path);
}

static void test_out_links(void **state) {
    (void)state;
    q4x_out *o = NULL;
    q4x_err err = {0};
    h_write_file(path, "old", 3);
    assert_int_equal(symlink("a", other), 0);
    assert_int_equal(q4x_out_open(other, &o, &err), 0);
    assert_int_equal(q4x_out_write(o, "through", 7, &err), 0);
    assert_int_equal(q4x_out_close(o, &err), 0);
    holds(path, "through", 7);
    struct stat st;
    assert_true(!lstat(other, &st) && S_ISLNK(st.st_mode)); /* still a link */
    unlink(path);
    assert_int_equal(q4x_out_open(other, &o, &err), Q4X_E_IO); /* it leads nowhere now */
    assert_non_null(strstr(err.msg, other));
    unlink(other);
    assert_int_equal(q4x_out_open(dir, &o, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "is a folder"));
    snprintf(other, sizeof other, "%s/no/such/b", dir);
    assert_int_equal(q4x_out_open(other, &o, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "no/such/b: cannot create"));
    snprintf(other, sizeof other, "%s/b", dir);
    assert_int_equal(files_in_dir(), 0);
}

/* /dev/full takes nothing: a large write fails at once, a small one at close; the device stays what it is. */
static void test_out_full(void **state) {
    (void)state;
    static const uint8_t big[200000];
    struct stat before, after;
    assert_int_equal(stat("/dev/full", &before), 0);
    q4x_out *o = NULL;
    q4x_err err = {0};
    assert_int_equal(q4x_out_open("/dev/full", &o, &err), 0);
    assert_int_equal(q4x_out_write(o, big, sizeof big, &err), Q4X_E_FULL);
    assert_true(strstr(err.msg, "/dev/full: cannot write after 0 bytes") && strstr(err.msg, "free some space"));
    assert_int_equal(q4x_out_write(o, big, 3, &err), 0);  /* into the buffer */
    assert_int_equal(q4x_out_close(o, &err), Q4X_E_FULL); /* which never gets out */
    assert_non_null(strstr(err.msg, "earlier write failed"));
    assert_int_equal(q4x_out_open("/dev/full", &o, &err), 0);
    assert_int_equal(q4x_out_write(o, "abc", 3, &err), 0);
    assert_int_equal(q4x_out_seal(o, &err), Q4X_E_FULL);
    err = (q4x_err){0};
    assert_int_equal(q4x_out_close(o, &err), Q4X_E_FULL);
    assert_non_null(strstr(err.msg, "/dev/full"));
    assert_int_equal(stat("/dev/full", &after), 0);
    assert_true(S_ISCHR(after.st_mode) && after.st_ino == before.st_ino);
    assert_int_equal(q4x_out_open("/dev/null", &o, &err), 0); /* the twin: a device that takes all */
    assert_int_equal(q4x_out_write(o, big, sizeof big, &err), 0);
    assert_int_equal(q4x_out_close(o, &err), 0);
    assert_true(!stat("/dev/null", &after) && S_ISCHR(after.st_mode));
}

/* A file that may not grow: the failure is named, the temporary is gone, the old file is whole. A process that is
 * killed while it writes leaves the old file too. */
static void test_out_cut_short(void **state) {
    (void)state;
    static const uint8_t big[300000];
    h_write_file(path, "old", 3);
    for (int kind = 0; kind < 2; kind++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            struct rlimit lim = {100000, 100000};
            q4x_out *o = NULL;
            q4x_err err = {0};
            signal(SIGXFSZ, SIG_IGN);
            if (kind == 0 && setrlimit(RLIMIT_FSIZE, &lim)) _exit(2);
            if (q4x_out_open(path, &o, &err)) _exit(3);
            int rc = q4x_out_write(o, big, sizeof big, &err);
            if (kind == 1) kill(getpid(), SIGKILL);
            if (rc != Q4X_E_IO || !strstr(err.msg, path)) _exit(4);
            if (q4x_out_write(o, big, sizeof big, &err) != Q4X_E_IO) _exit(5);
            if (q4x_out_close(o, &err) != Q4X_E_IO) _exit(6);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (kind == 0)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else
            assert_true(WIFSIGNALED(status));
        holds(path, "old", 3);
        assert_int_equal(files_in_dir(), kind == 0 ? 1 : 2);
    }
    drop_temporaries();
    assert_int_equal(files_in_dir(), 1);
    unlink(path);
}

/* ---- signals ---- */

static void test_signals(void **state) {
    (void)state;
    static const int sig[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU, SIGKILL};
    enum { N = sizeof sig / sizeof *sig };
    char folder[100], in[120];
    snprintf(folder, sizeof folder, "%s/d", dir);
    snprintf(in, sizeof in, "%s/d/x", dir);
    /* ignored: it stays so, and the file is finished; handled by nobody (the twin): the temporary stays */
    enum { IGNORED = N, UNCAUGHT, KINDS };
    for (int k = 0; k < KINDS; k++) {
        const int s = k < N ? sig[k] : SIGTERM;
        h_write_file(path, "old", 3);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            struct rlimit none = {0, 0};
            q4x_out *o[3];
            q4x_doomed f = {0};
            setrlimit(RLIMIT_CORE, &none);
            for (int i = 0; i < N; i++)
                if (sig[i] != SIGKILL) signal(sig[i], SIG_DFL);
            if (k == IGNORED) signal(s, SIG_IGN);
            if (k != UNCAUGHT) q4x_doom_on_signals();
            for (int i = 0; i < 3; i++)
                if (q4x_out_open(i ? other : path, &o[i], NULL) || q4x_out_write(o[i], "new", 3, NULL)) _exit(2);
            if (q4x_out_close(o[1], NULL)) _exit(3); /* is whole and stays */
            if (mkdir(folder, 0777)) _exit(4);
            q4x_doom(&f, folder);
            h_write_file(in, "x", 1);
            raise(s);
            for (int i = 0; i < 3; i += 2) q4x_out_abort(o[i]);
            if (unlink(in) || rmdir(folder)) _exit(5);
            q4x_pardon(&f);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        const int left = s == SIGKILL || k == UNCAUGHT;
        assert_true(k == IGNORED ? WIFEXITED(status) && !WEXITSTATUS(status)
                                 : WIFSIGNALED(status) && WTERMSIG(status) == s);
        holds(path, "old", 3);
        holds(other, "new", 3);
        assert_int_equal(files_in_dir(), left ? 5 : 2); /* two temporaries and the folder */
        if (left) assert_true(!unlink(in) && !rmdir(folder));
        drop_temporaries();
        assert_int_equal(files_in_dir(), 2);
        unlink(path);
        unlink(other);
    }
}

/* ---- hex ---- */

static void test_hex(void **state) {
    (void)state;
    uint8_t all[256], back[256];
    char text[513];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    q4x_hex(all, 256, text);
    assert_int_equal(strlen(text), 512);
    assert_true(!memcmp(text, "000102", 6) && !memcmp(text + 508, "feff", 5));
    assert_int_equal(q4x_unhex(text, 512, back, 256), 0);
    assert_memory_equal(all, back, 256);
    q4x_hex(all, 0, text);
    assert_string_equal(text, "");
    uint8_t b[2] = {7, 7};
    assert_int_equal(q4x_unhex("aBfF", 4, b, 2), 0);
    assert_true(b[0] == 0xab && b[1] == 0xff);
    static const char *const bad[] = {"-1ff",   "+1ff", "0x1f", " 1ff",  "f",   "fff",
                                      "ffffff", "",     "fg00", "1\0ff", "/:@G"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = i == 9 ? 4 : strlen(bad[i]);
        assert_int_equal(q4x_unhex(bad[i], n, b, 2), -1);
    }
    assert_true(b[0] == 0xab && b[1] == 0xff);
    assert_int_equal(q4x_unhex("", 0, b, 0), 0);
}

/* ---- names ---- */

static void test_names(void **state) {
    (void)state;
    q4x_names t = {0};
    q4x_pool pool = {0};
    enum { N = 5000 };
    char buf[64];
    assert_int_equal(q4x_names_find(&t, "x", 1), -1);
    for (int i = 0; i < N; i++) {
        int len = snprintf(buf, sizeof buf, "name.%d", i);
        char *s = q4x_pool_str(&pool, buf, (size_t)len);
        assert_true(s && !strcmp(s, buf));
        assert_int_equal(q4x_names_add(&t, s, (size_t)len, i), 0);
    }
    char *big = malloc(100000); /* longer than a chunk of the pool */
    assert_non_null(big);
    memset(big, 'y', 100000);
    const char *kept = q4x_pool_str(&pool, big, 100000);
    assert_true(kept && strlen(kept) == 100000 && q4x_pool_str(&pool, "z", 1)[0] == 'z');
    assert_int_equal(q4x_names_add(&t, kept, 100000, N), 0);
    assert_int_equal(q4x_names_find(&t, big, 100000), N);
    assert_int_equal(q4x_names_find(&t, big, 99999), -1);
    assert_int_equal(q4x_names_add(&t, "", 0, N + 1), 0);
    assert_int_equal(q4x_names_find(&t, "", 0), N + 1);
    for (int i = 0; i < N; i++) {
        int len = snprintf(buf, sizeof buf, "name.%d", i);
        assert_int_equal(q4x_names_find(&t, buf, (size_t)len), i);
        assert_int_equal(q4x_names_add(&t, buf, (size_t)len, 9), 1); /* taken: nothing changes */
        assert_int_equal(q4x_names_find(&t, buf, (size_t)len), i);
        assert_int_equal(q4x_names_find(&t, buf, (size_t)len - 1), i < 10 ? -1 : i / 10);
    }
    q4x_names_free(&t);
    q4x_pool_free(&pool);
    q4x_names_free(&t);
    free(big);
}

/* "a,b," as its words; what is longer than the buffer is cut, and the list goes on behind it. */
static void expect_words(const char *list, const char *joined) {
    char word[4], got[64] = "";
    for (const char *p = list; q4x_next_word(&p, word, sizeof word);) {
        strcat(got, "[");
        strcat(got, word);
        strcat(got, "]");
    }
    assert_string_equal(got, joined);
}

static void test_words(void **state) {
    (void)state;
    expect_words("a", "[a]");
    expect_words("a,b", "[a][b]");
    expect_words("", "[]");
    expect_words("a,", "[a][]");
    expect_words(",a", "[][a]");
    expect_words("a,,b", "[a][][b]");
    expect_words("abcd,ef", "[abc][ef]");
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),         cmocka_unit_test(test_tail),          cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_cursor_ends), cmocka_unit_test(test_out),           cmocka_unit_test(test_out_links),
        cmocka_unit_test(test_out_full),    cmocka_unit_test(test_out_cut_short), cmocka_unit_test(test_hex),
        cmocka_unit_test(test_signals),     cmocka_unit_test(test_out_back),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
