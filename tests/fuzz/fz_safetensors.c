/* fz_safetensors.c: any bytes as a safetensors file. Input that begins with '{' is the header's text up to the first
 * NUL, data behind it, so that a mutation need not keep the length field right. Either a named error, or a table that
 * keeps every promise; parsing twice gives the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/k.h"
#include "lib/safetensors.h"
#include "tests/h_holds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const q4x_st *st, const uint8_t *p, uint64_t size) {
    uint64_t at = st->data_off;
    unsigned sum = 0;
    HOLDS(at <= size && st->n >= 0);
    for (int64_t i = 0; i < st->n; i++) {
        const q4x_st_tensor *t = &st->t[i];
        int64_t elems = 1;
        HOLDS(t->off == at && t->bytes <= size - at);
        at += t->bytes;
        HOLDS(t->ndim >= 0 && t->ndim <= Q4X_ST_MAXDIM && strlen(t->name) >= 1 && strlen(t->name) <= Q4X_ST_MAXNAME);
        for (int k = 0; k < t->ndim; k++) {
            HOLDS(t->shape[k] >= 0);
            elems *= t->shape[k];
        }
        HOLDS(elems == t->elems && t->dtype && q4x_st_find(st, t->name) == t);
        if (t->type == K_T_F32 || t->type == K_T_I32) HOLDS(t->bytes == 4 * (uint64_t)elems);
        if (t->type == K_T_BF16 || t->type == K_T_F16) HOLDS(t->bytes == 2 * (uint64_t)elems);
        for (uint64_t b = 0; b < t->bytes; b++) sum += p[t->off + b];
        if (i) HOLDS(strcmp(st->by_name[i - 1]->name, st->by_name[i]->name) < 0);
    }
    HOLDS(at == size && !q4x_st_find(st, "no such tensor\n"));
    const char *format = q4x_st_meta(st, "format");
    if (format) sum += (unsigned)strlen(format);
    if (sum == 0x5a5a5a5au) fputc(' ', stderr); /* so that nothing is optimised away */
}

static void parse_twice(const uint8_t *p, size_t size) {
    q4x_st *a = NULL, *b = NULL;
    q4x_err ea = {0}, eb = {0};
    int ra = q4x_st_parse(p, size, "in.safetensors", &a, &ea), rb = q4x_st_parse(p, size, "in.safetensors", &b, &eb);
    HOLDS(ra == rb && !a == !b && !strcmp(ea.msg, eb.msg));
    if (ra) {
        HOLDS(!a && ra < 0 && ea.code == ra && !strncmp(ea.msg, "in.safetensors: ", 16) && strlen(ea.msg) > 24);
    } else {
        HOLDS(a->n == b->n);
        walk(a, p, size);
    }
    q4x_st_free(a);
    q4x_st_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size || data[0] != '{') {
        parse_twice(data, size);
        return 0;
    }
    const uint8_t *nul = memchr(data, 0, size);
    size_t head = nul ? (size_t)(nul - data) : size, behind = nul ? size - head - 1 : 0;
    uint8_t *p = malloc(8 + head + behind);
    HOLDS(p);
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)((uint64_t)head >> (8 * i));
    memcpy(p + 8, data, head);
    if (behind) memcpy(p + 8 + head, nul + 1, behind);
    parse_twice(p, 8 + head + behind);
    free(p);
    return 0;
}
