/* h_tok.h: small tokenizers for tests. All begin with the 256 characters that stand for bytes, byte b at id b. */
#ifndef H_TOK_H
#define H_TOK_H

#include <jansson.h>

#include "lib/gguf.h"
#include "lib/tok_int.h"
#include "tests/h_gguf.h"
#include "tests/h_rand.h"

/* UTF-8 of a code point; returns its length. */
int h_utf8(uint32_t code, char out[4]);
/* The character that stands for a byte, NUL-terminated, by the rule as GPT-2 gave it: what is printable in Latin-1 is
 * itself, all else is counted up from U+0100. Valid until four calls later. */
const char *h_tok_char(int byte);
/* A text of such characters. Valid until the next call. */
const char *h_tok_spell(const char *bytes);

typedef struct {
    const char *text;
    int type;
} h_tok_token;

/* A GGUF header: pattern, the 256, the tokens behind them, the merges ("a b"). Add keys, then h_tok_model. */
void h_tok_gguf(h_gguf *g, const char *pre, const h_tok_token *more, int nmore, const char *const *merges, int nmerges);
/* Opens and frees g; NULL fails the test. The model's bytes live until h_tok_model_close. */
typedef struct {
    q4x_model *m;
    h_buf bytes;
} h_tok_file;
h_tok_file h_tok_model(h_gguf *g);
void h_tok_model_close(h_tok_file *f);

/* tokenizer.json as an object to change: the 256, ["a","b"] merged into id 256, <|im_end|> added at 257, qwen2's
 * pattern. */
json_t *h_tok_json(void);
/* Set what "a.b" or "a.0.b" leads to from JSON text ("'" stands for '"'); NULL removes. */
void h_tok_set(json_t *root, const char *path, const char *value);
/* Open it; drops the reference. */
int h_tok_open_json(json_t *root, int64_t rows, q4x_tok **ret, q4x_err *err);

/* n random characters of all planes and classes, and what real text is made of; no surrogates. Returns bytes. */
size_t h_tok_random(h_rand *r, int n, char *out, size_t cap);
/* A whole file; malloc'd, NUL behind. */
char *h_tok_file_read(const char *path, size_t *ret_n);

#endif
