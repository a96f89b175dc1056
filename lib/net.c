/* net.c: a model file with its architecture bound: what a run needs, constant and shared. */
#include <stdlib.h>

#include "lib/arch.h"
#include "lib/names.h"
#include "lib/net_dev.h"
#include "lib/run.h"

/* The functions of an architecture behind one type. */
#define ARCH(id, gguf, hf, doc)                                                                                        \
    static int bind_##id(const q4x_model *m, void **ret_weights, q4x_plan **ret_plan, q4x_err *err) {                  \
        q4x_##id *w;                                                                                                   \
        int rc = q4x_##id##_bind(m, &w, err);                                                                          \
        if (rc) return rc;                                                                                             \
        rc = q4x_##id##_plan(w, ret_plan, err);                                                                        \
        if (rc)                                                                                                        \
            q4x_##id##_free(w);                                                                                        \
        else                                                                                                           \
            *ret_weights = w;                                                                                          \
        return rc;                                                                                                     \
    }                                                                                                                  \
    static void free_##id(void *weights) {                                                                             \
        q4x_##id##_free(weights);                                                                                      \
    }
#include "lib/archs.def"
#undef ARCH

typedef struct {
    int (*bind)(const q4x_model *m, void **ret_weights, q4x_plan **ret_plan, q4x_err *err);
    int (*settings)(const q4x_model *m, q4x_settings *ret, q4x_err *err);
    void (*free)(void *weights);
} arch_row;

static const arch_row ARCHS[Q4X_ARCH_COUNT] = {
#define ARCH(id, gguf, hf, doc) {bind_##id, q4x_##id##_settings, free_##id},
#include "lib/archs.def"
#undef ARCH
};

struct q4x_net {
    q4x_model *model;
    const arch_row *arch;
    void *weights;
    q4x_plan *plan;
    q4x_net_devs *devices; /* owned; changes while the net is constant */
};

static const arch_row *find_arch(const q4x_model *m) {
    const char *name = q4x_model_arch(m);
    for (size_t i = 0; i < Q4X_ARCH_COUNT; i++)
        if (q4x_word_in(q4x_model_container(m) == Q4X_GGUF ? q4x_archs[i].gguf : q4x_archs[i].hf, name))
            return &ARCHS[i];
    return NULL;
}

/* Tables whose rows are gathered, and read by nothing else: of tens of gigabytes only those rows should come. */
static void advise(const q4x_net *n) {
    for (int32_t i = 0; i < n->plan->nnodes; i++) {
        const q4x_node *x = &n->plan->node[i];
        if (x->op != K_OP_ple_gather) continue;
        for (int32_t k = 0; k < x->nw[0]; k++)
            q4x_model_scattered(n->model, x->w[0][k].data, (uint64_t)x->w[0][k].rows * x->w[0][k].row_bytes);
    }
}

static int unknown_arch(const q4x_model *m, const char *path, q4x_err *err) {
    static const char names[] =
#define ARCH(id, gguf, hf, doc) ", " gguf
#include "lib/archs.def"
#undef ARCH
        ;
    return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: architecture '%s' is not one that this build runs (%s)", path,
                    q4x_model_arch(m), names + 2);
}

int q4x_net_open(const char *path, q4x_net **ret, q4x_err *err) {
    int rc = 0;
    q4x_net *n = calloc(1, sizeof *n);
    if (!n || !(n->devices = calloc(1, sizeof *n->devices))) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: out of memory", path));
    TRY(q4x_model_open(path, &n->model, err));
    n->arch = find_arch(n->model);
    if (!n->arch) TRY(unknown_arch(n->model, path, err));
    TRY(n->arch->bind(n->model, &n->weights, &n->plan, err));
    advise(n);
    *ret = n;
    return 0;
done:
    q4x_net_close(n);
    return rc;
}

int q4x_settings_read(const q4x_model *m, q4x_settings *ret, q4x_err *err) {
    const arch_row *a = find_arch(m);
    return a ? a->settings(m, ret, err) : unknown_arch(m, q4x_model_path(m), err);
}

void q4x_net_close(q4x_net *n) {
    if (!n) return;
    if (n->devices) q4x_net_dev_free(n->devices);
    free(n->devices);
    q4x_plan_free(n->plan);
    if (n->weights) n->arch->free(n->weights);
    q4x_model_close(n->model);
    free(n);
}

const q4x_model *q4x_net_model(const q4x_net *n) {
    return n->model;
}
q4x_net_devs *q4x_net_devices(const q4x_net *n) {
    return n->devices;
}
const q4x_plan *q4x_net_plan(const q4x_net *n) {
    return n->plan;
}
const k_dims *q4x_net_dims(const q4x_net *n) {
    return &n->plan->d;
}
