/* tok_pre_none.c: the pattern and NFC of a program built without PCRE2 and utf8proc. Tokenizers open and decode; text
 * does not become ids. */
#include <string.h>

#include "lib/tok_int.h"

static int none(q4x_err *err) {
    return q4x_fail(err, Q4X_E_UNSUPPORTED,
                    "this build has no text prompts: install libpcre2-dev and libutf8proc-dev and build again, or give "
                    "--ids");
}

int q4x_pre_open(const q4x_pre_stage *stage, int n, int prefix_space, int nlast, q4x_pre **ret, q4x_err *err) {
    (void)stage, (void)n, (void)prefix_space, (void)nlast, (void)err;
    *ret = NULL;
    return 0;
}

void q4x_pre_close(q4x_pre *p) {
    (void)p;
}

int q4x_pre_cut(const q4x_pre *p, const uint8_t *text, size_t n, q4x_pre_fn fn, void *ctx, q4x_err *err) {
    (void)p, (void)text, (void)n, (void)fn, (void)ctx;
    return none(err);
}

int q4x_nfc(const uint8_t *text, size_t n, uint8_t **ret, size_t *ret_n, q4x_err *err) {
    (void)text, (void)n, (void)ret, (void)ret_n;
    return none(err);
}

void q4x_pre_versions(char pcre2[24], char utf8proc[24]) {
    memcpy(pcre2, "none", sizeof "none");
    memcpy(utf8proc, "none", sizeof "none");
}
