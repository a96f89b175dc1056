/* arch_cfg.h: hyper-parameters as read from config.json or GGUF keys, and what all architectures do with them. For
 * lib/arch_*.c; nobody else includes it, tests aside.
 *
 * A reader fills what its container carries and checks types and ranges; q4x_cfg_check then holds values against each
 * other. An architecture has a q4x_cfg inside its own, and reads what it has beyond. Names of keys in messages are the
 * file's. Errors: Q4X_E_FORMAT, in one line with file, key, expected and found.
 */
#ifndef Q4X_ARCH_CFG_H
#define Q4X_ARCH_CFG_H

#include "kernels/k.h"
#include "lib/arch.h"
#include "lib/settings.h"

/* Upper bounds: far above any known model, low enough that no product of two dimensions leaves int32. */
enum {
    Q4X_MAXL = 512,
    Q4X_MAXPOS = 1 << 24, /* positions stay exact in f32 */
    Q4X_MAXV = 1 << 24,
    Q4X_MAXKEYS = 40,
};

/* An integer hyper-parameter: lib/arch_keys.def says what stands where. def -1: config.json must have it. */
typedef struct {
    const char *name, *hf, *gguf; /* among the settings, in config.json, in GGUF files */
    int64_t lo, hi, def;
} q4x_key;

/* Every list of keys begins with these. */
enum {
#define KEY(id, name, hf, gguf, lo, hi) Q4X_KEY_##id,
#include "lib/arch_keys.def"
#undef KEY
    Q4X_KEY_COMMON
};

/* Where architectures read the same file differently. */
typedef struct {
    q4x_arch_id id;
    const q4x_key *key;     /* at most Q4X_MAXKEYS */
    const char *attn_types; /* layer_types that mean attention, blank-separated */
    double rotary;          /* partial_rotary_factor when config.json has none */
    int gate_silu;          /* output gate of the delta net, which GGUF does not store */
} q4x_traits;

typedef struct {
    const q4x_traits *t;
    q4x_container container;
    char where[200];        /* file, for messages */
    int nested;             /* HF: the text part is an object of its own */
    int64_t v[Q4X_MAXKEYS]; /* by place in t->key */
    double theta, eps;
    int64_t rot; /* rotated dimensions */
    int is_attn[Q4X_MAXL];
    int gate_silu, tied;
    int64_t nmtp; /* GGUF: blocks behind the trunk; L does not count them */
    q4x_settings said;
} q4x_cfg;

/* The name that this container gives a hyper-parameter, for messages. */
const char *q4x_key_name(const q4x_cfg *c, int id);
int q4x_cfg_in_range(const q4x_cfg *c, const char *key, int64_t v, int64_t lo, int64_t hi, q4x_err *err);
/* Value a must be a multiple of value b. */
int q4x_cfg_divides(const q4x_cfg *c, int a, int b, q4x_err *err);
/* Heads and rotation fit each other; fills the common fields of *ret, clears the others, and notes what it
 * derives. */
int q4x_cfg_check(q4x_cfg *c, k_dims *ret, q4x_err *err);

/* ---- where values come from: noted by whoever reads or makes one. key: as the reader names it, without what stands
 * before all keys of an architecture or of a text part. Whys are texts that stay ---- */

void q4x_cfg_file(q4x_cfg *c, q4x_setting s, const char *key);
void q4x_cfg_file_at(q4x_cfg *c, q4x_setting s, const char *whole_key); /* nothing is put before it */
void q4x_cfg_default(q4x_cfg *c, q4x_setting s, const char *key, const char *why);
void q4x_cfg_derived(q4x_cfg *c, q4x_setting s, const char *why);
void q4x_cfg_fixed(q4x_cfg *c, q4x_setting s, const char *why);
/* Which layers attend, from is_attn. */
void q4x_cfg_kinds(q4x_cfg *c, q4x_from from, const char *key, const char *why);

/* ---- config.json. text: its text part, root: all of it (may be the same); a key that is null counts as absent ---- */

/* Everything common; c holds t, the container and where already. */
int q4x_cfg_hf(q4x_cfg *c, const json_t *root, const json_t *text, q4x_err *err);
/* NULL when absent or null. */
const json_t *q4x_cfg_get(const json_t *obj, const char *key);
/* Says that the key should hold `what`. */
int q4x_cfg_wants(const q4x_cfg *c, const char *key, const char *what, const json_t *j, q4x_err *err);
int q4x_cfg_integer(const q4x_cfg *c, const char *key, const json_t *j, int64_t lo, int64_t hi, int64_t *ret,
                    q4x_err *err);
/* The hyper-parameter with this place in the list. */
int q4x_cfg_key(q4x_cfg *c, const json_t *text, int id, q4x_err *err);
/* name: among the settings; why: the default is what it is. */
int q4x_cfg_bool(q4x_cfg *c, const json_t *text, const char *name, const char *key, int def, const char *why, int *ret,
                 q4x_err *err);

/* ---- GGUF; keys are named without the architecture's prefix ---- */

/* Everything common but the kinds of layers; c holds t, the container and where already. */
int q4x_cfg_gguf(q4x_cfg *c, const q4x_model *m, q4x_err *err);
/* Kinds of layers from the interval, 4 when the file has none. */
int q4x_cfg_interval(q4x_cfg *c, const q4x_model *m, q4x_err *err);
/* Kinds of layers from attention.recurrent_layers when it is there; known: the key that has said them before and must
 * agree, or NULL. */
int q4x_cfg_recurrent(q4x_cfg *c, const q4x_model *m, const char *known, q4x_err *err);
int q4x_cfg_absent(const q4x_cfg *c, const char *key, q4x_err *err);
/* 1 when the key is absent, *ret untouched. name: among the settings; NULL: nothing is noted. */
int q4x_cfg_optional(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, int64_t lo, int64_t hi,
                     int64_t *ret, q4x_err *err);
int q4x_cfg_need(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, int64_t lo, int64_t hi,
                 int64_t *ret, q4x_err *err);
/* Hyper-parameters from .. to of the list that are one key each. */
int q4x_cfg_keys(q4x_cfg *c, const q4x_model *m, int from, int to, q4x_err *err);
/* An array of at least n integers; 1 when absent. Freed by the caller. */
int q4x_cfg_list(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, int64_t n, int64_t **ret,
                 int64_t *ret_n, q4x_err *err);

/* ---- to a GGUF file, of what config.json says; keys are named without the architecture's prefix ---- */

/* Everything common. Q4X_E_UNSUPPORTED for an output gate that the architecture's GGUF files do not have. */
int q4x_give_common(const q4x_cfg *c, const json_t *text, q4x_gguf_out *o, q4x_err *err);
/* Hyper-parameters from .. to of the list that are one key each. */
int q4x_give_keys(const q4x_cfg *c, q4x_gguf_out *o, int from, int to, q4x_err *err);
int q4x_give_int(const q4x_cfg *c, q4x_gguf_out *o, const char *key, int64_t v, q4x_err *err);
int q4x_give_ints(const q4x_cfg *c, q4x_gguf_out *o, const char *key, const int32_t *v, size_t n, q4x_err *err);
int q4x_give_u64s(const q4x_cfg *c, q4x_gguf_out *o, const char *key, const int64_t *v, size_t n, q4x_err *err);

#endif
