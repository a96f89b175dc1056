#include "bisect/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/doomed.h"

#define HOME ".q4x"
enum { PATH = 4096 };

struct bis_session {
    char dir[PATH];
    char journal[PATH + 16];
    int fd;
    int numbered, kept; /* an own number; an entry was appended */
    q4x_doomed doomed;  /* the folder, while it is numbered and not kept */
};

static int io(q4x_err *err, const char *what, const char *path) {
    return q4x_fail(err, Q4X_E_IO, "session: cannot %s %.200s: %s", what, path, strerror(errno));
}

/* Largest number that a session here has. */
static long last_number(void) {
    long most = 0;
    DIR *d = opendir(HOME);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *end;
        long n = strtol(e->d_name, &end, 10);
        if (end != e->d_name && !*end && n > most && n < 1000000) most = n;
    }
    if (d) closedir(d);
    return most;
}

static int make_numbered(char dir[PATH], q4x_err *err) {
    if (mkdir(HOME, 0777) && errno != EEXIST) return io(err, "make", HOME);
    for (long n = last_number() + 1; n < 1000000; n++) {
        snprintf(dir, PATH, HOME "/%03ld", n);
        if (!mkdir(dir, 0777)) return 0;
        if (errno != EEXIST) return io(err, "make", dir);
    }
    return q4x_fail(err, Q4X_E_IO, "session: " HOME " holds a million sessions; remove some");
}

/* Name the session in .q4x/last, by rename. */
static int name_last(const char *dir, q4x_err *err) {
    char tmp[64];
    snprintf(tmp, sizeof tmp, HOME "/last.%ld", (long)getpid());
    FILE *f = fopen(tmp, "w");
    if (!f) return io(err, "write", tmp);
    int bad = fprintf(f, "%s\n", dir) < 0;
    bad |= fclose(f) != 0;
    if (!bad && !rename(tmp, HOME "/last")) return 0;
    int rc = io(err, "write", HOME "/last");
    unlink(tmp);
    return rc;
}

/* A pipe or a device has no end, or waits for somebody. */
static int check_regular(int fd, const char *path, q4x_err *err) {
    struct stat st;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) return 0;
    return q4x_fail(err, Q4X_E_IO, "session: %.200s: expected a regular file", path);
}

/* A file to read; NULL: see errno, or, 0, it is no regular file. */
static FILE *open_regular(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int bad = fd >= 0 && check_regular(fd, path, NULL);
    FILE *f = fd >= 0 && !bad ? fdopen(fd, "r") : NULL;
    if (!f && fd >= 0) close(fd);
    if (bad) errno = 0;
    return f;
}

int bis_session_open(const char *dir, bis_session **ret, q4x_err *err) {
    int rc;
    bis_session *s = calloc(1, sizeof *s);
    if (!s) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for a session");
    s->fd = -1;
    if (!dir) {
        TRY(make_numbered(s->dir, err));
        q4x_doom(&s->doomed, s->dir);
    } else if (strlen(dir) >= sizeof s->dir) {
        TRY(q4x_fail(err, Q4X_E_ARG, "session: the path is too long"));
    } else {
        snprintf(s->dir, sizeof s->dir, "%s", dir);
        if (mkdir(dir, 0777) && errno != EEXIST) TRY(io(err, "make", dir));
    }
    snprintf(s->journal, sizeof s->journal, "%s/journal.jsonl", s->dir);
    s->fd = open(s->journal, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (s->fd < 0) TRY(io(err, "open", s->journal));
    TRY(check_regular(s->fd, s->journal, err));
    if (flock(s->fd, LOCK_EX | LOCK_NB))
        TRY(q4x_fail(err, Q4X_E_IO, "session %.200s is in use by another process; wait for it or name another",
                     s->dir));
    s->numbered = !dir;
    *ret = s;
    return 0;
done:
    bis_session_close(s);
    return rc;
}

void bis_session_close(bis_session *s) {
    if (!s) return;
    q4x_pardon(&s->doomed);
    if (s->numbered && !s->kept) { /* nothing came of it: the number is free again */
        unlink(s->journal);
        rmdir(s->dir);
    }
    if (s->fd >= 0) close(s->fd);
    free(s);
}

const char *bis_session_dir(const bis_session *s) {
    return s->dir;
}

int bis_session_append(bis_session *s, const json_t *entry, q4x_err *err) {
    char *text = json_dumps(entry, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for a journal entry");
    size_t n = strlen(text), at = 0;
    text[n++] = '\n'; /* in place of the terminator */
    int rc = 0;
    while (at < n && !rc) {
        ssize_t k = write(s->fd, text + at, n - at);
        if (k > 0)
            at += (size_t)k;
        else if (!(k < 0 && errno == EINTR))
            rc = io(err, "append to", s->journal);
    }
    free(text);
    if (rc) return rc;
    s->kept = 1;
    q4x_pardon(&s->doomed);
    if (s->numbered) return name_last(s->dir, err);
    mkdir(HOME, 0777); /* a convenience, where this directory can be written */
    name_last(s->dir, NULL);
    return 0;
}

/* Entries are whole lines; what a killed process left of a last one is no entry. */
static json_t *next_entry(FILE *f, char **line, size_t *size) {
    for (ssize_t n; (n = getline(line, size, f)) > 0;) {
        if ((*line)[n - 1] != '\n') return NULL;
        json_t *j = json_loadb(*line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(j)) return j;
        json_decref(j);
    }
    return NULL;
}

static int same(const json_t *j, const char *key, const char *value) {
    const char *s = json_string_value(json_object_get(j, key));
    return s && value && !strcmp(s, value);
}

static int same_levers(const json_t *j, const json_t *levers) {
    const json_t *l = json_object_get(j, "levers");
    return json_is_object(l) && json_equal(l, levers);
}

int bis_session_has_null(const bis_session *s, const char *fingerprint, const char *kernels, const json_t *levers_a,
                         const json_t *levers_b) {
    FILE *f = open_regular(s->journal);
    char *line = NULL;
    size_t size = 0;
    int found = 0;
    for (json_t *j; f && !found && (j = next_entry(f, &line, &size)); json_decref(j))
        found = json_is_true(json_object_get(j, "device_null")) && same(j, "fingerprint", fingerprint) &&
                same(j, "kernels", kernels) && (same_levers(j, levers_a) || same_levers(j, levers_b));
    free(line);
    if (f) fclose(f);
    return found;
}

static int last_dir(char dir[PATH], q4x_err *err) {
    FILE *f = open_regular(HOME "/last");
    int ok = f && fgets(dir, PATH, f);
    if (f) fclose(f);
    if (!ok)
        return q4x_fail(err, Q4X_E_ARG, "no session here yet (" HOME "/last): run q4x bisect first, or name two dumps");
    dir[strcspn(dir, "\n")] = 0;
    return 0;
}

static int is_session(const char *dir) {
    char path[PATH + 16];
    snprintf(path, sizeof path, "%s/journal.jsonl", dir);
    return !access(path, R_OK);
}

int bis_session_last(const char *name, json_t **ret, q4x_err *err) {
    char dir[PATH], path[PATH + 16], *line = NULL;
    size_t size = 0;
    json_t *last = NULL;
    if (!name) {
        int rc = last_dir(dir, err);
        if (rc) return rc;
    } else {
        snprintf(dir, sizeof dir, "%s", name);
        if (!is_session(dir)) snprintf(dir, sizeof dir, HOME "/%.4000s", name);
    }
    snprintf(path, sizeof path, "%s/journal.jsonl", dir);
    FILE *f = open_regular(path);
    if (!f)
        return q4x_fail(err, Q4X_E_IO, "session %.200s: cannot open its journal: %s", name ? name : dir,
                        errno ? strerror(errno) : "expected a regular file");
    for (json_t *j; (j = next_entry(f, &line, &size)); last = j) json_decref(last);
    free(line);
    fclose(f);
    if (!last) return q4x_fail(err, Q4X_E_FORMAT, "session %.200s: its journal holds no complete entry", dir);
    *ret = last;
    return 0;
}
