/* prompt.c: text that goes in and comes out: prompts as text, text on a terminal, bytes in a table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bin/cmd.h"
#include "lib/io.h"
#include "lib/utf8.h"

enum { MOST = 1 << 28 };

/* ---- in ---- */

static int read_all(FILE *f, const char *path, char **ret, size_t *ret_n, q4x_err *err) {
    size_t n = 0, cap = 0, got;
    char *text = NULL;
    do {
        if (n + 4096 > cap) {
            cap = cap * 2 + 8192;
            char *more = cap > MOST ? NULL : realloc(text, cap);
            if (!more) {
                free(text);
                return q4x_fail(err, Q4X_E_NOMEM, "%s: longer than this program reads", q4x_tail(path));
            }
            text = more;
        }
        got = fread(text + n, 1, cap - n - 1, f);
        n += got;
    } while (got);
    if (ferror(f)) {
        free(text);
        return q4x_fail(err, Q4X_E_IO, "%s: cannot read: %s", q4x_tail(path), strerror(errno));
    }
    text[n] = 0;
    *ret = text;
    *ret_n = n;
    return 0;
}

int cmd_read_file(const char *path, char **ret, size_t *ret_n, q4x_err *err) {
    if (!strcmp(path, "-")) return read_all(stdin, "standard input", ret, ret_n, err);
    FILE *f = fopen(path, "rb");
    if (!f) return q4x_fail(err, Q4X_E_IO, "%s: cannot open: %s", q4x_tail(path), strerror(errno));
    int rc = read_all(f, path, ret, ret_n, err);
    fclose(f);
    return rc;
}

int cmd_text_read(const cmd_text *in, char **ret, size_t *ret_n, q4x_err *err) {
    if (in->file) return cmd_read_file(in->file, ret, ret_n, err);
    *ret = strdup(in->text);
    *ret_n = strlen(in->text);
    return *ret ? 0 : q4x_fail(err, Q4X_E_NOMEM, "no memory for the prompt");
}

int cmd_tok_need(const q4x_model *m, q4x_tok **ret, q4x_err *err) {
    int rc = q4x_tok_open(m, ret, err);
    if (rc <= 0) return rc;
    return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: there is no tokenizer in this model: give --ids",
                    q4x_tail(q4x_model_path(m)));
}

static const char *file_of(const cmd_text *in) {
    return strcmp(in->file, "-") ? q4x_tail(in->file) : "standard input";
}

int cmd_text_encode(const cmd_text *in, const q4x_tok *t, const char *text, size_t n, int32_t **ret, int32_t *ret_n,
                    q4x_err *err) {
    int rc = q4x_tok_encode(t, text, n, in->plain ? Q4X_TOK_PLAIN : 0, ret, ret_n, err);
    if (!rc || !in->file) return rc;
    if (rc == Q4X_E_ARG) rc = err->code = Q4X_E_FORMAT; /* it is the file that is wrong */
    q4x_err_prefix(err, "%s", file_of(in));
    return rc;
}

int cmd_gen_prompt(cmd_gen *g, const q4x_model *m, q4x_err *err) {
    if (!cmd_text_given(&g->text)) return 0;
    int rc = cmd_text_read(&g->text, &g->prompt_text, &g->prompt_len, err);
    if (!rc) rc = cmd_tok_need(m, &g->tok, err);
    if (rc) return rc;
    if (!g->prompt_len) return q4x_fail(err, Q4X_E_FORMAT, "%s: empty, expected a prompt", file_of(&g->text));
    rc = cmd_text_encode(&g->text, g->tok, g->prompt_text, g->prompt_len, &g->prompt, &g->n_prompt, err);
    q4x_err_prefix(rc ? err : NULL, "prompt");
    return rc;
}

/* ---- out ---- */

/* What a model says may hold what drives a terminal: there control characters become '?'. A file gets every byte. */
void cmd_put_text(FILE *to, const char *text, size_t n) {
    const uint8_t *p = (const uint8_t *)text;
    if (!isatty(fileno(to))) {
        fwrite(text, 1, n, to);
        return;
    }
    for (size_t at = 0; at < n;) {
        int len = q4x_utf8(p + at, n - at);
        size_t k = len > 0 ? (size_t)len : 1;
        uint32_t c = len > 0 ? q4x_utf8_code(p + at, len) : 0;
        if ((c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0))
            fputc('?', to);
        else
            fwrite(p + at, 1, k, to);
        at += k;
    }
}

/* Control characters, and those that turn the direction of what follows. */
static int drives(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

const char *cmd_plain(const char *text, size_t n, char *buf, size_t size) {
    const uint8_t *p = (const uint8_t *)text;
    size_t to = 0;
    for (size_t at = 0; at < n && to + 16 < size;) { /* room for an escaped character of four bytes */
        int len = q4x_utf8(p + at, n - at);
        size_t k = len > 0 ? (size_t)len : 1;
        int plain = len > 0 && !drives(q4x_utf8_code(p + at, len));
        for (size_t i = 0; i < k; i++)
            if (plain)
                buf[to++] = (char)p[at + i];
            else
                to += (size_t)snprintf(buf + to, size - to, "\\x%02x", (unsigned)p[at + i]);
        at += k;
    }
    buf[to] = 0;
    return buf;
}

void cmd_put_bytes(FILE *to, const uint8_t *p, size_t n) {
    static const char from[] = "\n\r\t\\\"", into[] = "nrt\\\"";
    fputc('"', to);
    for (size_t i = 0; i < n; i++) {
        const char *e = p[i] ? strchr(from, p[i]) : NULL;
        if (e)
            fprintf(to, "\\%c", into[e - from]);
        else if (p[i] < 0x20 || p[i] > 0x7e)
            fprintf(to, "\\x%02x", (unsigned)p[i]);
        else
            fputc(p[i], to);
    }
    fputc('"', to);
}

void cmd_put_words(const char *text, int at, int indent, int width) {
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (at > indent && at + 1 + n > width) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (p != text) {
            putchar(' ');
            at++;
        }
        for (int i = 0; i < n; i++) putchar(p[i] == *CMD_HARD_BLANK ? ' ' : p[i]);
        at += n;
        p += n + (p[n] == ' ');
    }
    putchar('\n');
}

/* ---- options ---- */

enum { KEY_FILE = 0x180, KEY_NO_SPECIAL };

static error_t option(int key, char *arg, struct argp_state *state) {
    cmd_text *in = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case 'p':
    case KEY_FILE:
        if (cmd_text_given(in)) argp_error(state, "two prompts: give one -p or --prompt-file");
        *(key == 'p' ? &in->text : &in->file) = arg;
        return 0;
    case KEY_NO_SPECIAL: in->plain = 1; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"prompt", 'p', "TEXT", 0, "the prompt as text", 1},
    {"prompt-file", KEY_FILE, "FILE", 0, "the prompt as text in FILE, byte for byte; - is standard input", 1},
    {"no-special", KEY_NO_SPECIAL, 0, 0, "<|im_end|> and its like in the text are text like any other", 1},
    {0}};

const struct argp cmd_text_argp = {options, option, 0, 0, 0, 0, 0};
