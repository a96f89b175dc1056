/* io_out.c: the writer of io.h. */
#include "lib/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/doomed.h"

enum { BUFFER = 65536 };

struct q4x_out {
    char *path;        /* as given: what messages name */
    char *dest;        /* what appears: path, or the target of the link that path is */
    char *temp;        /* what is written; NULL: dest itself */
    q4x_doomed doomed; /* temp, until it is renamed */
    int fd;            /* -1: sealed */
    int failed;        /* the first failure's code: nothing is written after it */
    uint64_t pos;      /* bytes accepted */
    uint64_t done;     /* bytes written */
    size_t used;
    uint8_t *buf; /* [BUFFER] */
};

static int io_error(const q4x_out *o, const char *what, q4x_err *err) {
    int e = errno;
    if (e == ENOSPC || e == EDQUOT)
        return q4x_fail(err, Q4X_E_FULL, "%s: cannot %s after %llu bytes: %s; free some space or write elsewhere",
                        q4x_tail(o->path), what, (unsigned long long)o->done, strerror(e));
    return q4x_fail(err, Q4X_E_IO, "%s: cannot %s: %s", q4x_tail(o->path), what, strerror(e));
}

static void out_free(q4x_out *o) {
    q4x_pardon(&o->doomed);
    free(o->path);
    free(o->dest);
    free(o->temp);
    free(o->buf);
    free(o);
}

/* Create dest.XXXXXXXX.tmp. The mode is the process's default, or that of the file that will be replaced. */
static int open_temp(q4x_out *o, const struct stat *old, q4x_err *err) {
    size_t cap = strlen(o->dest) + 16;
    o->temp = malloc(cap);
    if (!o->temp) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to write it", q4x_tail(o->path));
    uint32_t r = (uint32_t)getpid() * 2654435761u;
    for (int i = 0; i < 16; i++) {
        if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r) r += 0x9e3779b9u;
        snprintf(o->temp, cap, "%s.%08x.tmp", o->dest, (unsigned)r);
        o->fd = open(o->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0 || errno != EEXIST) break;
    }
    if (o->fd < 0) {
        int e = errno;
        free(o->temp); /* not ours to remove */
        o->temp = NULL;
        errno = e;
        return io_error(o, "create", err);
    }
    q4x_doom(&o->doomed, o->temp);
    if (old && fchmod(o->fd, old->st_mode & 0777)) return io_error(o, "set the mode", err);
    return 0;
}

/* 1 when this process reads that file now: a mapped input stays open. 0, 1 and 2 are the caller's. */
static int is_input(const struct stat *st) {
    enum { MOST = 4096 };
    const long open_max = sysconf(_SC_OPEN_MAX);
    struct stat in;
    for (int fd = 3; fd < MOST && fd < open_max; fd++)
        if (!fstat(fd, &in) && in.st_dev == st->st_dev && in.st_ino == st->st_ino) return 1;
    return 0;
}

/* Where the bytes go: path itself when it is there and no regular file, else a temporary beside what it names. */
static int open_dest(q4x_out *o, q4x_err *err) {
    struct stat st;
    int there = !stat(o->path, &st);
    if (there && S_ISDIR(st.st_mode)) return q4x_fail(err, Q4X_E_IO, "%s: is a folder", q4x_tail(o->path));
    if (there && !S_ISREG(st.st_mode)) {
        o->fd = open(o->path, O_WRONLY | O_CLOEXEC);
        return o->fd < 0 ? io_error(o, "open", err) : 0;
    }
    if (there && is_input(&st))
        return q4x_fail(err, Q4X_E_IO, "%s: is read by this command; write to another file", q4x_tail(o->path));
    struct stat link;
    if (!lstat(o->path, &link) && S_ISLNK(link.st_mode)) {
        o->dest = realpath(o->path, NULL);
        if (!o->dest) return io_error(o, "follow the link", err);
    } else {
        o->dest = strdup(o->path);
        if (!o->dest) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to write it", q4x_tail(o->path));
    }
    return open_temp(o, there ? &st : NULL, err);
}

int q4x_out_open(const char *path, q4x_out **ret, q4x_err *err) {
    int rc = 0;
    q4x_out *o = calloc(1, sizeof *o);
    if (!o) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to write it", q4x_tail(path));
    o->fd = -1;
    o->path = strdup(path);
    o->buf = malloc(BUFFER);
    if (!o->path || !o->buf) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to write it", q4x_tail(path)));
    TRY(open_dest(o, err));
    *ret = o;
    o = NULL;
done:
    q4x_out_abort(o);
    return rc;
}

static int write_all(q4x_out *o, const uint8_t *p, size_t n, q4x_err *err) {
    while (n) {
        ssize_t k = write(o->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return o->failed = io_error(o, "write", err);
        p += k;
        n -= (size_t)k;
        o->done += (uint64_t)k;
    }
    return 0;
}

/* Also the gate: after a failed write nothing passes, and close fails. */
static int flush(q4x_out *o, q4x_err *err) {
    if (o->failed) return q4x_fail(err, o->failed, "%s: an earlier write failed", q4x_tail(o->path));
    int rc = write_all(o, o->buf, o->used, err);
    if (!rc) o->used = 0;
    return rc;
}

int q4x_out_write(q4x_out *o, const void *data, size_t n, q4x_err *err) {
    int rc = 0;
    Q4X_BUG_IF(o->fd < 0); /* written to after sealing */
    if (n > BUFFER - o->used) TRY(flush(o, err));
    if (n > BUFFER) {
        TRY(write_all(o, data, n, err));
    } else if (n) {
        memcpy(o->buf + o->used, data, n);
        o->used += n;
    }
    o->pos += n;
done:
    return rc;
}

int q4x_out_zeros(q4x_out *o, uint64_t n, q4x_err *err) {
    static const uint8_t zeros[4096];
    int rc = 0;
    while (n && !rc) {
        size_t k = n < sizeof zeros ? (size_t)n : sizeof zeros;
        rc = q4x_out_write(o, zeros, k, err);
        n -= k;
    }
    return rc;
}

uint64_t q4x_out_pos(const q4x_out *o) {
    return o->pos;
}

int q4x_out_back(q4x_out *o, uint64_t pos, q4x_err *err) {
    Q4X_BUG_IF(o->fd < 0 || pos > o->pos);
    if (o->failed) return q4x_fail(err, o->failed, "%s: an earlier write failed", q4x_tail(o->path));
    if (pos >= o->done) {
        o->used = (size_t)(pos - o->done);
    } else {
        if (!o->temp)
            return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: %llu bytes were sent already", q4x_tail(o->path),
                            (unsigned long long)o->done);
        if (ftruncate(o->fd, (off_t)pos) || lseek(o->fd, (off_t)pos, SEEK_SET) < 0)
            return o->failed = io_error(o, "shorten", err);
        o->done = pos;
        o->used = 0;
    }
    o->pos = pos;
    return 0;
}

int q4x_out_seal(q4x_out *o, q4x_err *err) {
    int rc = 0;
    Q4X_BUG_IF(o->fd < 0);
    TRY(flush(o, err));
    /* A pipe or terminal cannot be synced, and says so; for a real file it is where a late write error shows. */
    if (o->temp && fsync(o->fd)) TRY(io_error(o, "sync", err));
    int fd = o->fd;
    o->fd = -1;
    free(o->buf);
    o->buf = NULL;
    if (close(fd)) TRY(io_error(o, "close", err));
done:
    if (rc && !o->failed) o->failed = rc;
    return rc;
}

int q4x_out_close(q4x_out *o, q4x_err *err) {
    int rc = 0;
    if (o->fd >= 0)
        TRY(q4x_out_seal(o, err));
    else if (o->failed)
        TRY(q4x_fail(err, o->failed, "%s: an earlier write failed", q4x_tail(o->path)));
    if (o->temp && rename(o->temp, o->dest)) TRY(io_error(o, "rename into place", err));
    out_free(o);
    return 0;
done:
    q4x_out_abort(o);
    return rc;
}

void q4x_out_abort(q4x_out *o) {
    if (!o) return;
    if (o->fd >= 0) close(o->fd);
    if (o->temp) unlink(o->temp);
    out_free(o);
}
