/* io.h: files. A read-only mapping, a bounds-checked cursor, a writer whose file appears by rename, hex.
 *
 * A mapping's size is what fstat said after opening; nothing reads past it. The cursor reads a mapped file with pread
 * through a small window, so that a file cut short while its header is parsed is an error and not a signal. The
 * writer checks every write, flush and close; a full disk is Q4X_E_FULL and names the file.
 */
#ifndef Q4X_IO_H
#define Q4X_IO_H

#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

/* The last 160 bytes of a path, so that a message keeps its facts however long the path is. */
const char *q4x_tail(const char *path);

/* ---- reading ---- */

/* A file as bytes. fd -1: memory that somebody else owns (tests, fuzzing). */
typedef struct {
    const uint8_t *data; /* NULL when size is 0 */
    uint64_t size;
    int fd;
} q4x_map;

/* Map a regular file read-only. Anything else (folder, pipe, device) is Q4X_E_IO. */
int q4x_map_open(const char *path, q4x_map *ret, q4x_err *err);
/* A view of n bytes of memory; closing it frees nothing. */
q4x_map q4x_map_mem(const void *data, size_t n);
/* Q4X_E_TRUNCATED when the file is shorter now than when it was mapped: call before touching pages. */
int q4x_map_check(const q4x_map *m, const char *path, q4x_err *err);
/* Advice: bytes [off, off + n) will be read here and there, so nothing around a page that is needed should be read with
 * it. Whole pages within the range are meant; memory of others (fd -1) is left alone. */
void q4x_map_scattered(const q4x_map *m, uint64_t off, uint64_t n);
/* Bytes [off, off + n) are done with: their whole pages leave this process's memory, and come back when they are read
 * again. Memory of others is left alone. */
void q4x_map_release(const q4x_map *m, uint64_t off, uint64_t n);
/* Bytes [off, off + n) will be read soon: the pages that they lie in begin to come, and nobody waits for them. */
void q4x_map_wanted(const q4x_map *m, uint64_t off, uint64_t n);
void q4x_map_close(q4x_map *m); /* a zeroed q4x_map with fd -1 is fine */

/* The cursor. pos <= size always. Failures say field, byte position, expected and found, not the file: the caller
 * puts that in front (q4x_err_prefix). */
enum { Q4X_CUR_TAKE = 65536 }; /* most bytes of one take through a window */

typedef struct {
    const uint8_t *mem; /* whole content, or NULL: read through the window */
    int fd;
    uint64_t size, pos;
    uint8_t *win; /* owned */
    uint64_t win_off;
    size_t win_len;
} q4x_cur;

/* Starts at 0. The map must outlive the cursor. Allocates the window when the map has an fd. */
int q4x_cur_open(const q4x_map *m, q4x_cur *ret, q4x_err *err);
void q4x_cur_close(q4x_cur *c);
/* 1 when n more bytes are there. */
static inline int q4x_cur_need(const q4x_cur *c, uint64_t n) {
    return n <= c->size - c->pos;
}
/* The next n bytes, valid until the next call; advances. n <= Q4X_CUR_TAKE unless the content is in memory. */
int q4x_cur_take(q4x_cur *c, uint64_t n, const char *field, const uint8_t **ret, q4x_err *err);
int q4x_cur_skip(q4x_cur *c, uint64_t n, const char *field, q4x_err *err);
int q4x_cur_u32(q4x_cur *c, const char *field, uint32_t *ret, q4x_err *err);
int q4x_cur_u64(q4x_cur *c, const char *field, uint64_t *ret, q4x_err *err);

/* ---- writing ---- */

typedef struct q4x_out q4x_out;

/* Begin a file that will be called path. It is written under a temporary name in the same folder and renamed by
 * close, keeping the mode of a file that was there; through a symbolic link the target is replaced. A signal that ends
 * the process removes the temporary (doomed.h). A path that is there and no regular file (/dev/stdout, a pipe) is
 * written directly. */
int q4x_out_open(const char *path, q4x_out **ret, q4x_err *err);
int q4x_out_write(q4x_out *o, const void *data, size_t n, q4x_err *err);
int q4x_out_zeros(q4x_out *o, uint64_t n, q4x_err *err); /* n zero bytes: padding */
uint64_t q4x_out_pos(const q4x_out *o);                  /* bytes written so far */
/* Take back what was written from byte pos on, so that the next write is at pos. Only of a file under a temporary name,
 * or while the bytes are still buffered; Q4X_E_UNSUPPORTED when they have left through a pipe. */
int q4x_out_back(q4x_out *o, uint64_t pos, q4x_err *err);
/* Flush, sync and close the file: all that close does but the rename, for files that must appear together. What is held
 * open and buffered is given back; nothing may be written after it. A failure shows at close again. */
int q4x_out_seal(q4x_out *o, q4x_err *err);
/* Seal, unless that is done, and rename. Frees o, also on failure (the temporary is gone then, an older file is
 * untouched). */
int q4x_out_close(q4x_out *o, q4x_err *err);
void q4x_out_abort(q4x_out *o); /* NULL is fine */

/* ---- hex ---- */

void q4x_hex(const void *data, size_t n, char *out); /* 2 n lower-case digits and a NUL */
/* Exactly 2 n hex digits, no sign, no blanks: 0, else -1 with out untouched. */
int q4x_unhex(const char *text, size_t text_len, void *out, size_t n);

#endif
