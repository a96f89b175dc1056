#include "tests/h_tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- characters ---- */

int h_utf8(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> n & 0xf0) | c);
    return n;
}

const char *h_tok_char(int byte) {
    static char text[4][8];
    static int turn;
    uint32_t code[256], next = 0x100;
    for (uint32_t b = 0; b < 256; b++)
        code[b] = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff) ? b : next++;
    char *s = text[turn = (turn + 1) % 4];
    s[h_utf8(code[byte & 255], s)] = 0;
    return s;
}

const char *h_tok_spell(const char *bytes) {
    static char text[512];
    text[0] = 0;
    for (const char *p = bytes; *p; p++) strcat(text, h_tok_char((unsigned char)*p));
    return text;
}

/* ---- GGUF ---- */

void h_tok_gguf(h_gguf *g, const char *pre, const h_tok_token *more, int nmore, const char *const *merges,
                int nmerges) {
    h_buf types = {0};
    h_buf strs = {0};
    for (int b = 0; b < 256; b++) {
        h_str(&strs, h_tok_char(b));
        h_u32(&types, Q4X_TOK_NORMAL);
    }
    for (int i = 0; i < nmore; i++) {
        h_str(&strs, more[i].text);
        h_u32(&types, (uint32_t)more[i].type);
    }
    h_gguf_init(g);
    h_gguf_kv_str(g, "general.architecture", "toy");
    h_gguf_kv_str(g, "tokenizer.ggml.model", "gpt2");
    h_gguf_kv_str(g, "tokenizer.ggml.pre", pre);
    h_gguf_arr(g, "tokenizer.ggml.tokens", 8, (uint64_t)(256 + nmore), strs.p, strs.n);
    h_gguf_arr(g, "tokenizer.ggml.token_type", 5, (uint64_t)(256 + nmore), types.p, types.n);
    h_gguf_arr_str(g, "tokenizer.ggml.merges", merges, (size_t)nmerges);
    h_buf_free(&types);
    h_buf_free(&strs);
}

h_tok_file h_tok_model(h_gguf *g) {
    h_tok_file f = {.bytes = h_gguf_bytes(g)};
    q4x_err err = {0};
    h_gguf_free(g);
    if (q4x_gguf_parse_mem(f.bytes.p, f.bytes.n, "toy.gguf", &f.m, &err)) fail_msg("%s", err.msg);
    return f;
}

void h_tok_model_close(h_tok_file *f) {
    q4x_model_close(f->m);
    h_buf_free(&f->bytes);
}

/* ---- tokenizer.json ---- */

json_t *h_tok_json(void) {
    json_error_t e;
    json_t *j = json_loads(
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": 257, \"content\": "
        "\"<|im_end|>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
        "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": "
        "[{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
        "\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
        "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": false}]}, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"ignore_merges\": "
        "false, \"vocab\": {}, \"merges\": [[\"a\", \"b\"]]}}",
        0, &e);
    if (!j) fail_msg("%s", e.text);
    json_t *vocab = json_object_get(json_object_get(j, "model"), "vocab");
    for (int b = 0; b < 256; b++) json_object_set_new(vocab, h_tok_char(b), json_integer(b));
    json_object_set_new(vocab, "ab", json_integer(256));
    return j;
}

/* The value that a step of a path leads to; *ret_last: the step itself. */
static json_t *descend(json_t *j, const char *path, char last[128]) {
    const char *dot;
    for (; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        char step[128];
        snprintf(step, sizeof step, "%.*s", (int)(dot - path), path);
        j = json_is_array(j) ? json_array_get(j, (size_t)atoi(step)) : json_object_get(j, step);
        if (!j) fail_msg("no '%s' on the path", step);
    }
    snprintf(last, 128, "%s", path);
    return j;
}

void h_tok_set(json_t *root, const char *path, const char *value) {
    char last[128];
    json_t *in = descend(root, path, last), *v = NULL;
    if (value) {
        char text[4096];
        snprintf(text, sizeof text, "%s", value);
        for (char *p = text; *p; p++)
            if (*p == '\'') *p = '"';
        v = json_loads(text, JSON_DECODE_ANY, NULL);
        if (!v) fail_msg("not JSON: %s", text);
    }
    if (json_is_array(in) && (size_t)atoi(last) == json_array_size(in))
        json_array_append_new(in, v);
    else if (json_is_array(in) && v)
        json_array_set_new(in, (size_t)atoi(last), v);
    else if (json_is_array(in))
        json_array_remove(in, (size_t)atoi(last));
    else if (v)
        json_object_set_new(in, last, v);
    else
        json_object_del(in, last);
}

int h_tok_open_json(json_t *root, int64_t rows, q4x_tok **ret, q4x_err *err) {
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    json_decref(root);
    int rc = q4x_tok_open_json(text, strlen(text), rows, ret, err);
    free(text);
    return rc;
}

/* ---- random text ---- */

size_t h_tok_random(h_rand *r, int n, char *out, size_t cap) {
    static const char *const words[] = {"The",
                                        " day",
                                        "don't",
                                        "I'LL",
                                        " 's",
                                        "<|im_end|>",
                                        "<|im_",
                                        "\r\n",
                                        "\n\n",
                                        "   ",
                                        "\t",
                                        "\xc3\xa9",
                                        "e\xcc\x81",
                                        "\xcc\x81\xcc\xa7",
                                        "\xe3\x80\x80",
                                        "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
                                        "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa",
                                        "\xe0\xa4\xb9\xe0\xa4\xbf",
                                        "\xe2\x84\xa2\xef\xb8\x8f",
                                        "\xed\x95\x9c",
                                        "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab",
                                        "12",
                                        "\xd9\xa4",
                                        "..."};
    static const uint32_t top[] = {0x80, 0x250, 0x800, 0x3100, 0x10000, 0x20000, 0x110000};
    size_t at = 0;
    for (int i = 0; i < n && at + 32 < cap; i++) {
        if (h_below(r, 4) == 0) {
            const char *w = words[h_below(r, (uint32_t)(sizeof words / sizeof *words))];
            memcpy(out + at, w, strlen(w));
            at += strlen(w);
            continue;
        }
        uint32_t c = h_below(r, top[h_below(r, 7)]);
        if (c >= 0xd800 && c < 0xe000) c = 0x20;
        at += (size_t)h_utf8(c, out + at);
    }
    return at;
}

char *h_tok_file_read(const char *path, size_t *ret_n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *s = malloc(n + 1);
    assert_non_null(s);
    assert_int_equal(fread(s, 1, n, f), n);
    fclose(f);
    s[n] = 0;
    *ret_n = n;
    return s;
}
