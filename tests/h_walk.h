/* h_walk.h: read everything that a model offers and hold it to the invariants of gguf-quants 1.5. A broken one aborts
 * with its condition: the fuzz target wants that, and a test dies loudly.
 */
#ifndef H_WALK_H
#define H_WALK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/gguf.h"

#include "tests/h_holds.h"

/* Inside shard s, whole. */
static inline int walk_inside(const q4x_model *m, int s, const void *p, size_t n) {
    const uint8_t *b = p, *base = m->map[s].data;
    uint64_t size = m->map[s].size;
    return b >= base && (uint64_t)(b - base) <= size && n <= size - (uint64_t)(b - base);
}

/* Every byte is read, so that a sanitizer sees a span that is not there. */
static inline unsigned walk_touch(const void *p, size_t n) {
    unsigned s = 0;
    for (size_t i = 0; i < n; i++) s += ((const uint8_t *)p)[i];
    return s;
}

static inline void walk_kv(const q4x_model *m, const char *key, unsigned *sum) {
    uint64_t u = 1;
    int64_t i = 1, n = -1, *v = NULL;
    double d = 1;
    int b = 0;
    const char *s = NULL;
    size_t len = 0;
    q4x_err e = {0};
    int ru = q4x_kv_u64(m, key, &u, &e), ri = q4x_kv_i64(m, key, &i, &e), rf = q4x_kv_f64(m, key, &d, &e);
    int rb = q4x_kv_bool(m, key, &b, &e), rs = q4x_kv_str(m, key, &s, &len, &e), rv = q4x_kv_ints(m, key, &v, &n, &e);
    HOLDS(ru <= 0 && ri <= 0 && rf <= 0 && rb <= 0 && rs <= 0 && rv <= 0);
    if (!ru && !ri) HOLDS(u == (uint64_t)i && i >= 0);
    HOLDS((!ru || !ri) + !rf + !rb + !rs <= 1);
    if (!rb) HOLDS(b == 0 || b == 1);
    if (!rs) {
        HOLDS(walk_inside(m, 0, s, len));
        *sum += walk_touch(s, len);
    }
    if (!rv) {
        HOLDS(n >= 0 && (uint64_t)n <= m->map[0].size);
        *sum += walk_touch(v, (size_t)n * sizeof *v);
        free(v);
    }
    int rc = q4x_kv_strs_count(m, key, &n, &e);
    HOLDS(rc <= 0);
    if (rc) {
        HOLDS(q4x_kv_strs_get(m, key, 0, &s, &len, &e) == Q4X_E_FORMAT);
        return;
    }
    const char *end = NULL;
    for (int64_t k = 0; k < n; k++) {
        HOLDS(!q4x_kv_strs_get(m, key, k, &s, &len, &e));
        HOLDS(walk_inside(m, 0, s, len));
        HOLDS(!end || s == end + 8);
        end = s + len;
        *sum += walk_touch(s, len);
    }
    HOLDS(q4x_kv_strs_get(m, key, n, &s, &len, &e) == Q4X_E_ARG &&
          q4x_kv_strs_get(m, key, -1, &s, &len, &e) == Q4X_E_ARG);
}

static inline void walk_tensor(const q4x_model *m, int64_t k, uint64_t *end, unsigned *sum) {
    static const uint32_t block[][3] = {
#define QUANT(id, name, elems, bytes, stored) [id] = {elems, bytes, stored},
#include "kernels/quants.def"
#undef QUANT
    };
    const q4x_tensor *t = q4x_model_tensor(m, k);
    HOLDS(q4x_model_find(m, t->name) == t);
    HOLDS(t->shard >= 0 && t->shard < q4x_model_nshards(m));
    size_t len = strlen(t->name);
    HOLDS(len >= 1 && len <= 63);
    for (size_t i = 0; i < len; i++) HOLDS(t->name[i] >= 0x20 && t->name[i] <= 0x7e);
    HOLDS(t->type >= 0 && (size_t)t->type < sizeof block / sizeof *block && block[t->type][0] && block[t->type][2]);
    HOLDS(t->ndim >= 1 && t->ndim <= 4);
    for (int i = 0; i < 4; i++) HOLDS(t->ne[i] >= 1 && (i < t->ndim || t->ne[i] == 1));
    HOLDS(t->ne[0] % block[t->type][0] == 0);
    /* Rows add up to the bytes. No product can wrap: the bytes lie in a file of this size. */
    unsigned __int128 bytes = (unsigned __int128)(uint64_t)(t->ne[0] / block[t->type][0]) * block[t->type][1];
    for (int i = 1; i < 4; i++) bytes *= (uint64_t)t->ne[i];
    HOLDS(bytes == t->bytes);
    const q4x_shard *s = q4x_model_shard(m, t->shard);
    HOLDS(walk_inside(m, t->shard, t->data, t->bytes));
    uint64_t off = (uint64_t)((const uint8_t *)t->data - m->map[t->shard].data);
    HOLDS(off >= s->data_off && off % 8 == 0);
    HOLDS(off >= *end); /* disjoint, in listing order */
    *end = off + t->bytes;
    *sum += walk_touch(t->data, t->bytes);
}

/* A sum over everything read, so that nothing is optimised away; equal for equal models. */
static inline unsigned walk_model(const q4x_model *m) {
    unsigned sum = 0;
    HOLDS(q4x_model_container(m) == Q4X_GGUF && q4x_model_path(m) && strlen(q4x_model_arch(m)) <= 63);
    for (int i = 0; i < q4x_model_nshards(m); i++) {
        const q4x_shard *s = q4x_model_shard(m, i);
        HOLDS(s->path && s->data_off <= s->size && s->size == m->map[i].size);
    }
    HOLDS(q4x_kv_count(m) <= (int64_t)(m->map[0].size / 13));
    for (int64_t i = 0; i < q4x_kv_count(m); i++) walk_kv(m, q4x_kv_key(m, i), &sum);
    uint64_t end = 0;
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) {
        if (i && m->tensor[i].shard != m->tensor[i - 1].shard) {
            HOLDS(m->tensor[i].shard > m->tensor[i - 1].shard);
            end = 0;
        }
        walk_tensor(m, i, &end, &sum);
    }
    char hex[33];
    HOLDS(!q4x_model_fingerprint(m, hex, NULL) && strlen(hex) == 32);
    return sum + walk_touch(hex, 32);
}

/* An error is one: a code, and a sentence that names the file. */
static inline void walk_error(int rc, const q4x_err *e, const char *file) {
    HOLDS(rc < 0 && e->code == rc);
    HOLDS(strstr(e->msg, file) && strlen(e->msg) > strlen(file) + 8);
}

#endif
