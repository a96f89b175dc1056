#include "lib/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

void q4x_plan_free(q4x_plan *p) {
    if (!p) return;
    free(p->node);
    free(p->state);
    free(p);
}

int32_t q4x_plan_find(const q4x_plan *p, const char *name) {
    for (int32_t i = 0; i < p->nnodes; i++)
        if (!strcmp(p->node[i].name, name)) return i;
    return -1;
}

const char *q4x_plan_lever_word(const q4x_plan *p, int32_t node) {
    if (p->node[node].op == K_OP_matmul && p->node[node].epi == K_EPI_ROUTER) return "moe_logits";
    if (p->node[node].op == K_OP_add && p->node[node].per) return "add_resid";
    return node == p->logits ? "logits" : k_ops[p->node[node].op].name;
}

int q4x_plan_reads_lever(const q4x_plan *p, int32_t node, const q4x_lever *l) {
    if (q4x_lever_scope(l, q4x_plan_lever_word(p, node))) return 1;
    return node == p->logits && q4x_lever_scope(l, k_ops[p->node[node].op].name);
}

void q4x_plan_keep_levers(const q4x_plan *p, int32_t node, k_levers *lv) {
    for (const q4x_lever *l = q4x_levers; l < q4x_levers + q4x_nlevers; l++)
        if (l->field != (size_t)-1 && !q4x_plan_reads_lever(p, node, l))
            memset((char *)lv + l->field, 0, sizeof(int32_t)); /* the first value is the default */
}

/* The node that an alias shows, however many lie between. */
static int32_t shown(const q4x_plan *p, int32_t node) {
    while (node >= 0 && p->node[node].op == K_OP_alias) node = p->node[node].in[0];
    return node;
}

/* How op n cuts rows of its first input, [.., cols]; n 0: it takes them whole, or norms nothing. */
static q4x_parts cut_by(const q4x_node *n, int64_t cols) {
    if (n->op != K_OP_rmsnorm && n->op != K_OP_l2norm && n->op != K_OP_gdn_norm) return (q4x_parts){0};
    if (n->G == cols) return (q4x_parts){0};
    return (q4x_parts){n->off, n->G, n->op == K_OP_rmsnorm ? n->stride : n->G, (int32_t)(n->cols / n->G)};
}

/* Parts of two ops in one list: the same, or the second's right behind the first's. */
static int join(q4x_parts *a, const q4x_parts *b) {
    if (a->width != b->width || a->step != b->step) return -1;
    if (a->off == b->off && a->n == b->n) return 0;
    if (b->off != a->off + a->n * a->step) return -1;
    a->n += b->n;
    return 0;
}

q4x_parts q4x_plan_parts(const q4x_plan *p, int32_t node) {
    const int32_t from = shown(p, node);
    const int64_t cols = p->node[from].cols;
    q4x_parts all = {0};
    if (p->node[from].cols_kind != Q4X_COLS_FIXED || p->node[from].is_ids) return all;
    for (int32_t i = from + 1; i < p->nnodes; i++) {
        if (!p->node[i].nin || shown(p, p->node[i].in[0]) != from) continue;
        const q4x_parts x = cut_by(&p->node[i], cols);
        if (!x.n) continue;
        if (!all.n)
            all = x;
        else if (join(&all, &x))
            return (q4x_parts){0};
    }
    if (all.n && (cols % all.width || all.off % all.width || all.step % all.width)) return (q4x_parts){0};
    return all;
}

int q4x_emit_begin(q4x_emit *e, const char *arch, const k_dims *d, int64_t ctx_max, q4x_err *err) {
    memset(e, 0, sizeof *e);
    e->err = err;
    e->layer = -1;
    e->p = calloc(1, sizeof *e->p);
    if (!e->p) return e->rc = q4x_fail(err, Q4X_E_NOMEM, "plan: out of memory");
    snprintf(e->p->arch, sizeof e->p->arch, "%s", arch);
    e->p->d = *d;
    e->p->ctx_max = ctx_max;
    e->p->logits = -1;
    return 0;
}

/* Room for one more of the n items of this size; 0 when there is. */
static int grow(q4x_emit *e, void **items, int32_t n, int32_t *cap, size_t size) {
    if (e->rc) return e->rc;
    if (n < *cap) return 0;
    int32_t more = *cap ? 2 * *cap : 64;
    void *p = realloc(*items, (size_t)more * size);
    if (!p) return e->rc = q4x_fail(e->err, Q4X_E_NOMEM, "plan: out of memory for %d nodes", more);
    *items = p;
    *cap = more;
    return 0;
}

static void full_name(const q4x_emit *e, const char *name, char *buf, size_t size) {
    if (e->layer < 0)
        snprintf(buf, size, "%s", name);
    else
        snprintf(buf, size, "L%02d.%s", e->layer, name);
}

int32_t q4x_emit_node(q4x_emit *e, q4x_node n, const char *name) {
    if (grow(e, (void **)&e->p->node, e->p->nnodes, &e->cap_nodes, sizeof n)) return 0;
    full_name(e, name, n.name, sizeof n.name);
    n.layer = e->layer;
    if (n.op == K_OP_l2norm || (n.op == K_OP_rmsnorm && (n.G != n.cols || n.stride != n.G))) { /* part by part */
        const int32_t parts = (int32_t)(n.cols / n.G);
        n.heads = (q4x_heads){.axis = 1, .width = n.G, .nk = parts, .nv = parts};
    }
    e->p->node[e->p->nnodes] = n;
    return e->p->nnodes++;
}

int32_t q4x_emit_state(q4x_emit *e, q4x_state_desc s, const char *name) {
    if (grow(e, (void **)&e->p->state, e->p->nstates, &e->cap_states, sizeof s)) return 0;
    full_name(e, name, s.name, sizeof s.name);
    s.layer = e->layer;
    e->p->state[e->p->nstates] = s;
    return e->p->nstates++;
}

int q4x_emit_end(q4x_emit *e, q4x_plan **ret) {
    if (e->rc) {
        q4x_plan_free(e->p);
        return e->rc;
    }
    Q4X_BUG_IF(e->p->logits < 0);
    *ret = e->p;
    return 0;
}
