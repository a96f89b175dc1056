/* tok.h: text to token ids and back: the byte-level BPE of a model, from GGUF keys or from tokenizer.json (qwen4_exp
 * 9.6).
 *
 * Encoding: added tokens are split out first; what lies between is brought to NFC where the file asks for it, cut into
 * pieces by the file's pattern, and each piece is merged pair by pair, lowest rank first, leftmost first. Decoding is
 * exact: the bytes of the ids, one behind the other.
 *
 * Text is UTF-8. Bytes that are not are an error, with their place, and never become ids: one engine refuses them,
 * another puts U+FFFD there, so no list of ids would mean the same to both. Ids may decode to anything.
 *
 * A tokenizer is constant once it is open; threads may share it. It borrows nothing from the model.
 */
#ifndef Q4X_TOK_H
#define Q4X_TOK_H

#include <stddef.h>
#include <stdint.h>

#include "lib/model.h"

typedef struct q4x_tok q4x_tok;

/* GGUF's codes. In tokenizer.json: vocabulary NORMAL, added tokens CONTROL when `special`, else USER. */
typedef enum {
    Q4X_TOK_NONE = 0, /* the file has no token of this id */
    Q4X_TOK_NORMAL = 1,
    Q4X_TOK_UNKNOWN = 2,
    Q4X_TOK_CONTROL = 3,
    Q4X_TOK_USER = 4,
    Q4X_TOK_UNUSED = 5, /* fills rows of the model that no text leads to */
    Q4X_TOK_BYTE = 6
} q4x_tok_type;

#define Q4X_TOK_MAX_TEXT ((size_t)1 << 26) /* bytes of one text */

typedef struct {
    const char *model; /* "gpt2" (GGUF), "BPE" (tokenizer.json) */
    const char *pre;   /* the pattern's name, "qwen35"; "custom": another one, spelled out in the file */
    int32_t ids;       /* ids are 0 .. ids-1 */
    int32_t added;     /* tokens that are split out of the text first */
    int32_t merges;
    int32_t bos, eos;     /* -1: the file names none */
    int add_bos, add_eos; /* 1: put around every text */
    int nfc;              /* 1: text is normalised */
    int prefix_space;     /* 1: a piece that does not begin with a blank gets one */
} q4x_tok_facts;

/* Read the tokenizer of an open model. 1: the model has none (*ret untouched). Errors: no byte-level BPE, an option
 * that is not supported (named), a pattern that does not compile; duplicate tokens, merges of or into tokens that are
 * not there, ids beyond the vocabulary, arrays of another element type. */
int q4x_tok_open(const q4x_model *m, q4x_tok **ret, q4x_err *err);
void q4x_tok_close(q4x_tok *t); /* NULL is fine */
const q4x_tok_facts *q4x_tok_about(const q4x_tok *t);

enum { Q4X_TOK_PLAIN = 1 }; /* flag: control tokens that the text spells are text like any other */

/* Ids of n bytes of text, with the ids that the file puts around every text. *ret is malloc'd (never NULL). Errors: not
 * UTF-8; longer than Q4X_TOK_MAX_TEXT; a byte that the vocabulary has no token for; a pattern that needs more steps
 * than it may take; Q4X_E_UNSUPPORTED when the program was built without PCRE2 and utf8proc. */
int q4x_tok_encode(const q4x_tok *t, const void *text, size_t n, int flags, int32_t **ret, int32_t *ret_n,
                   q4x_err *err);

/* What an id stands for: borrowed bytes; none for an id without a token, or with an unused one. id < 0 or >= ids is an
 * error. */
int q4x_tok_bytes(const q4x_tok *t, int32_t id, const uint8_t **ret, size_t *ret_n, q4x_err *err);
q4x_tok_type q4x_tok_type_of(const q4x_tok *t, int32_t id); /* NONE too for ids out of range */
const char *q4x_tok_type_name(q4x_tok_type type);           /* "normal" */

/* The bytes of n ids in a row, exactly. *ret is malloc'd (never NULL). */
int q4x_tok_decode(const q4x_tok *t, const int32_t *ids, int32_t n, uint8_t **ret, size_t *ret_n, q4x_err *err);

/* ---- ids to text, one by one: for people, and for formats that hold nothing but UTF-8 ----
 * What add returns is whole characters, as soon as they are whole. Bytes that are no UTF-8 become U+FFFD, one for each
 * longest beginning of a character, as Unicode recommends. end gives what is left: nothing, or one U+FFFD. */
typedef struct q4x_tok_stream q4x_tok_stream;
int q4x_tok_stream_open(const q4x_tok *t, q4x_tok_stream **ret, q4x_err *err); /* borrows t */
/* Text is borrowed until the next call, and followed by a NUL that is not counted (it may hold others). */
int q4x_tok_stream_add(q4x_tok_stream *s, int32_t id, const char **ret, size_t *ret_n, q4x_err *err);
int q4x_tok_stream_end(q4x_tok_stream *s, const char **ret, size_t *ret_n, q4x_err *err);
void q4x_tok_stream_close(q4x_tok_stream *s); /* NULL is fine */
/* All at once: what the pieces of a stream add up to. *ret is malloc'd, NUL behind it. */
int q4x_tok_text(const q4x_tok *t, const int32_t *ids, int32_t n, char **ret, size_t *ret_n, q4x_err *err);

#endif
