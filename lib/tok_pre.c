/* tok_pre.c: text cut into pieces by a pattern (PCRE2, Unicode classes), and NFC (utf8proc).
 *
 * Patterns are written for another engine. Two things are made alike: \s and \S are Unicode's White_Space (PCRE2's own
 * \s takes U+180E too), and a match's text is all there is, so that look-around ends where the stretch of text ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "lib/tok_int.h"
#include "lib/utf8.h"

/* A file's pattern may be made to take for ever. What one search may take grows with the text, as the longest honest
 * one does: \s*[\r\n]+ looks at every blank of a run and then steps back over it. */
enum { STEPS = 20000, STEPS_PER_BYTE = 16, HEAP_KIB = 65536, NESTING = 100 };

struct q4x_pre {
    pcre2_code *code[Q4X_PRE_MAX_STAGES];
    int n;
    int prefix_at; /* the stage before which a blank is put in front; -1: none is */
};

/* ---- compiling ---- */

/* \s and \S as White_Space, where PCRE2 knows the property (10.40 and later). *ret is malloc'd. */
static int spell_blanks(const char *pattern, char **ret, q4x_err *err) {
    static const char white[] = "\\p{White_Space}";
    size_t n = strlen(pattern), at = 0, k = strlen(white);
    char *s = malloc(n * k + 1);
    if (!s) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a pattern of %zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        int escape = pattern[i] == '\\' && i + 1 < n;
        if (escape && (pattern[i + 1] == 's' || pattern[i + 1] == 'S') && PCRE2_MAJOR * 100 + PCRE2_MINOR >= 1040) {
            memcpy(s + at, white, k);
            if (pattern[++i] == 'S') s[at + 1] = 'P';
            at += k;
            continue;
        }
        s[at++] = pattern[i];
        if (escape) s[at++] = pattern[++i];
    }
    s[at] = 0;
    *ret = s;
    return 0;
}

static int compile(const q4x_pre_stage *stage, pcre2_code **ret, q4x_err *err) {
    int rc = 0, code;
    char *text = NULL;
    PCRE2_SIZE at;
    size_t len = strlen(stage->pattern);
    uint32_t options = stage->literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    if (!ctx) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a pattern"));
    if (!len || len > Q4X_PRE_MAX_PATTERN)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "pattern: %zu bytes, expected 1 to %d", len, Q4X_PRE_MAX_PATTERN));
    if (!stage->literal) TRY(spell_blanks(stage->pattern, &text, err));
    pcre2_set_parens_nest_limit(ctx, NESTING);
    *ret = pcre2_compile((PCRE2_SPTR)(text ? text : stage->pattern), PCRE2_ZERO_TERMINATED, options, &code, &at, ctx);
    if (!*ret) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(code, why, sizeof why);
        rc = code == PCRE2_ERROR_HEAP_FAILED ? Q4X_E_NOMEM : Q4X_E_FORMAT;
        TRY(q4x_fail(err, rc, "pattern '%.80s': does not compile: %s", stage->pattern, (const char *)why));
    }
    pcre2_jit_compile(*ret, PCRE2_JIT_COMPLETE); /* where it cannot, the interpreter matches */
done:
    free(text);
    pcre2_compile_context_free(ctx);
    return rc;
}

int q4x_pre_open(const q4x_pre_stage *stage, int n, int prefix_space, int nlast, q4x_pre **ret, q4x_err *err) {
    int rc = 0;
    q4x_pre *p = calloc(1, sizeof *p);
    if (!p) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the pre-tokenizer");
    if (n > Q4X_PRE_MAX_STAGES)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%d patterns, expected at most %d", n, Q4X_PRE_MAX_STAGES));
    p->prefix_at = prefix_space ? n - nlast : -1;
    for (; p->n < n; p->n++) TRY(compile(&stage[p->n], &p->code[p->n], err));
    *ret = p;
    return 0;
done:
    q4x_pre_close(p);
    return rc;
}

void q4x_pre_close(q4x_pre *p) {
    if (!p) return;
    for (int i = 0; i < p->n; i++) pcre2_code_free(p->code[i]);
    free(p);
}

/* ---- cutting ---- */

typedef struct {
    const q4x_pre *p;
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    q4x_pre_fn fn;
    void *fn_ctx;
} cutter;

static int cut(cutter *c, int stage, const uint8_t *text, size_t n, q4x_err *err);

/* A blank in front of the piece, then the stage that wanted it. */
static int cut_prefixed(cutter *c, int stage, const uint8_t *text, size_t n, q4x_err *err) {
    uint8_t *copy = malloc(n + 1);
    if (!copy) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a piece of %zu bytes", n);
    copy[0] = ' ';
    memcpy(copy + 1, text, n);
    int rc = cut(c, stage, copy, n + 1, err);
    free(copy);
    return rc;
}

static int enter(cutter *c, int stage, const uint8_t *text, size_t n, q4x_err *err) {
    if (!n) return 0;
    return (stage == c->p->prefix_at && text[0] != ' ' ? cut_prefixed : cut)(c, stage, text, n, err);
}

/* The first match in text[at..n). 1: there is none. */
static int search(cutter *c, int stage, const uint8_t *text, size_t n, size_t at, size_t match[2], q4x_err *err) {
    const pcre2_code *code = c->p->code[stage];
    pcre2_set_match_limit(c->ctx, (uint32_t)(STEPS + STEPS_PER_BYTE * (n - at)));
    int rc = pcre2_match(code, text, n, at, PCRE2_NO_UTF_CHECK, c->data, c->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* compiled code has little stack; the interpreter takes it from the heap */
        rc = pcre2_match(code, text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->data, c->ctx);
    if (rc == PCRE2_ERROR_NOMATCH) return 1;
    if (rc == PCRE2_ERROR_NOMEMORY) return q4x_fail(err, Q4X_E_NOMEM, "no memory to cut %zu bytes of text", n);
    if (rc < 0) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(rc, why, sizeof why);
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "pattern: gives up at byte %zu of %zu of the text: %s", at, n,
                        (const char *)why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(c->data);
    if (o[0] < at || o[1] < o[0] || o[1] > n) /* \K can put the start anywhere */
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "pattern: its match begins outside of what was searched");
    match[0] = o[0];
    match[1] = o[1];
    return 0;
}

/* The matches and what lies between them. A match of nothing cuts too, but not where the match before ended. */
static int cut(cutter *c, int stage, const uint8_t *text, size_t n, q4x_err *err) {
    if (stage == c->p->n) return c->fn(c->fn_ctx, text, n, err);
    int rc = 0;
    size_t at = 0, done = 0, m[2] = {0, 0};
    for (int first = 1; at <= n; first = 0) {
        rc = search(c, stage, text, n, at, m, err);
        if (rc < 0) return rc;
        if (rc) break;
        if (m[0] == m[1] && !first && m[0] == done) {
            if (at == n) break;
            at += (size_t)q4x_utf8(text + at, n - at);
            continue;
        }
        TRY(enter(c, stage + 1, text + done, m[0] - done, err));
        TRY(enter(c, stage + 1, text + m[0], m[1] - m[0], err));
        at = done = m[1];
    }
    rc = enter(c, stage + 1, text + done, n - done, err);
done:
    return rc;
}

int q4x_pre_cut(const q4x_pre *p, const uint8_t *text, size_t n, q4x_pre_fn fn, void *ctx, q4x_err *err) {
    int rc;
    cutter c = {.p = p, .fn = fn, .fn_ctx = ctx};
    c.data = pcre2_match_data_create(1, NULL);
    c.ctx = pcre2_match_context_create(NULL);
    if (!c.data || !c.ctx) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory to cut %zu bytes of text", n));
    pcre2_set_heap_limit(c.ctx, HEAP_KIB);
    TRY(enter(&c, 0, text, n, err));
done:
    pcre2_match_context_free(c.ctx);
    pcre2_match_data_free(c.data);
    return rc;
}

/* ---- NFC ---- */

int q4x_nfc(const uint8_t *text, size_t n, uint8_t **ret, size_t *ret_n, q4x_err *err) {
    utf8proc_ssize_t len =
        utf8proc_map(text, (utf8proc_ssize_t)n, ret, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (len < 0)
        return q4x_fail(err, len == UTF8PROC_ERROR_NOMEM ? Q4X_E_NOMEM : Q4X_E_FORMAT, "normalisation: %s",
                        utf8proc_errmsg(len));
    *ret_n = (size_t)len;
    return 0;
}

void q4x_pre_versions(char pcre2[24], char utf8proc[24]) {
    char text[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, text); /* "10.42 2022-12-11", at most 24 bytes */
    snprintf(pcre2, 24, "%.*s", (int)(strcspn(text, " ") < 20 ? strcspn(text, " ") : 20), text);
    snprintf(utf8proc, 24, "%.20s", utf8proc_version());
}
