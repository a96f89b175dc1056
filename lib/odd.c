#include "lib/odd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ple.h"
#include "kernels/quant.h"
#include "lib/io.h"
#include "lib/names.h"
#include "lib/tensor_class.h"
#include "lib/type_rules.h"

const q4x_odd_info q4x_odd_infos[Q4X_ODD_COUNT] = {
#define ODD(id, word, why) {word, why},
#include "lib/odds.def"
#undef ODD
};

typedef struct {
    const q4x_model *m;
    const q4x_settings *s; /* NULL: not read */
    const q4x_tok *tok;    /* NULL: none */
    char *what;            /* of the finding at hand */
    size_t size;
} look;

/* 1, with the words. */
static int say(const look *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int say(const look *l, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l->what, l->size, fmt, ap);
    va_end(ap);
    for (char *p = l->what; *p; p++)
        if (*p < 0x20 || *p > 0x7e) *p = '?';
    return 1;
}

static int is_gguf(const look *l) {
    return q4x_model_container(l->m) == Q4X_GGUF;
}

static const q4x_setting *setting(const look *l, const char *name) {
    return l->s ? q4x_settings_find(l->s, name) : NULL;
}

/* The integer of this name, or `none`. */
static int64_t number(const look *l, const char *name, int64_t none) {
    const q4x_setting *s = setting(l, name);
    return s && (s->kind == Q4X_SAYS_INT || s->kind == Q4X_SAYS_BOOL) ? s->i : none;
}

static int is_sparse(const look *l) {
    return setting(l, "experts") != NULL;
}

/* Tensors of one finding: their number, bytes, the first one's name. */
typedef struct {
    int64_t n;
    uint64_t bytes;
    const q4x_tensor *first;
} tally;

static void count(tally *c, const q4x_tensor *t) {
    if (!c->n++) c->first = t;
    c->bytes += t->bytes;
}

/* ---- the checks, in the order of odds.def: 1 when something was found ---- */

static int find_SYNTHETIC(const look *l) {
    const char *geometry = "?";
    size_t n = 1;
    int on = 0;
    uint64_t seed = 0;
    if (q4x_kv_bool(l->m, "q4x.synthetic", &on, NULL) || !on) return 0;
    (void)q4x_kv_str(l->m, "q4x.synthetic.geometry", &geometry, &n, NULL);
    (void)q4x_kv_u64(l->m, "q4x.synthetic.seed", &seed, NULL);
    return say(l, "synthetic weights of seed %llu in the shapes of %.*s", (unsigned long long)seed,
               (int)(n < 64 ? n : 64), geometry);
}

/* Rows of the embedding, all zeros; at most this many are looked at. */
enum { LOOK_ROWS = 64 };

static int zero_row(const q4x_tensor *t, int64_t row) {
    const k_quant *q = k_quant_get(t->type);
    const size_t bytes = (size_t)(t->ne[0] / q->elems) * (size_t)q->bytes;
    const unsigned char *p = (const unsigned char *)t->data + (size_t)row * bytes;
    for (size_t i = 0; i < bytes; i++)
        if (p[i]) return 0;
    return 1;
}

static const q4x_tensor *embedding(const look *l) {
    for (int64_t i = 0; i < q4x_model_ntensors(l->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(l->m, i);
        if (t->ndim == 2 && q4x_tensor_class_of(t->name, -1) == Q4X_TC_EMBEDDING) return t;
    }
    return NULL;
}

static int find_FILLER(const look *l) {
    const q4x_tensor *t = embedding(l);
    if (!l->tok || !t) return 0;
    int64_t rows = t->ne[1], fillers = 0, first = -1, looked = 0, zeros = 0;
    for (int64_t id = 0; id < rows; id++) {
        q4x_tok_type type = id > INT32_MAX ? Q4X_TOK_NONE : q4x_tok_type_of(l->tok, (int32_t)id);
        if (type != Q4X_TOK_NONE && type != Q4X_TOK_UNUSED) continue;
        if (!fillers++) first = id;
        if (looked < LOOK_ROWS && t->bytes && !q4x_model_check(l->m, NULL)) {
            looked++;
            zeros += zero_row(t, id);
        }
    }
    if (!fillers) return 0;
    return say(
        l, "%lld of %lld ids have no token, the first is %lld; of %lld such rows of the embedding %lld are all zero",
        (long long)fillers, (long long)rows, (long long)first, (long long)looked, (long long)zeros);
}

static int find_NOT_F32(const look *l) {
    tally c = {0};
    if (!is_gguf(l)) return 0;
    for (int64_t i = 0; i < q4x_model_ntensors(l->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(l->m, i);
        /* of a file type without rules of its own: what is F32 whatever the file type */
        int must = q4x_type_rule(Q4X_FT_BF16, t->name, t->ndim, t->ne, 1) == K_T_F32;
        if (must && t->type != K_T_F32) count(&c, t);
    }
    if (!c.n) return 0;
    return say(l, "%lld norms, routers, vectors or taps are not F32; the first is %.63s: %s", (long long)c.n,
               c.first->name, k_quant_name(c.first->type));
}

static int find_NO_KERNEL(const look *l) {
    tally c = {0};
    for (int64_t i = 0; i < q4x_model_ntensors(l->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(l->m, i);
        /* gguf-quants 4.4 */
        if (t->type == K_T_IQ1_M || t->type == K_T_TQ1_0 || t->type == K_T_TQ2_0) count(&c, t);
    }
    if (!c.n) return 0;
    return say(l, "%lld tensors, %llu bytes, are %s or its like; the first is %.63s", (long long)c.n,
               (unsigned long long)c.bytes, k_quant_name(c.first->type), c.first->name);
}

static int find_LABEL(const look *l) {
    uint64_t label = 0;
    int named = -1;
    if (q4x_kv_u64(l->m, "general.file_type", &label, NULL)) return 0;
    for (int i = 0; i < Q4X_FT_COUNT; i++) {
        if (q4x_file_types[i].number < 0 || (uint64_t)q4x_file_types[i].number != label) continue;
        /* two mixes may have one number: any of their types will do */
        for (int64_t k = 0; k < q4x_model_ntensors(l->m); k++)
            if (q4x_model_tensor(l->m, k)->type == q4x_file_types[i].dflt) return 0;
        if (named < 0) named = i;
    }
    if (named < 0 || !q4x_model_ntensors(l->m)) return 0;
    return say(l, "general.file_type is %llu, %s, and no tensor is %s", (unsigned long long)label,
               q4x_file_types[named].name, k_quant_get(q4x_file_types[named].dflt)->name);
}

static int find_TIED(const look *l) {
    const q4x_setting *s = setting(l, "tied_head");
    if (!s || !s->i) return 0;
    return say(l, s->from == Q4X_FROM_FILE ? "tie_word_embeddings is true" : "there is no output.weight");
}

static int find_DENSE_ATTENTION(const look *l) {
    const q4x_setting *kinds = setting(l, "layer_kinds");
    if (!is_sparse(l) || setting(l, "indexer_heads") || !kinds || !strstr(kinds->text, "ttention")) return 0;
    return say(l, "there is no indexer");
}

static int find_NO_NGRAM(const look *l) {
    if (!is_sparse(l) || setting(l, "ngram")) return 0;
    return say(l, "there is no n-gram embedding");
}

static int find_NOT_RUN(const look *l) {
    tally c = {0};
    for (int64_t i = 0; i < q4x_model_ntensors(l->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(l->m, i);
        q4x_tensor_class k = q4x_tensor_class_of(t->name, number(l, "layers", -1));
        if (k == Q4X_TC_PREDICTION || k == Q4X_TC_VISION) count(&c, t);
    }
    if (!c.n) return 0;
    return say(l, "%lld tensors, %llu bytes, of a prediction head or a vision tower, from %.100s", (long long)c.n,
               (unsigned long long)c.bytes, c.first->name);
}

static int find_SPARE_HEAD(const look *l) {
    if (is_gguf(l) || !number(l, "tied_head", 0) || !q4x_model_find(l->m, "lm_head.weight")) return 0;
    return say(l, "lm_head.weight is there, and tie_word_embeddings is true");
}

static int find_EOS(const look *l) {
    if (!l->tok) return 0;
    int32_t eos = q4x_tok_about(l->tok)->eos;
    q4x_tok_type type = q4x_tok_type_of(l->tok, eos);
    int64_t cut = number(l, "eos", -1);
    if (eos >= 0 && type != Q4X_TOK_CONTROL)
        return say(l, "the end of a text is id %d, whose type is '%s' and not control", eos, q4x_tok_type_name(type));
    type = cut > INT32_MAX ? Q4X_TOK_NONE : q4x_tok_type_of(l->tok, (int32_t)cut);
    if (cut >= 0 && type != Q4X_TOK_CONTROL)
        return say(l, "n-grams are cut at id %lld, whose type is '%s' and not control", (long long)cut,
                   q4x_tok_type_name(type));
    return 0;
}

/* Positions before scaling, where a file says that there was some. */
static int64_t trained_context(const look *l) {
    char key[96];
    int64_t v = -1;
    if (is_gguf(l)) {
        snprintf(key, sizeof key, "%.40s.rope.scaling.original_context_length", q4x_model_arch(l->m));
        if (q4x_kv_i64(l->m, key, &v, NULL)) v = -1;
        return v;
    }
    const json_t *text = q4x_model_text_config(l->m);
    const json_t *j = json_object_get(json_object_get(text, "rope_parameters"), "original_max_position_embeddings");
    if (!j) j = json_object_get(text, "original_max_position_embeddings");
    return json_is_integer(j) ? json_integer_value(j) : -1;
}

static int find_CONTEXT(const look *l) {
    enum { PROVED = 262144 };
    int64_t ctx = number(l, "context", 0), trained = trained_context(l);
    if (trained > 0 && ctx > trained)
        return say(l, "the context is %lld, and the file says that %lld were trained", (long long)ctx,
                   (long long)trained);
    if (ctx > PROVED) return say(l, "the context is %lld", (long long)ctx);
    return 0;
}

/* Equal to the first n of a stored array? An array that cannot be read is the reader's business. */
static int same(const look *l, const char *key, const int64_t *want, int64_t n) {
    int64_t *v = NULL, have = 0;
    char full[96];
    snprintf(full, sizeof full, "%.40s.%s", q4x_model_arch(l->m), key);
    if (q4x_kv_ints(l->m, full, &v, &have, NULL)) return 1;
    int equal = have >= n && !memcmp(v, want, (size_t)n * sizeof *v);
    free(v);
    return equal;
}

/* GGUF files hold the constants and not what they were made of: the base is the first head's size or a little less, and
 * the seed is the usual one, or unknown. */
static int find_HASH(const look *l) {
    enum { SEED = 1234 };
    const int64_t V = number(l, "vocabulary", 0), n = number(l, "ngram", 0), each = number(l, "ngram_heads_each", 0);
    if (!n) return 0;
    if (!is_gguf(l)) {
        int64_t seed = number(l, "ngram_seed", SEED);
        return seed == SEED ? 0 : say(l, "the seed of the n-gram hash is %lld, not %d", (long long)seed, SEED);
    }
    int64_t mult[16], size[1024], off[1024], *sizes = NULL, have = 0, base = 0;
    char full[96];
    snprintf(full, sizeof full, "%.40s.ple.head_vocab_sizes", q4x_model_arch(l->m));
    if (!q4x_kv_ints(l->m, full, &sizes, &have, NULL)) base = have ? sizes[0] : 0;
    free(sizes);
    if (base < 2 || base > INT32_MAX || k_ple_consts(V, (int32_t)n, (int32_t)each, base, SEED, 0, mult, size, off))
        return say(l, "the n-gram hash has a first head of %lld rows, which no base gives", (long long)base);
    const char *what = !same(l, "ple.layer_multipliers", mult, n)               ? "multipliers"
                       : !same(l, "ple.head_vocab_sizes", size, (n - 1) * each) ? "sizes of heads"
                       : !same(l, "ple.head_offsets", off, (n - 1) * each)      ? "offsets of heads"
                                                                                : NULL;
    return what ? say(l, "the n-gram hash has other %s than seed %d and base %lld give", what, SEED, (long long)base)
                : 0;
}

static int find_ALIAS(const look *l) {
    static const char old[] = "deepseek_sparse_attention hybrid_indexed indexed_attention";
    if (is_gguf(l)) return 0;
    const json_t *root = q4x_model_config(l->m), *text = q4x_model_text_config(l->m);
    const json_t *types = json_object_get(text, "layer_types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *s = json_string_value(json_array_get(types, i));
        if (s && q4x_word_in(old, s)) return say(l, "layer_types[%zu] is '%.60s'", i, s);
    }
    const char *arch = q4x_model_arch(l->m);
    size_t n = strlen(arch);
    if (l->s && text == root && (n < 5 || strcmp(arch + n - 5, "_text")))
        return say(l, "model_type is '%.60s', the multimodal model's, and there is no text_config", arch);
    return 0;
}

/* Of a checkpoint that is an error: its header accounts for every byte. */
static int find_TRAILING(const look *l) {
    for (int i = 0; i < q4x_model_nshards(l->m); i++) {
        const q4x_shard *s = q4x_model_shard(l->m, i);
        if (s->size > s->data_end)
            return say(l, "%llu bytes lie behind the last tensor of %.160s",
                       (unsigned long long)(s->size - s->data_end), q4x_tail(s->path));
    }
    return 0;
}

static int find_UNALIGNED(const look *l) {
    enum { WANT = 32 };
    tally c = {0};
    for (int64_t i = 0; i < q4x_model_ntensors(l->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(l->m, i);
        const k_quant *q = k_quant_get(t->type);
        /* maps begin at pages; a checkpoint promises no more than its elements' size */
        uintptr_t want = is_gguf(l) ? WANT : q ? (uintptr_t)q->bytes : 1;
        if (t->bytes && (uintptr_t)t->data % want) count(&c, t);
    }
    if (!c.n) return 0;
    return say(l, "%lld tensors do not begin at a multiple of %s; the first is %.100s", (long long)c.n,
               is_gguf(l) ? "32 bytes" : "their elements' size", c.first->name);
}

int q4x_odds_find(const q4x_model *m, const q4x_settings *settings, const q4x_tok *tok, q4x_odd *ret) {
    static int (*const find[])(const look *) = {
#define ODD(id, word, why) find_##id,
#include "lib/odds.def"
#undef ODD
    };
    int n = 0;
    for (int i = 0; i < Q4X_ODD_COUNT; i++) {
        look l = {m, settings, tok, ret[n].what, sizeof ret[n].what};
        if (!find[i](&l)) continue;
        ret[n++].id = (q4x_odd_id)i;
    }
    return n;
}
