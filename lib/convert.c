#include "lib/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/quant.h"
#include "lib/arch.h"
#include "lib/arch_qwen35.h"
#include "lib/arch_qwen4.h"
#include "lib/convert_int.h"
#include "lib/encode.h"
#include "lib/io.h"
#include "lib/names.h"
#include "lib/tok_give.h"
#include "lib/utf8.h"

/* ---- the architectures behind one type ---- */

typedef struct {
    const char *hf, *gguf;
    int (*bind)(const q4x_model *m, void **ret, const k_dims **ret_d, q4x_err *err);
    int (*give)(const q4x_taker *to, q4x_gguf_out *keys, void *w, q4x_err *err);
    void (*free)(void *w);
} arch_row;

#define ARCH(id, gguf, hf, doc)                                                                                        \
    static int bind_##id(const q4x_model *m, void **ret, const k_dims **ret_d, q4x_err *err) {                         \
        q4x_##id *w;                                                                                                   \
        int rc = q4x_##id##_bind(m, &w, err);                                                                          \
        if (rc) return rc;                                                                                             \
        *ret = w;                                                                                                      \
        *ret_d = &w->d;                                                                                                \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int give_##id(const q4x_taker *to, q4x_gguf_out *keys, void *w, q4x_err *err) {                             \
        return q4x_##id##_give(to, keys, w, err);                                                                      \
    }                                                                                                                  \
    static void free_##id(void *w) {                                                                                   \
        q4x_##id##_free(w);                                                                                            \
    }
#include "lib/archs.def"
#undef ARCH

static const arch_row archs[] = {
#define ARCH(id, gguf, hf, doc) {hf, gguf, bind_##id, give_##id, free_##id},
#include "lib/archs.def"
#undef ARCH
};

static int find_arch(const q4x_model *m, const arch_row **ret, q4x_err *err) {
    if (q4x_model_container(m) != Q4X_HF)
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "%s: expected a checkpoint (config.json and safetensors), found a GGUF "
                        "file",
                        q4x_tail(q4x_model_path(m)));
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (q4x_word_in(archs[i].hf, q4x_model_arch(m))) {
            *ret = &archs[i];
            return 0;
        }
    return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: architecture '%.40s' is not one that can be converted",
                    q4x_tail(q4x_model_path(m)), q4x_model_arch(m));
}

/* ---- the list of tensors ---- */

typedef struct {
    q4x_source *t;
    int64_t n, cap;
    const k_dims *d;
} items;

static int take(void *ctx, const q4x_given *g, q4x_err *err) {
    items *l = ctx;
    if (l->n == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 256;
        q4x_source *more = realloc(l->t, (size_t)cap * sizeof *more);
        if (!more) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a list of %lld tensors", (long long)cap);
        l->t = more;
        l->cap = cap;
    }
    q4x_source *t = &l->t[l->n++];
    *t = (q4x_source){.ndim = g->ndim, .ne = {1, 1, 1, 1}, .w = g->w, .nw = g->nw, .v = g->v};
    for (int i = 0; i < g->ndim; i++) t->ne[i] = g->ne[i];
    snprintf(t->name, sizeof t->name, "%s", g->name); /* the writer refuses longer ones */
    t->heads = q4x_head_axis_of(l->d, t->name);
    return 0;
}

const char *q4x_convert_types(char *buf, size_t size) {
    size_t n = 0;
    buf[0] = 0;
    for (int t = 0; t < Q4X_FT_COUNT && n < size; t++)
        if (q4x_can_encode(q4x_file_types[t].dflt))
            n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", q4x_file_types[t].name);
    return buf;
}

static int declare(const items *l, const q4x_convert_opts *o, q4x_gguf_out *out, q4x_err *err) {
    for (int64_t i = 0; i < l->n; i++) {
        q4x_source *t = &l->t[i];
        t->type = q4x_type_rule(o->type, t->name, t->ndim, t->ne, l->d->L);
        if (!q4x_can_encode(t->type)) {
            char types[200];
            return q4x_fail(err, Q4X_E_UNSUPPORTED,
                            "file type %s: tensor %s would be %s, which has no encoder here; expected one of %s",
                            q4x_file_types[o->type].name, t->name, k_quant_get(t->type)->name,
                            q4x_convert_types(types, sizeof types));
        }
        int rc = q4x_gguf_out_tensor(out, t->name, t->type, t->ndim, t->ne, err);
        if (rc) return rc;
    }
    return 0;
}

static int write_all(q4x_copy *c, const items *l, q4x_err *err) {
    for (int64_t i = 0; i < l->n; i++) c->cost += q4x_source_cost(&l->t[i]);
    for (int64_t i = 0; i < l->n; i++) {
        int rc = q4x_copy_source(c, &l->t[i], err);
        if (rc) return rc;
    }
    return 0;
}

/* ---- the file ---- */

static int give_general(const arch_row *a, const q4x_convert_opts *o, q4x_gguf_out *out, q4x_err *err) {
    const int32_t number = q4x_file_types[o->type].number;
    int rc;
    TRY(q4x_gguf_out_str(out, "general.architecture", a->gguf, err));
    TRY(q4x_gguf_out_str(out, "general.type", "model", err));
    TRY(q4x_gguf_out_str(out, "general.name", o->name, err));
    if (number >= 0) TRY(q4x_gguf_out_u32(out, "general.file_type", (uint32_t)number, err));
    TRY(q4x_gguf_out_u32(out, "general.quantization_version", 2, err));
done:
    return rc;
}

/* Tensors of parts that are not converted. */
static int64_t count_left_out(const q4x_model *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) n += q4x_model_foreign(q4x_model_tensor(m, i)->name);
    return n;
}

static int check_name(const char *name, q4x_err *err) {
    const size_t n = strlen(name), good = q4x_utf8_valid((const uint8_t *)name, n);
    if (good == n) return 0;
    return q4x_fail(err, Q4X_E_ARG, "name '%.60s': not UTF-8 from byte %zu on; give another with --name", name, good);
}

int q4x_convert(const q4x_model *m, const char *path, const q4x_convert_opts *o, q4x_convert_done *ret, q4x_err *err) {
    const arch_row *a = NULL;
    void *w = NULL;
    items l = {0};
    q4x_copy c = {.from = m, .nth = o->nth, .log = o->log};
    q4x_convert_done done = {0};
    int rc = check_name(o->name, err);
    if (!rc) rc = find_arch(m, &a, err);
    if (rc) return rc;
    TRY(a->bind(m, &w, &l.d, err));
    TRY(q4x_gguf_out_new(path, &(q4x_gguf_cut){0}, &c.out, err));
    TRY(give_general(a, o, c.out, err));
    TRY(a->give(&(q4x_taker){&l, take}, c.out, w, err));
    TRY(o->no_tokenizer ? q4x_tok_give_none(c.out, err) : q4x_tok_give(m, l.d->V, c.out, o->log, err));
    TRY(declare(&l, o, c.out, err));
    c.d = l.d;
    TRY(q4x_gguf_out_begin(c.out, err));
    done =
        (q4x_convert_done){.tensors = l.n, .left_out = count_left_out(m), .bytes = q4x_gguf_out_shard(c.out, 0)->size};
    TRY(write_all(&c, &l, err));
    q4x_gguf_out *out = c.out;
    c.out = NULL;
    TRY(q4x_gguf_out_finish(out, err));
    *ret = done;
done:
    if (o->log) q4x_log_done(o->log);
    q4x_gguf_out_abort(c.out);
    free(l.t);
    if (w) a->free(w);
    return rc;
}
