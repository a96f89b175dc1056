/* tok_stream.c: ids to text as they come, in whole characters. */
#include <stdlib.h>
#include <string.h>

#include "lib/tok.h"
#include "lib/utf8.h"

enum { LONGEST = 4 };

struct q4x_tok_stream {
    const q4x_tok *t;
    uint8_t tail[LONGEST]; /* the beginning of a character */
    size_t ntail;
    uint8_t *in; /* tail and the bytes of an id */
    char *out;
    size_t cap; /* bytes that `in` holds; `out` holds three for each, and a NUL */
};

static const char replacement[] = "\xef\xbf\xbd";

int q4x_tok_stream_open(const q4x_tok *t, q4x_tok_stream **ret, q4x_err *err) {
    q4x_tok_stream *s = calloc(1, sizeof *s);
    if (!s) return q4x_fail(err, Q4X_E_NOMEM, "no memory to decode ids");
    s->t = t;
    *ret = s;
    return 0;
}

void q4x_tok_stream_close(q4x_tok_stream *s) {
    if (!s) return;
    free(s->in);
    free(s->out);
    free(s);
}

static int room(q4x_tok_stream *s, size_t n, q4x_err *err) {
    if (n <= s->cap && s->cap) return 0;
    size_t cap = s->cap ? s->cap : 64;
    while (cap < n) cap *= 2; /* a token is at most 64 MiB */
    uint8_t *in = realloc(s->in, cap);
    if (in) s->in = in;
    char *out = in ? realloc(s->out, 3 * cap + 1) : NULL;
    if (!out) return q4x_fail(err, Q4X_E_NOMEM, "no memory to decode an id of %zu bytes", n);
    s->out = out;
    s->cap = cap;
    return 0;
}

/* Text of in[0..n); what it ends with unfinished goes to the tail. */
static size_t whole_characters(q4x_tok_stream *s, size_t n) {
    size_t at = 0, o = 0;
    while (at < n) {
        int len = q4x_utf8(s->in + at, n - at);
        if (!len) break;
        size_t k = (size_t)(len > 0 ? len : -len);
        if (len > 0)
            memcpy(s->out + o, s->in + at, k);
        else
            memcpy(s->out + o, replacement, 3);
        o += len > 0 ? k : 3;
        at += k;
    }
    s->ntail = n - at;
    memcpy(s->tail, s->in + at, s->ntail);
    s->out[o] = 0;
    return o;
}

int q4x_tok_stream_add(q4x_tok_stream *s, int32_t id, const char **ret, size_t *ret_n, q4x_err *err) {
    const uint8_t *p;
    size_t n;
    int rc = q4x_tok_bytes(s->t, id, &p, &n, err);
    if (!rc) rc = room(s, s->ntail + n, err);
    if (rc) return rc;
    memcpy(s->in, s->tail, s->ntail);
    if (n) memcpy(s->in + s->ntail, p, n);
    *ret_n = whole_characters(s, s->ntail + n);
    *ret = s->out;
    return 0;
}

int q4x_tok_stream_end(q4x_tok_stream *s, const char **ret, size_t *ret_n, q4x_err *err) {
    int rc = room(s, LONGEST, err);
    if (rc) return rc;
    size_t n = s->ntail ? 3 : 0;
    memcpy(s->out, replacement, n);
    s->out[n] = 0;
    s->ntail = 0;
    *ret = s->out;
    *ret_n = n;
    return 0;
}

/* ---- all at once ---- */

int q4x_tok_text(const q4x_tok *t, const int32_t *ids, int32_t n, char **ret, size_t *ret_n, q4x_err *err) {
    int rc;
    uint8_t *raw = NULL;
    size_t len = 0, o = 0;
    char *out = NULL;
    TRY(q4x_tok_decode(t, ids, n, &raw, &len, err));
    out = len > (SIZE_MAX - 1) / 3 ? NULL : malloc(3 * len + 1);
    if (!out) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for the text of %d ids", n));
    for (size_t at = 0; at < len;) {
        int k = q4x_utf8(raw + at, len - at);
        if (k > 0) {
            memcpy(out + o, raw + at, (size_t)k);
            o += (size_t)k;
            at += (size_t)k;
        } else {
            memcpy(out + o, replacement, 3);
            o += 3;
            at = k ? at + (size_t)-k : len; /* the end cuts a character short */
        }
    }
    out[o] = 0;
    *ret = out;
    *ret_n = o;
    out = NULL;
done:
    free(out);
    free(raw);
    return rc;
}
