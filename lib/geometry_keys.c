/* geometry_keys.c: the metadata of a file of a geometry (qwen4_exp 1.1, 9.6, 10). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ple.h"
#include "lib/geometry.h"
#include "lib/names.h"

/* A file's keys being declared; the first failure stays in rc and nothing follows it. */
typedef struct {
    const q4x_geometry *g;
    q4x_gguf_out *o;
    q4x_err *err;
    int rc;
} keys;

static const char *full(const keys *k, const char *key, char buf[96]) {
    snprintf(buf, 96, "%s.%s", k->g->arch, key);
    return buf;
}

static void put_u32(keys *k, const char *key, int64_t v) {
    char buf[96];
    if (!k->rc) k->rc = q4x_gguf_out_u32(k->o, full(k, key, buf), (uint32_t)v, k->err);
}

static void put_f32(keys *k, const char *key, double v) {
    char buf[96];
    if (!k->rc) k->rc = q4x_gguf_out_f32(k->o, full(k, key, buf), (float)v, k->err);
}

static void put_i32s(keys *k, const char *key, const int32_t *v, size_t n) {
    char buf[96];
    if (!k->rc) k->rc = q4x_gguf_out_i32s(k->o, full(k, key, buf), v, n, k->err);
}

static void put_u64s(keys *k, const char *key, const int64_t *v, size_t n) {
    char buf[96];
    if (!k->rc) k->rc = q4x_gguf_out_u64s(k->o, full(k, key, buf), (const uint64_t *)v, n, k->err);
}

static void common_keys(keys *k) {
    const q4x_geometry *g = k->g;
    put_u32(k, "block_count", g->L + g->mtp);
    put_u32(k, "context_length", g->ctx);
    put_u32(k, "embedding_length", g->D);
    put_u32(k, "attention.head_count", g->H);
    put_u32(k, "attention.head_count_kv", g->G);
    put_u32(k, "attention.key_length", g->hd);
    put_u32(k, "attention.value_length", g->hd);
    put_f32(k, "attention.layer_norm_rms_epsilon", g->eps);
    put_f32(k, "rope.freq_base", g->theta);
    put_u32(k, "rope.dimension_count", g->rot);
    put_i32s(k, "rope.dimension_sections", g->sections, 4);
    put_u32(k, "ssm.conv_kernel", g->Kc);
    put_u32(k, "ssm.state_size", g->dk);
    put_u32(k, "ssm.group_count", g->nk);
    put_u32(k, "ssm.time_step_rank", g->nv);
    put_u32(k, "ssm.inner_size", q4x_geometry_value(g));
    put_u32(k, "full_attention_interval", g->interval);
}

/* Ratio 4 on blocks that attend, 0 on the others. */
static void ratio_key(keys *k) {
    const q4x_geometry *g = k->g;
    int32_t *ratio = calloc((size_t)g->L, sizeof *ratio);
    if (!ratio) {
        if (!k->rc) k->rc = q4x_fail(k->err, Q4X_E_NOMEM, "no memory for the keys of a file");
        return;
    }
    for (int i = 0; i < g->L; i++) ratio[i] = q4x_geometry_attends(g, i) ? g->ratio : 0;
    put_i32s(k, "attention.compress_ratios", ratio, (size_t)g->L);
    free(ratio);
}

static void ple_keys(keys *k) {
    const q4x_geometry *g = k->g;
    int64_t mult[16], size[1024], off[1024];
    size_t P = (size_t)((g->n - 1) * g->hpn);
    put_i32s(k, "ple.layers", &g->ple, 1);
    put_u32(k, "ple.ngram_size", g->n);
    put_u32(k, "ple.heads_per_ngram", g->hpn);
    put_u32(k, "ple.conv_kernel", g->Kp);
    put_u32(k, "ple.eos_token_id", q4x_geometry_special(g));
    put_u32(k, "ple.image_token_id", q4x_geometry_special(g) + 12);
    put_u32(k, "embedding_length_per_layer_input", g->pw);
    if (k->rc) return;
    Q4X_BUG_IF(k_ple_consts(g->V, g->n, g->hpn, g->ngram_base, g->ngram_seed, 0, mult, size, off)); /* checked */
    put_u64s(k, "ple.layer_multipliers", mult, (size_t)g->n);
    put_u64s(k, "ple.head_offsets", off, P);
    put_u64s(k, "ple.head_vocab_sizes", size, P);
}

static void flash_keys(keys *k) {
    const q4x_geometry *g = k->g;
    put_u32(k, "expert_count", g->E);
    put_u32(k, "expert_used_count", g->K);
    put_u32(k, "expert_feed_forward_length", g->F);
    put_u32(k, "expert_shared_feed_forward_length", g->Fs);
    put_u32(k, "hyper_connection.count", g->N);
    put_u32(k, "hyper_connection.low_rank", g->R);
    put_u32(k, "attention.indexer.head_count", g->ih);
    put_u32(k, "attention.indexer.key_length", g->id);
    put_u32(k, "attention.indexer.top_k", g->budget);
    ratio_key(k);
    ple_keys(k);
}

int q4x_geometry_keys(const q4x_geometry *g, q4x_gguf_out *o, q4x_err *err) {
    keys k = {g, o, err, 0};
    common_keys(&k);
    if (q4x_geometry_is_flash(g))
        flash_keys(&k);
    else {
        put_u32(&k, "feed_forward_length", g->ffn);
        if (g->mtp) put_u32(&k, "nextn_predict_layers", g->mtp);
    }
    return k.rc;
}

/* ---- tokenizer ---- */

enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 };
enum { PAIRS = 26 + 26 * 5, ADDED = 33 };

typedef struct {
    q4x_pool pool;
    const char **token;
    int32_t *type;
    int32_t n, cap;
    const char *merge[PAIRS];
    int nmerges, failed;
} vocab;

static void add(vocab *v, const char *text, int32_t type) {
    Q4X_BUG_IF(v->n >= v->cap);
    const char *s = q4x_pool_str(&v->pool, text, strlen(text));
    if (!s) v->failed = 1;
    v->token[v->n] = s;
    v->type[v->n++] = type;
}

static void utf8(char *to, int c) {
    if (c < 0x80) {
        to[0] = (char)c;
        to[1] = 0;
        return;
    }
    to[0] = (char)(0xc0 | c >> 6);
    to[1] = (char)(0x80 | (c & 63));
    to[2] = 0;
}

/* Byte-level BPE shows a byte as a letter: itself where that can be seen, else one from 256 on. */
static int seen(int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

static void add_bytes(vocab *v) {
    char s[4];
    int next = 256;
    for (int b = 0; b < 256; b++)
        if (seen(b)) {
            utf8(s, b);
            add(v, s, NORMAL);
        }
    for (int b = 0; b < 256; b++)
        if (!seen(b)) {
            utf8(s, next++);
            add(v, s, NORMAL);
        }
}

static void add_pair(vocab *v, const char *a, const char *b) {
    char s[8];
    snprintf(s, sizeof s, "%s%s", a, b);
    add(v, s, NORMAL);
    snprintf(s, sizeof s, "%s %s", a, b);
    const char *m = q4x_pool_str(&v->pool, s, strlen(s));
    if (!m) v->failed = 1;
    v->merge[v->nmerges++] = m;
}

/* A blank before a letter, and a letter before a vowel. */
static void add_pairs(vocab *v) {
    char blank[4], a[2] = "", b[2] = "";
    utf8(blank, 256 + ' ');
    for (a[0] = 'a'; a[0] <= 'z'; a[0]++) add_pair(v, blank, a);
    for (a[0] = 'a'; a[0] <= 'z'; a[0]++)
        for (const char *e = "aeiou"; *e; e++) {
            b[0] = *e;
            add_pair(v, a, b);
        }
}

static void add_rest(vocab *v, int32_t special) {
    static const char *const known[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    char s[40];
    while (v->n < special) {
        snprintf(s, sizeof s, "[filler %d]", v->n);
        add(v, s, UNUSED);
    }
    while (v->n < v->cap) {
        int k = v->n - special;
        snprintf(s, sizeof s, k < ADDED ? "<|special_%d|>" : "[padding %d]", k);
        add(v, k < 3 ? known[k] : s, k < ADDED ? CONTROL : UNUSED);
    }
}

static int declare(const vocab *v, int32_t special, q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    TRY(q4x_gguf_out_str(o, "tokenizer.ggml.model", "gpt2", err));
    TRY(q4x_gguf_out_str(o, "tokenizer.ggml.pre", "qwen35", err));
    TRY(q4x_gguf_out_strs(o, "tokenizer.ggml.tokens", v->token, NULL, (size_t)v->n, err));
    TRY(q4x_gguf_out_i32s(o, "tokenizer.ggml.token_type", v->type, (size_t)v->n, err));
    TRY(q4x_gguf_out_strs(o, "tokenizer.ggml.merges", v->merge, NULL, (size_t)v->nmerges, err));
    TRY(q4x_gguf_out_u32(o, "tokenizer.ggml.eos_token_id", (uint32_t)special + 2, err));
    TRY(q4x_gguf_out_u32(o, "tokenizer.ggml.bos_token_id", (uint32_t)special, err));
    TRY(q4x_gguf_out_u32(o, "tokenizer.ggml.padding_token_id", (uint32_t)special, err));
    TRY(q4x_gguf_out_bool(o, "tokenizer.ggml.add_bos_token", 0, err));
done:
    return rc;
}

int q4x_geometry_tokenizer(const q4x_geometry *g, q4x_gguf_out *o, q4x_err *err) {
    vocab v = {.cap = g->V};
    int32_t special = q4x_geometry_special(g);
    Q4X_BUG_IF(special < 256 + PAIRS);
    v.token = calloc((size_t)g->V, sizeof *v.token);
    v.type = calloc((size_t)g->V, sizeof *v.type);
    int rc = Q4X_E_NOMEM;
    if (v.token && v.type) {
        add_bytes(&v);
        add_pairs(&v);
        add_rest(&v, special);
        if (!v.failed) rc = declare(&v, special, o, err);
        if (v.failed) rc = q4x_fail(err, Q4X_E_NOMEM, "no memory for a vocabulary of %d", g->V);
    } else
        rc = q4x_fail(err, Q4X_E_NOMEM, "no memory for a vocabulary of %d", g->V);
    free(v.token);
    free(v.type);
    q4x_pool_free(&v.pool);
    return rc;
}
