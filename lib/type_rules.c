#include "lib/type_rules.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kernels/quant.h"

const q4x_file_type_info q4x_file_types[Q4X_FT_COUNT] = {
#define FILE_TYPE(id, name, number, dflt) [Q4X_FT_##id] = {name, number, K_T_##dflt},
#include "lib/file_types.def"
#undef FILE_TYPE
};

typedef enum { ALL, TWO, WIDE, EDGE } layers;

typedef struct {
    q4x_file_type ft;
    const char *glob;
    layers where;
    int32_t type;
} rule;

#define FALLBACK(type, next)
static const rule rules[] = {
#define RULE(file_type, glob, where, type) {Q4X_FT_##file_type, glob, where, K_T_##type},
#include "lib/type_rules.def"
#undef RULE
};
#undef FALLBACK

int q4x_file_type_find(const char *name) {
    for (int i = 0; i < Q4X_FT_COUNT; i++)
        if (!strcasecmp(q4x_file_types[i].name, name)) return i;
    return -1;
}

static int32_t next_of(int32_t type) {
    switch (type) {
#define RULE(file_type, glob, where, type)
#define FALLBACK(type, next)                                                                                           \
    case K_T_##type:                                                                                                   \
        return K_T_##next;
#include "lib/type_rules.def"
#undef FALLBACK
#undef RULE
    default: return K_T_F16;
    }
}

/* Layer of "blk.N.REST", -1 for a tensor of no layer; *rest is what follows. */
static int layer_of(const char *name, const char **rest) {
    char *end;
    *rest = name;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return -1;
    long n = strtol(name + 4, &end, 10);
    if (*end != '.' || n > INT32_MAX) return -1;
    *rest = end + 1;
    return (int)n;
}

static int in_layers(layers where, int i, int n) {
    static const int8_t wide[] = {1, 2, 4, 14, 16, 25, 30, 32, 37, 39, 42, 45, 46, 47};
    if (where == ALL) return 1;
    if (where == TWO) return i == 2;
    if (where == EDGE) return i >= 0 && (i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2);
    for (size_t k = 0; k < sizeof wide; k++)
        if (i == wide[k]) return 1;
    return 0;
}

static int ends_in(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static int always_f32(const char *rest, int ndim) {
    return ndim < 2 || ends_in(rest, "_norm.weight") || !ends_in(rest, ".weight") ||
           !strcmp(rest, "ffn_gate_inp.weight") || !strcmp(rest, "ffn_gate_inp_shexp.weight") ||
           !strcmp(rest, "ssm_conv1d.weight");
}

int32_t q4x_type_rule(q4x_file_type ft, const char *tensor, int ndim, const int64_t *ne, int nblocks) {
    const char *rest;
    int layer = layer_of(tensor, &rest);
    if (always_f32(rest, ndim)) return K_T_F32;
    int32_t type = q4x_file_types[ft].dflt;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const rule *r = &rules[i];
        if (r->ft != ft || !in_layers(r->where, layer, nblocks) || fnmatch(r->glob, rest, 0)) continue;
        type = r->type;
        break;
    }
    while (ne[0] % k_quant_get(type)->elems) type = next_of(type);
    return type;
}
