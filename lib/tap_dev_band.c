/* tap_dev_band.c: bands of a run on a device. They are stated here, from the operands that an op was given there, which
 * come beside its output. Rows of a cache come once, when they are new, and stay here; a state that an op changes comes
 * as it was before it. */
#include <stdlib.h>
#include <string.h>

#include "lib/arena.h"
#include "lib/tap_dev_int.h"

static int is_fixed(const q4x_tapset *t, int32_t state) {
    return t->plan->state[state].rows_kind == Q4X_ROWS_FIXED;
}

int64_t q4x_tapdev_band_have(q4x_tapset *t, int32_t node, const k_call *call) {
    const q4x_node *n = &t->plan->node[node];
    if (!n->nst || is_fixed(t, n->st[0])) return 0;
    const int blocks = t->plan->state[n->st[0]].rows_kind == Q4X_ROWS_BLOCK;
    const int64_t before = call->pos0 / (blocks ? t->plan->d.ratio : 1);
    int64_t *rows = &t->dev->cache[n->st[0]].rows;
    if (*rows > before) *rows = before; /* of another sequence */
    return *rows;
}

static size_t state_bytes(const q4x_tapset *t, const q4x_piece *p) {
    return 4 * (size_t)p->c.nrows * (size_t)t->plan->state[p->c.state].cols;
}

int q4x_tapdev_band_before(q4x_tapset *t, q4x_piece *p) {
    q4x_tapdev *d = t->dev;
    if (p->c.state < 0 || !is_fixed(t, p->c.state) || !p->c.nrows) return 0;
    const k_state st = q4x_run_state_there(t->run, p->c.state);
    int code = q4x_tapdev_bring(d, p, p->c.state_at, st.f, state_bytes(t, p));
    if (!code) code = q4x_tapdev_launch(d);
    return code ? code : k_dev_join(d->dev, d->dev->measured); /* the op writes over it */
}

static int bring_rows(q4x_tapset *t, const q4x_piece *p) {
    if (p->c.state < 0 || is_fixed(t, p->c.state)) return 0;
    const k_state st = q4x_run_state_there(t->run, p->c.state);
    t->dev->cache[p->c.state].rows = p->c.rows + p->c.nrows;
    return q4x_tapdev_bring(t->dev, p, p->c.state_at, st.f + p->c.rows * st.cols, state_bytes(t, p));
}

int q4x_tapdev_band_bring(q4x_tapset *t, q4x_piece *p, const k_call *call, q4x_err *err) {
    const q4x_node *n = &t->plan->node[p->ev.node];
    int code = 0;
    p->call = calloc(1, sizeof *p->call);
    if (!p->call) return q4x_tapdev_nomem(err);
    p->call->c = *call;
    p->call->lv = *call->lv;
    if (!p->c.reads) return 0;
    for (int32_t k = 0; k < n->nin && !code; k++) {
        const size_t bytes = 4 * (size_t)call->T * (size_t)call->in_cols[k];
        if (n->in[k] == Q4X_IN_IDS)
            memcpy(p->c0 + p->c.in_at[k], call->in_i[k], bytes);
        else
            code = q4x_tapdev_bring(t->dev, p, p->c.in_at[k], q4x_run_there(t->run, call->in[k]), bytes);
    }
    if (!code) code = bring_rows(t, p);
    return code ? q4x_tapdev_refused(t, code, p->forward, err) : 0;
}

/* New rows of a cache join those that are here. */
static int keep_rows(q4x_tapset *t, const q4x_piece *p, k_state *st, q4x_err *err) {
    const q4x_state_desc *sd = &t->plan->state[p->c.state];
    q4x_tapcache *c = &t->dev->cache[p->c.state];
    st->cap = q4x_state_rows(t->plan, sd, q4x_run_ctx(t->run));
    st->cols = sd->cols;
    st->rows = p->c.rows + p->c.nrows;
    if (!c->f && !(c->f = calloc((size_t)st->cap * (size_t)sd->cols, sizeof *c->f))) return q4x_tapdev_nomem(err);
    memcpy(c->f + p->c.rows * sd->cols, p->c0 + p->c.state_at, state_bytes(t, p));
    st->f = c->f;
    return 0;
}

int q4x_tapdev_band_take(q4x_tapset *t, q4x_piece *p, q4x_err *err) {
    const q4x_node *n = &t->plan->node[p->ev.node];
    k_call *c = &p->call->c;
    int rc = q4x_run_scratch_here(t->run, c, err);
    if (rc) return rc;
    c->lv = &p->call->lv;
    c->out = p->c.reads ? (float *)(void *)(p->c0 + p->c.out_at) : NULL;
    for (int32_t k = 0; k < n->nin; k++)
        c->in[k] = p->c.reads ? (const float *)(const void *)(p->c0 + p->c.in_at[k]) : NULL;
    for (int32_t k = 0; k < K_MAXST; k++) c->st[k] = NULL;
    if (p->c.state >= 0) {
        const q4x_state_desc *sd = &t->plan->state[p->c.state];
        k_state *st = p->call->st;
        c->st[0] = &st[0];
        if (is_fixed(t, p->c.state)) {
            st[0] = st[1] = (k_state){.f = (float *)(void *)(p->c0 + p->c.state_at), .cols = sd->cols};
            st[1].cap = st[1].rows = p->c.nrows;
            if (p->c.nrows) c->st[1] = &st[1];
        } else {
            rc = keep_rows(t, p, &st[0], err);
        }
    }
    if (!rc) q4x_tap_bands(t, p->ev.node, c);
    return rc;
}
