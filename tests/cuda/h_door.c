#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/h_door.h"

void cmd_written(const char *name) {
    (void)name;
}

/* One of the two streams into a file, and back. */
typedef struct {
    FILE *file;
    int fd, saved;
} caught;

static caught take(int fd) {
    caught c = {tmpfile(), fd, dup(fd)};
    assert_true(c.file && c.saved >= 0);
    dup2(fileno(c.file), fd);
    return c;
}

static void give_back(caught *c, char text[HD_SAID]) {
    dup2(c->saved, c->fd);
    close(c->saved);
    rewind(c->file);
    text[fread(text, 1, HD_SAID - 1, c->file)] = 0;
    fclose(c->file);
}

int hd_command(cmd_fn fn, const char *const *args, char out[HD_SAID], char said[HD_SAID]) {
    char *argv[32]; /* which getopt sorts */
    cmd_ctx c = {.exe = "q4x", .argv = argv};
    for (; args[c.argc]; c.argc++) {
        assert_true(c.argc < 31);
        argv[c.argc] = (char *)(uintptr_t)args[c.argc];
    }
    argv[c.argc] = NULL;
    snprintf(c.name, sizeof c.name, "q4x %s", args[0]);
    fflush(stdout);
    fflush(stderr);
    caught o = take(1), e = take(2);
    const int code = fn(c.argc, c.argv, &c);
    fflush(stdout);
    fflush(stderr);
    give_back(&e, said);
    give_back(&o, out);
    return code;
}
