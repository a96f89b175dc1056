#include "lib/names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/err.h"

enum { CHUNK = 32768 };

struct q4x_pool_chunk {
    q4x_pool_chunk *next;
    size_t used, cap;
    char bytes[];
};

int q4x_word_in(const char *words, const char *name) {
    size_t len = strlen(name);
    for (const char *p = words; *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        if (n == len && !memcmp(p, name, n)) return 1;
        p += n;
    }
    return 0;
}

int q4x_next_word(const char **p, char *buf, size_t size) {
    if (!*p) return 0;
    size_t n = strcspn(*p, ","), copied = n < size ? n : size - 1;
    memcpy(buf, *p, copied);
    buf[copied] = 0;
    *p = (*p)[n] ? *p + n + 1 : NULL;
    return 1;
}

char *q4x_pool_str(q4x_pool *p, const void *bytes, size_t n) {
    if (n >= SIZE_MAX - sizeof(q4x_pool_chunk) - 1) return NULL;
    q4x_pool_chunk *c = p->chunk;
    if (!c || c->cap - c->used < n + 1) {
        /* A string of its own size gets its own chunk behind the current one, which still has room. */
        size_t cap = n + 1 > CHUNK / 4 ? n + 1 : CHUNK;
        q4x_pool_chunk *fresh = malloc(sizeof *fresh + cap);
        if (!fresh) return NULL;
        fresh->used = 0;
        fresh->cap = cap;
        if (c && cap != CHUNK) {
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            p->chunk = fresh;
        }
        c = fresh;
    }
    char *s = c->bytes + c->used;
    if (n) memcpy(s, bytes, n);
    s[n] = 0;
    c->used += n + 1;
    return s;
}

void q4x_pool_free(q4x_pool *p) {
    for (q4x_pool_chunk *c = p->chunk, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    p->chunk = NULL;
}

/* The slot of a name, or the free one where it belongs. cap is a power of two and never full. */
static q4x_names_slot *probe(const q4x_names *t, const char *name, size_t len, uint64_t hash) {
    size_t i = (size_t)hash & (t->cap - 1);
    for (;; i = (i + 1) & (t->cap - 1)) {
        q4x_names_slot *s = &t->slot[i];
        if (!s->name) return s;
        if (s->hash == hash && s->len == len && (len == 0 || !memcmp(s->name, name, len))) return s;
    }
}

static int grow(q4x_names *t) {
    size_t cap = t->cap ? t->cap * 2 : 64;
    if (cap < t->cap) return Q4X_E_NOMEM;
    q4x_names big = {.slot = calloc(cap, sizeof *big.slot), .cap = cap, .n = t->n, .seed = t->seed};
    if (!big.slot) return Q4X_E_NOMEM;
    for (size_t i = 0; i < t->cap; i++)
        if (t->slot[i].name) *probe(&big, t->slot[i].name, t->slot[i].len, t->slot[i].hash) = t->slot[i];
    free(t->slot);
    *t = big;
    return 0;
}

int q4x_names_add(q4x_names *t, const char *name, size_t len, int64_t value) {
    if (!t->cap) {
        /* Without entropy the address still varies; the seed defends time only. */
        if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t)sizeof t->seed)
            t->seed = (uint64_t)(uintptr_t)name * 0x9e3779b97f4a7c15u;
    }
    if (t->n >= t->cap / 2 && grow(t)) return Q4X_E_NOMEM;
    uint64_t hash = XXH3_64bits_withSeed(name, len, t->seed);
    q4x_names_slot *s = probe(t, name, len, hash);
    if (s->name) return 1;
    *s = (q4x_names_slot){.name = name, .len = len, .hash = hash, .value = value};
    t->n++;
    return 0;
}

int64_t q4x_names_find(const q4x_names *t, const char *name, size_t len) {
    if (!t->cap) return -1;
    const q4x_names_slot *s = probe(t, name, len, XXH3_64bits_withSeed(name, len, t->seed));
    return s->name ? s->value : -1;
}

void q4x_names_free(q4x_names *t) {
    free(t->slot);
    *t = (q4x_names){0};
}
