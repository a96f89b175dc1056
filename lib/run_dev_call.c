/* run_dev_call.c: an op's operands on the device, and whether they lie in what was allocated for them. */
#include <string.h>

#include "kernels/dev_shape.h"
#include "lib/run_dev_int.h"

float *q4x_run_dev_out(const q4x_run *r, int32_t i, const float *out) {
    const q4x_run_dev *d = r->dev;
    return i == r->plan->logits ? d->logits + (out - r->logits - d->logits_at) : d->arena + (out - r->arena);
}

k_call q4x_run_dev_call(const q4x_run *r, int32_t i, const k_call *c, k_state st[K_MAXST]) {
    const q4x_node *n = &r->plan->node[i];
    const q4x_run_dev *d = r->dev;
    const q4x_node_dev *w = q4x_net_dev_node(d->net, i);
    k_call x = *c;
    for (int32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == Q4X_IN_IDS)
            x.in_i[k] = d->ids + (c->in_i[k] - d->tile_ids);
        else
            x.in[k] = d->arena + (c->in[k] - r->arena);
    }
    x.out = q4x_run_dev_out(r, i, c->out);
    memcpy(x.w, w->w, sizeof x.w);
    memcpy(x.w_dev, w->w_dev, sizeof x.w_dev);
    memcpy(x.par, w->par, sizeof x.par);
    for (int32_t k = 0; k < K_MAXST; k++) {
        x.st[k] = NULL;
        if (k >= n->nst) continue;
        st[k] = d->st[n->st[k]];
        x.st[k] = &st[k];
    }
    x.scratch = d->scratch;
    x.scratch_n = d->scratch_n;
    return x;
}

/* 1 when n floats from p on lie in a buffer of cap floats. */
static int inside(const float *p, int64_t n, const float *buffer, int64_t cap) {
    return p >= buffer && n >= 0 && n <= cap && p - buffer <= cap - n;
}

const void *q4x_run_there(const q4x_run *r, const void *operand) {
    const q4x_run_dev *d = r->dev;
    if (!d) return NULL;
    if (inside(operand, 1, r->arena, r->arena_n)) return d->arena + ((const float *)operand - r->arena);
    if (r->logits && inside(operand, 1, r->logits + d->logits_at, (int64_t)d->cap_logits * r->plan->d.V))
        return d->logits + ((const float *)operand - r->logits - d->logits_at);
    return NULL;
}

/* Operands that the run allocated. */
static const char *outside(const q4x_run *r, int32_t i, const k_call *x) {
    const q4x_node *n = &r->plan->node[i];
    const q4x_run_dev *d = r->dev;
    const int64_t made = x->T * x->cols;
    for (int32_t k = 0; k < n->nin; k++)
        if (n->in[k] == Q4X_IN_IDS) {
            if (!inside(x->in[k], x->T, (const float *)(const void *)d->ids, d->ids_n)) return "ids beyond their tile";
        } else if (!inside(x->in[k], x->T * x->in_cols[k], d->arena, r->arena_n)) {
            return "an input beyond the arena";
        }
    if (i == r->plan->logits ? !inside(x->out, made, d->logits, (int64_t)d->cap_logits * r->plan->d.V)
                             : !inside(x->out, made, d->arena, r->arena_n))
        return "an output beyond its buffer";
    for (int32_t k = 0; k < n->nst; k++)
        if (x->st[k]->f && !inside(x->st[k]->f, x->st[k]->cap * x->st[k]->cols, d->block, d->block_n))
            return "a state beyond those of the run";
    return inside(x->scratch, x->scratch_n, d->block, d->block_n) ? NULL : "scratch beyond the run's";
}

/* Parameters, and weights. */
static const char *outside_net(const q4x_run *r, int32_t i, const k_call *x) {
    const k_shape s = k_shape_of(r->plan->node[i].op, x);
    const q4x_net_dev *net = r->dev->net;
    for (int k = 0; k < K_MAXW; k++) {
        if (s.par[k] && !q4x_net_dev_holds(net, x->par[k], (uint64_t)s.par[k] * sizeof(float)))
            return "a parameter beyond those of the model";
        if (x->w_dev[k] && !q4x_net_dev_holds(net, x->w_dev[k], (uint64_t)x->nw[k] * sizeof(k_weight)))
            return "a list of weights beyond those of the model";
        for (int32_t e = 0; x->w[k] && e < x->nw[k]; e++)
            if (!q4x_net_dev_holds(net, x->w[k][e].data, (uint64_t)x->w[k][e].rows * x->w[k][e].row_bytes))
                return "a weight beyond those of the model";
    }
    return NULL;
}

const char *q4x_run_dev_misfit(const q4x_run *r, int32_t i, const k_call *x) {
    const k_op op = r->plan->node[i].op;
    char *fit = &r->dev->fit[i];
    const char *why = *fit ? k_dev_unfit_call(op, x) : k_dev_unfit(op, x);
    if (!why) why = outside(r, i, x);
    if (!why && !*fit) why = outside_net(r, i, x);
    if (!why) *fit = 1;
    return why;
}
