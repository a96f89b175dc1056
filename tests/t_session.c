/* Sessions: numbers are taken once, a named one is locked, entries are whole lines, the last is found again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bisect/session.h"
#include "lib/doomed.h"

static char dir[] = "/tmp/q4x-session-XXXXXX", home[4096];

static int enter(void **s) {
    (void)s;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return !getcwd(home, sizeof home) || !mkdtemp(dir) || chdir(dir);
}

static int leave(void **s) {
    (void)s;
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return chdir(home) || system(cmd);
}

static json_t *entry(int n, int null) {
    return json_pack("{s:i, s:b, s:s, s:s, s:{s:s}}", "n", n, "device_null", null, "fingerprint", "00ff", "kernels",
                     "11aa", "levers", "act", "f32");
}

static void add(const char *name, int n, int null) {
    bis_session *x = NULL;
    json_t *e = entry(n, null);
    assert_int_equal(bis_session_open(name, &x, NULL), 0);
    assert_int_equal(bis_session_append(x, e, NULL), 0);
    bis_session_close(x);
    json_decref(e);
}

static int last(const char *name) {
    json_t *e = NULL;
    if (bis_session_last(name, &e, NULL)) return -1;
    int n = (int)json_integer_value(json_object_get(e, "n"));
    json_decref(e);
    return n;
}

static void numbers(void **s) {
    (void)s;
    assert_int_equal(last(NULL), -1); /* none yet */
    add(NULL, 1, 0);
    add(NULL, 2, 0);
    assert_int_equal(access(".q4x/001/journal.jsonl", F_OK), 0);
    assert_int_equal(access(".q4x/002/journal.jsonl", F_OK), 0);
    assert_int_equal(last(NULL), 2);
    assert_int_equal(last("001"), 1);
    assert_int_equal(last(".q4x/001"), 1);
    assert_int_equal(last("009"), -1);
    bis_session *x = NULL; /* one that comes to nothing gives its number back, and is not the last */
    assert_int_equal(bis_session_open(NULL, &x, NULL), 0);
    assert_string_equal(bis_session_dir(x), ".q4x/003");
    bis_session_close(x);
    assert_int_not_equal(access(".q4x/003", F_OK), 0);
    assert_int_equal(last(NULL), 2);
}

static void named(void **s) {
    (void)s;
    bis_session *x = NULL, *y = NULL;
    q4x_err err = {0};
    add("case", 1, 0);
    add("case", 2, 1);
    assert_int_equal(last("case"), 2);
    assert_int_equal(last(NULL), 2);
    assert_int_equal(bis_session_open("case", &x, &err), 0);
    json_t *f32 = json_pack("{s:s}", "act", "f32"), *bf16 = json_pack("{s:s}", "act", "bf16");
    assert_int_equal(bis_session_has_null(x, "00ff", "11aa", f32, bf16), 1);
    assert_int_equal(bis_session_has_null(x, "00ff", "11aa", bf16, f32), 1);
    assert_int_equal(bis_session_has_null(x, "00ff", "11aa", bf16, bf16), 0); /* what f32 does says nothing of it */
    assert_int_equal(bis_session_has_null(x, "00ff", "11aa", NULL, NULL), 0);
    assert_int_equal(bis_session_has_null(x, "00fe", "11aa", f32, f32), 0);
    assert_int_equal(bis_session_has_null(x, "00ff", "22bb", f32, f32), 0);
    assert_int_equal(bis_session_has_null(x, NULL, NULL, f32, f32), 0);
    json_decref(f32);
    json_decref(bf16);
    assert_int_equal(bis_session_open("case", &y, &err), Q4X_E_IO); /* a second user is refused */
    assert_non_null(strstr(err.msg, "in use by another process"));
    bis_session_close(x);
    assert_int_equal(bis_session_open("case", &y, &err), 0);
    bis_session_close(y);
    assert_int_equal(last("case"), 2); /* closing without an entry removes nothing here */
}

static void cut_entries(void **s) {
    (void)s;
    add("case", 7, 0);
    FILE *f = fopen("case/journal.jsonl", "a");
    fputs("not json\n{\"n\":8,\"dev", f); /* a stray line, and what a killed process leaves */
    fclose(f);
    assert_int_equal(last("case"), 7);
    f = fopen("case/journal.jsonl", "w");
    fputs("{\"n\":9}", f);
    fclose(f);
    assert_int_equal(last("case"), -1);
}

static void two_processes_never_share(void **s) {
    (void)s;
    enum { N = 6, EACH = 4 };
    for (int i = 0; i < N; i++) {
        pid_t p = fork();
        if (p) continue;
        for (int k = 0; k < EACH; k++) {
            bis_session *x = NULL;
            json_t *e = entry(i * EACH + k, 0);
            int bad = bis_session_open(NULL, &x, NULL) || bis_session_append(x, e, NULL);
            bis_session_close(x);
            json_decref(e);
            if (bad) _exit(1);
        }
        _exit(0);
    }
    for (int i = 0, st; i < N; i++) {
        assert_true(wait(&st) > 0);
        assert_int_equal(st, 0);
    }
    char seen[N * EACH] = {0};
    for (int i = 1; i <= N * EACH; i++) {
        char name[16];
        snprintf(name, sizeof name, "%03d", i);
        int n = last(name);
        assert_in_range(n, 0, N * EACH - 1);
        assert_int_equal(seen[n]++, 0);
    }
}

static void failures(void **s) {
    (void)s;
    bis_session *x = NULL;
    q4x_err err = {0};
    FILE *f = fopen("file", "w");
    fclose(f);
    assert_int_equal(bis_session_open("file", &x, &err), Q4X_E_IO);
    assert_int_equal(bis_session_open("no/such/place", &x, &err), Q4X_E_IO);
    assert_null(x);
    assert_int_equal(symlink("file", ".q4x"), 0); /* no place for numbers */
    assert_int_equal(bis_session_open(NULL, &x, &err), Q4X_E_IO);
}

/* What has no end, or waits for a writer, is refused and not read. Twin: an empty file is a journal to write to. */
static void no_regular_file(void **s) {
    (void)s;
    static const char *const what[] = {"fifo", "zero", "empty"};
    for (int k = 0; k < 3; k++) {
        char path[40];
        bis_session *x = NULL;
        q4x_err err = {0};
        json_t *e = NULL;
        snprintf(path, sizeof path, "%s/journal.jsonl", what[k]);
        assert_int_equal(mkdir(what[k], 0777), 0);
        if (k == 0) assert_int_equal(mkfifo(path, 0666), 0);
        if (k == 1) assert_int_equal(symlink("/dev/zero", path), 0);
        if (k == 2) close(open(path, O_WRONLY | O_CREAT, 0666));
        assert_int_not_equal(bis_session_last(what[k], &e, &err), 0);
        assert_non_null(strstr(err.msg, k == 2 ? "no complete entry" : "expected a regular file"));
        assert_int_equal(!!bis_session_open(what[k], &x, &err), k != 2);
        bis_session_close(x);
    }
    mkdir(".q4x", 0777);
    assert_int_equal(mkfifo(".q4x/last", 0666), 0);
    assert_int_equal(last(NULL), -1);
}

/* A number that nothing was kept under is free again also when a signal ends the process; one with an entry stays, and
 * what SIGKILL ends, the twin, removes nothing. */
static void signals(void **s) {
    (void)s;
    static const struct { int sig, append, left; } list[] = {{SIGTERM, 0, 0}, {SIGTERM, 1, 1}, {SIGKILL, 0, 1}};
    for (int k = 0; k < 3; k++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            bis_session *x = NULL;
            json_t *e = entry(1, 0);
            signal(SIGTERM, SIG_DFL);
            q4x_doom_on_signals();
            if (bis_session_open(NULL, &x, NULL) || (list[k].append && bis_session_append(x, e, NULL))) _exit(2);
            raise(list[k].sig);
            _exit(3);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == list[k].sig);
        assert_int_equal(!access(".q4x/001", F_OK), list[k].left);
        if (list[k].left) assert_true(!unlink(".q4x/001/journal.jsonl") && !rmdir(".q4x/001"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(numbers, enter, leave),
        cmocka_unit_test_setup_teardown(named, enter, leave),
        cmocka_unit_test_setup_teardown(cut_entries, enter, leave),
        cmocka_unit_test_setup_teardown(two_processes_never_share, enter, leave),
        cmocka_unit_test_setup_teardown(failures, enter, leave),
        cmocka_unit_test_setup_teardown(no_regular_file, enter, leave),
        cmocka_unit_test_setup_teardown(signals, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
