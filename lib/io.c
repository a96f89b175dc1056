#include "lib/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *q4x_tail(const char *path) {
    enum { TAIL = 160 };
    size_t n = strlen(path);
    return n > TAIL ? path + (n - TAIL) : path;
}

/* ---- mapping ---- */

q4x_map q4x_map_mem(const void *data, size_t n) {
    return (q4x_map){.data = data, .size = n, .fd = -1};
}

int q4x_map_open(const char *path, q4x_map *ret, q4x_err *err) {
    int rc = 0;
    struct stat st;
    /* O_NONBLOCK: opening a pipe must not wait for its writer; it is refused below. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return q4x_fail(err, Q4X_E_IO, "%s: cannot open: %s", q4x_tail(path), strerror(errno));
    if (fstat(fd, &st)) TRY(q4x_fail(err, Q4X_E_IO, "%s: cannot stat: %s", q4x_tail(path), strerror(errno)));
    if (!S_ISREG(st.st_mode))
        TRY(q4x_fail(err, Q4X_E_IO, "%s: expected a regular file, found %s", q4x_tail(path),
                     S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe"));
    uint64_t size = (uint64_t)st.st_size;
    if (size > SIZE_MAX / 2) TRY(q4x_fail(err, Q4X_E_IO, "%s: the file is too large to map", q4x_tail(path)));
    void *p = NULL;
    if (size) {
        p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            TRY(q4x_fail(err, Q4X_E_IO, "%s: cannot map %llu bytes: %s", q4x_tail(path), (unsigned long long)size,
                         strerror(errno)));
    }
    *ret = (q4x_map){.data = p, .size = size, .fd = fd};
    return 0;
done:
    close(fd);
    return rc;
}

int q4x_map_check(const q4x_map *m, const char *path, q4x_err *err) {
    struct stat st;
    if (m->fd < 0) return 0;
    if (fstat(m->fd, &st)) return q4x_fail(err, Q4X_E_IO, "%s: cannot stat: %s", q4x_tail(path), strerror(errno));
    if (st.st_size >= 0 && (uint64_t)st.st_size >= m->size) return 0;
    return q4x_fail(err, Q4X_E_TRUNCATED,
                    "%s: the file had %llu bytes when it was opened and has %lld now; something cut it while it was "
                    "in use, open it again",
                    q4x_tail(path), (unsigned long long)m->size, (long long)st.st_size);
}

/* Of the pages within the range, or of all that it touches. A refusal costs speed alone. */
static void advise(const q4x_map *m, uint64_t off, uint64_t n, int touched, int advice) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), more = page - 1;
    if (m->fd < 0 || off > m->size || n > m->size - off) return;
    const uint64_t from = (off + (touched ? 0 : more)) / page * page,
                   to = (off + n + (touched ? more : 0)) / page * page;
    if (to > from) (void)madvise((void *)(uintptr_t)(m->data + from), (size_t)(to - from), advice);
}

void q4x_map_scattered(const q4x_map *m, uint64_t off, uint64_t n) {
    advise(m, off, n, 0, MADV_RANDOM);
}

void q4x_map_release(const q4x_map *m, uint64_t off, uint64_t n) {
    advise(m, off, n, 0, MADV_DONTNEED);
}

void q4x_map_wanted(const q4x_map *m, uint64_t off, uint64_t n) {
    advise(m, off, n, 1, MADV_WILLNEED);
}

void q4x_map_close(q4x_map *m) {
    if (m->fd < 0) return;
    if (m->size) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    close(m->fd);
    *m = (q4x_map){.fd = -1};
}

/* ---- cursor ---- */

int q4x_cur_open(const q4x_map *m, q4x_cur *ret, q4x_err *err) {
    q4x_cur c = {.mem = m->data, .fd = m->fd, .size = m->size};
    if (m->fd >= 0) {
        c.mem = NULL;
        c.win = malloc(Q4X_CUR_TAKE);
        if (!c.win) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a read window");
    }
    *ret = c;
    return 0;
}

void q4x_cur_close(q4x_cur *c) {
    free(c->win);
    *c = (q4x_cur){.fd = -1};
}

static int missing(const q4x_cur *c, uint64_t n, const char *field, q4x_err *err) {
    return q4x_fail(err, Q4X_E_TRUNCATED,
                    "%s at byte %llu: expected %llu more bytes, found %llu before the end of the file", field,
                    (unsigned long long)c->pos, (unsigned long long)n, (unsigned long long)(c->size - c->pos));
}

/* Make bytes pos .. pos+n lie in the window: read from pos on. */
static int refill(q4x_cur *c, uint64_t n, const char *field, q4x_err *err) {
    uint64_t want = c->size - c->pos;
    if (want > Q4X_CUR_TAKE) want = Q4X_CUR_TAKE;
    c->win_off = c->pos;
    c->win_len = 0;
    while (c->win_len < want) {
        ssize_t got = pread(c->fd, c->win + c->win_len, (size_t)want - c->win_len, (off_t)(c->pos + c->win_len));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return q4x_fail(err, Q4X_E_IO, "%s at byte %llu: cannot read: %s", field, (unsigned long long)c->pos,
                            strerror(errno));
        if (got == 0) break;
        c->win_len += (size_t)got;
    }
    if (c->win_len >= n) return 0;
    return q4x_fail(err, Q4X_E_TRUNCATED,
                    "%s at byte %llu: the file had %llu bytes when it was opened and ends at byte %llu now", field,
                    (unsigned long long)c->pos, (unsigned long long)c->size, (unsigned long long)(c->pos + c->win_len));
}

int q4x_cur_take(q4x_cur *c, uint64_t n, const char *field, const uint8_t **ret, q4x_err *err) {
    if (!q4x_cur_need(c, n)) return missing(c, n, field, err);
    if (!c->win) {
        *ret = n ? c->mem + c->pos : (const uint8_t *)"";
        c->pos += n;
        return 0;
    }
    Q4X_BUG_IF(n > Q4X_CUR_TAKE);
    /* pos only moves forward, so it is never before the window. */
    if (c->pos - c->win_off > c->win_len || n > c->win_len - (c->pos - c->win_off)) {
        int rc = refill(c, n, field, err);
        if (rc) return rc;
    }
    *ret = c->win + (c->pos - c->win_off);
    c->pos += n;
    return 0;
}

int q4x_cur_skip(q4x_cur *c, uint64_t n, const char *field, q4x_err *err) {
    if (!q4x_cur_need(c, n)) return missing(c, n, field, err);
    c->pos += n;
    return 0;
}

/* Every format of the house is little-endian, and so are the machines it runs on. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian only");

int q4x_cur_u32(q4x_cur *c, const char *field, uint32_t *ret, q4x_err *err) {
    const uint8_t *p = NULL;
    int rc = q4x_cur_take(c, sizeof *ret, field, &p, err);
    if (!rc) memcpy(ret, p, sizeof *ret);
    return rc;
}

int q4x_cur_u64(q4x_cur *c, const char *field, uint64_t *ret, q4x_err *err) {
    const uint8_t *p = NULL;
    int rc = q4x_cur_take(c, sizeof *ret, field, &p, err);
    if (!rc) memcpy(ret, p, sizeof *ret);
    return rc;
}

/* ---- hex ---- */

void q4x_hex(const void *data, size_t n, char *out) {
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[p[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[p[i] & 15];
    }
    out[2 * n] = 0;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

int q4x_unhex(const char *text, size_t text_len, void *out, size_t n) {
    if (text_len / 2 != n || text_len % 2) return -1;
    for (size_t i = 0; i < text_len; i++)
        if (digit(text[i]) < 0) return -1;
    for (size_t i = 0; i < n; i++) ((uint8_t *)out)[i] = (uint8_t)(digit(text[2 * i]) * 16 + digit(text[2 * i + 1]));
    return 0;
}
