/* t_log.c: the progress line: text, estimate, and silence where there is no terminal. */
#include "tests/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/log.h"

static void test_line(void **state) {
    (void)state;
    char buf[160];
    int n = q4x_log_line(buf, sizeof buf, "run", 5, 20, 10.0);
    assert_string_equal(buf, "run  [#####...............]  5/20  30 s left");
    assert_int_equal(n, strlen(buf));
    q4x_log_line(buf, sizeof buf, "run", 2, 100, 60.0);
    assert_string_equal(buf, "run  [....................]  2/100  49 min left");
    q4x_log_line(buf, sizeof buf, "run", 1, 1000, 60.0);
    assert_string_equal(buf, "run  [....................]  1/1000  16.6 h left");
    q4x_log_line(buf, sizeof buf, "run", 20, 20, 10.0);
    assert_string_equal(buf, "run  [####################]  20/20  0 s left");
    q4x_log_line(buf, sizeof buf, "read", 7, 0, 1.0); /* total unknown */
    assert_string_equal(buf, "read  7");
    q4x_log_line(buf, sizeof buf, "read", 9, 7, 1.0); /* more than promised: no estimate */
    assert_string_equal(buf, "read  9");
}

/* Progress on a pipe leaves no byte, talk leaves its line. */
static void test_pipe_is_no_terminal(void **state) {
    (void)state;
    int fd[2];
    char got[64] = "";
    assert_int_equal(pipe(fd), 0);
    FILE *f = fdopen(fd[1], "w");
    q4x_log l;
    q4x_log_init(&l, f, 0, 1);
    assert_int_equal(l.terminal, 0);
    l.drawn -= 1000;
    q4x_log_progress(&l, "run", 1, 2);
    q4x_log_say(&l, 1, "too quiet to be heard");
    q4x_log_say(&l, 0, "said %d", 1);
    q4x_log_done(&l);
    fclose(f);
    ssize_t n = read(fd[0], got, sizeof got - 1);
    close(fd[0]);
    assert_int_equal(n, 7);
    assert_string_equal(got, "said 1\n");
}

/* The twin: on a terminal it is drawn, at most six times a second, and wiped before other text. */
static void test_terminal(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master)) {
        print_message("no pseudo-terminal here\n");
        skip();
    }
    FILE *f = fopen(ptsname(master), "w");
    assert_non_null(f);
    q4x_log l;
    q4x_log_init(&l, f, 0, 1);
    assert_int_equal(l.terminal, 1);
    q4x_log_progress(&l, "run", 1, 2); /* within the first period: not drawn */
    assert_int_equal(l.width, 0);
    l.drawn -= 1000;
    q4x_log_progress(&l, "run", 1, 2);
    assert_true(l.width > 20);
    int width = l.width;
    double drawn = l.drawn;
    q4x_log_progress(&l, "run", 2, 2); /* too early again */
    assert_true(l.drawn == drawn && l.width == width);
    q4x_log_say(&l, 0, "x");
    assert_int_equal(l.width, 0);
    fclose(f);
    close(master);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_line), cmocka_unit_test(test_pipe_is_no_terminal),
                                       cmocka_unit_test(test_terminal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
