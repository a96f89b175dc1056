/* dump_content.c: the hash that says whether two runs are equal. What it covers stands in dump.h. */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/dump_int.h"
#include "lib/lever.h"

struct q4x_content {
    XXH3_state_t x; /* its type asks for 64-byte alignment */
};

static void add(q4x_content *c, const void *p, size_t n) {
    XXH3_128bits_update(&c->x, p, n);
}

static void add_i32(q4x_content *c, int32_t v) {
    add(c, &v, sizeof v);
}

static void add_i64(q4x_content *c, int64_t v) {
    add(c, &v, sizeof v);
}

static void add_text(q4x_content *c, const char *s, size_t n) {
    add_i64(c, (int64_t)n);
    add(c, s, n);
}

/* A lever object as text that does not depend on the order of its keys. */
static int add_json(q4x_content *c, const json_t *v) {
    char *s = v ? json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
    if (v && !s) return -1;
    add_text(c, s ? s : "null", s ? strlen(s) : 4);
    free(s);
    return 0;
}

/* The levers that are not at their default: a lever that a later version adds does not change what older runs were. */
static json_t *moved(const json_t *levers) {
    json_t *ret = json_is_object(levers) ? json_copy((json_t *)(uintptr_t)levers) : NULL;
    char word[64];
    for (int i = 0; ret && i < q4x_nlevers; i++) {
        const json_t *v = json_object_get(ret, q4x_levers[i].name);
        const char *def = q4x_lever_value(&q4x_levers[i], 0, word, sizeof word);
        if (json_is_string(v) && !strcmp(json_string_value(v), def)) json_object_del(ret, q4x_levers[i].name);
    }
    return ret;
}

q4x_content *q4x_content_new(const json_t *header) {
    q4x_content *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    if (!c) return NULL;
    XXH3_128bits_reset(&c->x);
    const json_t *arm = json_object_get(header, "arm");
    json_t *levers = moved(json_object_get(arm, "levers"));
    add(c, "L", 1);
    int rc = add_json(c, levers);
    if (!rc) rc = add_json(c, json_object_get(arm, "scoped"));
    json_decref(levers);
    if (!rc) return c;
    free(c);
    return NULL;
}

void q4x_content_free(q4x_content *c) {
    free(c);
}

void q4x_content_tap(q4x_content *c, const char *name, const q4x_tap *t) {
    int32_t which[2] = {t->forward, t->dtype};
    int64_t shape[2] = {t->rows, t->cols};
    add(c, "T", 1);
    add_text(c, name, strlen(name));
    add(c, which, sizeof which);
    add(c, shape, sizeof shape);
    add(c, t->bits.b, sizeof t->bits.b);
}

void q4x_content_forward(q4x_content *c, const q4x_forward *f) {
    q4x_hash bits = {{0}};
    size_t n = (size_t)f->n_logits * (size_t)f->vocab;
    if (f->logits) bits = q4x_bits_of(Q4X_BITS_F32, f->logits, n * sizeof *f->logits);
    add(c, "F", 1);
    add_i32(c, f->index);
    add_i32(c, f->pos0);
    add_i32(c, f->n_ids);
    if (f->n_ids) add(c, f->ids, (size_t)f->n_ids * sizeof *f->ids);
    add_i32(c, f->sampled);
    add_i32(c, f->logits ? f->n_logits : 0);
    add_i32(c, f->logits ? f->vocab : 0);
    add(c, bits.b, sizeof bits.b);
}

q4x_hash q4x_content_end(const q4x_content *c) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&c->x));
    q4x_hash h;
    memcpy(h.b, digest.digest, sizeof h.b);
    return h;
}
