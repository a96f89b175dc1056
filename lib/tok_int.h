/* tok_int.h: the inside of a tokenizer, shared by lib/tok*.c. Nobody else but tests includes it.
 *
 * A reader (tok_gguf.c, tok_hf.c) fills a zeroed q4x_tok through q4x_tok_add and q4x_tok_merge and then calls
 * q4x_tok_finish; what it has put there when it fails is freed by q4x_tok_close. Messages begin at the field; the
 * reader's caller puts the file in front.
 */
#ifndef Q4X_TOK_INT_H
#define Q4X_TOK_INT_H

#include "lib/names.h"
#include "lib/tok.h"

/* ---- the vocabulary ---- */

#define Q4X_TOK_MAX_IDS (1 << 24)
#define Q4X_TOK_MAX_HOLES 65536 /* ids without a token below the highest one */
#define Q4X_TOK_MAX_ADDED 4096  /* bytes of an added token */

typedef struct {
    const char *text;     /* as the file spells it, in the pool; NULL: the file has no such id */
    const uint8_t *bytes; /* what it stands for; text itself when it stands for its spelling */
    uint32_t len, nbytes;
    uint8_t type;                    /* q4x_tok_type */
    uint8_t lstrip, rstrip, on_norm; /* of added tokens: take blanks before or behind; looked for after NFC */
} q4x_tok_entry;

/* ---- splitting added tokens out ---- */

typedef struct {
    const char *text;
    uint32_t len;
    int32_t id;
    int control; /* text like any other under Q4X_TOK_PLAIN */
    int lstrip, rstrip;
} q4x_tok_word;

typedef struct {
    q4x_tok_word *w; /* [n], sorted by bytes, the shorter first; owned, the texts are not */
    int32_t n, cap;
    int32_t first[257]; /* words that begin with byte b: first[b] .. first[b+1]-1 */
    /* 0: at the leftmost place the longest word (tokenizer.json). 1: the longest word anywhere, then the next longest
     * in what is left, as llama.cpp cuts a GGUF file's. They differ where words overlap. */
    int longest_first;
} q4x_tok_split;

/* A stretch of text: id -1, or a word's. */
typedef struct {
    size_t at, end;
    int32_t id;
} q4x_tok_cut;

typedef struct {
    q4x_tok_cut *c;
    size_t n, cap;
} q4x_tok_cuts;

int q4x_tok_split_add(q4x_tok_split *s, const q4x_tok_word *w, q4x_err *err); /* no text twice, len >= 1 */
void q4x_tok_split_finish(q4x_tok_split *s);                                  /* sorts; then look */
void q4x_tok_split_free(q4x_tok_split *s);
/* All stretches of text[0..n) in order. A word's is empty where the word before took it among blanks, text's never.
 * ret->n starts anew, its memory is used again. */
int q4x_tok_split_text(const q4x_tok_split *s, const uint8_t *text, size_t n, int plain, q4x_tok_cuts *ret,
                       q4x_err *err);

/* ---- the pattern: tok_pre.c, or tok_pre_none.c in a build without PCRE2 and utf8proc ---- */

#define Q4X_PRE_MAX_STAGES 16
#define Q4X_PRE_MAX_PATTERN 16384

typedef struct {
    const char *pattern; /* borrowed while it is compiled */
    int literal;         /* 1: the text itself, no expression */
} q4x_pre_stage;

typedef struct q4x_pre q4x_pre;
typedef int (*q4x_pre_fn)(void *ctx, const uint8_t *piece, size_t n, q4x_err *err);

/* Compile n stages; each cuts the pieces of the one before into its matches and what lies between them. With
 * prefix_space a piece of all stages but the last nlast that does not begin with a blank gets one. */
int q4x_pre_open(const q4x_pre_stage *stage, int n, int prefix_space, int nlast, q4x_pre **ret, q4x_err *err);
void q4x_pre_close(q4x_pre *p); /* NULL is fine */
/* Call fn with every piece of n > 0 bytes of UTF-8, in order; none of them is empty. */
int q4x_pre_cut(const q4x_pre *p, const uint8_t *text, size_t n, q4x_pre_fn fn, void *ctx, q4x_err *err);
/* NFC of UTF-8; *ret is malloc'd. */
int q4x_nfc(const uint8_t *text, size_t n, uint8_t **ret, size_t *ret_n, q4x_err *err);
/* Versions of the two libraries: "10.42", or "none". */
void q4x_pre_versions(char pcre2[24], char utf8proc[24]);

/* ---- the whole ---- */

struct q4x_tok {
    q4x_tok_facts facts;
    q4x_pool pool;
    q4x_tok_entry *tok;  /* [facts.ids] */
    int32_t cap, ntok;   /* allocated; ids that have a token */
    q4x_names by_text;   /* text -> id */
    uint32_t (*pair)[2]; /* [facts.merges]: ids; the index is the rank */
    int32_t *made;       /* [facts.merges]: what the pair becomes */
    int32_t cap_merges;
    q4x_names by_pair;       /* the 8 bytes of a pair -> rank */
    int32_t byte[256];       /* the token that a byte begins as; -1: none */
    int ignore_merges;       /* 1: a piece that is a token is that token */
    int32_t unknown;         /* for bytes without a token; -1: they are an error */
    q4x_tok_split raw, norm; /* words looked for before and after NFC */
    q4x_pre *pre;
};

/* Ids under construction; zero-initialise. */
typedef struct {
    int32_t *id;
    int32_t n, cap;
} q4x_tok_ids;
int q4x_tok_push(q4x_tok_ids *l, int32_t id, q4x_err *err);

/* A fresh, empty one; NULL: no memory. */
q4x_tok *q4x_tok_new(void);
/* Set id to a token. Fails on an id above Q4X_TOK_MAX_IDS, an id or a text that is there already, text that is no
 * UTF-8. An empty text cannot be found again and may repeat. */
int q4x_tok_add(q4x_tok *t, int64_t id, const char *text, size_t len, q4x_tok_type type, q4x_err *err);
/* The next merge, of two texts; *_len as given. rank is for messages. */
int q4x_tok_merge(q4x_tok *t, const char *a, size_t a_len, const char *b, size_t b_len, q4x_err *err);
/* Fill what follows from the tokens: the bytes they stand for, the bytes' own tokens, the splitters. */
int q4x_tok_finish(q4x_tok *t, q4x_err *err);
/* The pattern of a pre-tokeniser that pres.def names, or NULL; the name of a tokenizer.json's pattern, or "custom". */
const char *q4x_tok_pre_pattern(const char *name, size_t len);
const char *q4x_tok_pre_name(const char *hf_pattern);

int q4x_tok_read_gguf(q4x_tok *t, const q4x_model *m, q4x_err *err);
/* tokenizer.json, and what its neighbours say of bos and eos. */
int q4x_tok_read_hf(q4x_tok *t, const q4x_model *m, q4x_err *err);
/* The same of a file that is read already. rows: ids must be below it; 0: not known. */
int q4x_tok_read_json(q4x_tok *t, const json_t *root, int64_t rows, q4x_err *err);
/* normalizer, pre_tokenizer, post_processor, decoder, truncation, padding. */
int q4x_tok_read_pipeline(q4x_tok *t, const json_t *root, q4x_err *err);
/* tokenizer_config.json (NULL: none), else config.json: bos, eos, whether they are put around texts. */
int q4x_tok_read_ends(q4x_tok *t, const json_t *tokenizer_config, const json_t *config, q4x_err *err);
/* tokenizer.json from memory, alone: for tests and fuzzing. */
int q4x_tok_open_json(const char *text, size_t n, int64_t rows, q4x_tok **ret, q4x_err *err);

/* Scratch of merging, used again from piece to piece; zero-initialise. */
typedef struct {
    struct q4x_bpe_symbol *symbol;
    struct q4x_bpe_pair *heap;
    size_t cap, nheap;
} q4x_bpe;
void q4x_bpe_free(q4x_bpe *b);
/* Append the ids of one piece. Time: n log n. */
int q4x_bpe_piece(q4x_bpe *b, const q4x_tok *t, const uint8_t *piece, size_t n, q4x_tok_ids *out, q4x_err *err);

/* Code point that stands for a byte in the byte-level alphabet, and back (-1: none does). */
uint32_t q4x_tok_byte_code(uint8_t b);
int q4x_tok_code_byte(uint32_t code);

#endif
