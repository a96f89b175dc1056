/* tap_witness.c: which levers of the arm moved a bit (requirement R4).
 *
 * Of an item that is in scope at a node and asks for something else than the rest of the arm does, the op is run again
 * on the same inputs without it; another output, or another state behind it, is the witness. One is enough, so an item
 * that is alive costs a few ops of one forward. Ops that change a state can be run again where it grows by rows, which
 * are put back after, and where the run shows it as it was before the tile (the delta rule); others cannot. A plant is
 * known to the run itself. */
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "kernels/round.h"
#include "kernels/topk.h"
#include "lib/tap_int.h"

/* Does item k decide what op reads at this node in this forward? lv: the levers without it. */
static int decides(const q4x_tapset *t, int k, int32_t node, const k_levers *with, k_levers *lv) {
    const q4x_arm *a = q4x_run_arm(t->run);
    const q4x_plan *p = q4x_run_plan(t->run);
    const q4x_lever *l = &q4x_levers[a->item[k].lever];
    if (t->lever[k].moved || l->field == (size_t)-1) return 0;
    /* at the logits the word stands for the choice, which has its own witness */
    if (!q4x_lever_scope(l, k_ops[p->node[node].op].name) &&
        (node == p->logits || !q4x_lever_scope(l, q4x_plan_lever_word(p, node))))
        return 0;
    q4x_arm_resolve_without(a, k, p->node[node].name, q4x_run_nforward(t->run), lv);
    return memcmp((const char *)with + l->field, (const char *)lv + l->field, sizeof(int32_t)) != 0;
}

static int moved(q4x_tapset *t, int k, int32_t node, int32_t forward) {
    t->lever[k].moved = 1;
    t->lever[k].node = node;
    t->lever[k].forward = forward;
    return 0;
}

/* Room for n floats, and for this many cells of a state. */
static int room(q4x_tapset *t, size_t n, size_t cells, q4x_err *err) {
    if (n > t->again_cap) {
        free(t->again);
        t->again = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
        t->again_cap = t->again ? n : 0;
    }
    if (cells > (size_t)t->again_state.cap) { /* cap counts cells here, from one copy to the next */
        free(t->again_state.f);
        t->again_state.f = aligned_alloc(64, (cells * sizeof(float) + 63) / 64 * 64);
        t->again_state.cap = t->again_state.f ? (int64_t)cells : 0;
    }
    if ((n && !t->again) || (cells && !t->again_state.f))
        return q4x_fail(err, Q4X_E_NOMEM, "taps: no memory to run an op again");
    return 0;
}

/* Run the op again on its own state, into which it wrote cells [from, to): they are kept, compared and put back. 1: the
 * output or one of them is another. */
static int run_appending(q4x_tapset *t, const q4x_node_event *ev, k_call *c, int64_t from, int64_t to) {
    k_state *st = c->st[0];
    const size_t count = (size_t)ev->nrows * (size_t)ev->cols * sizeof(float),
                 kept = (size_t)(to - from) * sizeof(float);
    memcpy(t->again_state.f, st->f + from, kept);
    k_ops[q4x_run_plan(t->run)->node[ev->node].op].cpu(c);
    int differs = memcmp(t->again, ev->data, count) != 0 || memcmp(t->again_state.f, st->f + from, kept) != 0;
    memcpy(st->f + from, t->again_state.f, kept);
    return differs;
}

/* The same on a copy of the state as it was before the tile. */
static int run_on_copy(q4x_tapset *t, const q4x_node_event *ev, k_call *c, const k_state *before) {
    const size_t count = (size_t)ev->nrows * (size_t)ev->cols * sizeof(float);
    k_state st = {.f = t->again_state.f, .cols = before->cols, .cap = before->cap, .rows = before->rows};
    memcpy(st.f, before->f, (size_t)(st.cap * st.cols) * sizeof(float));
    c->st[0] = &st;
    c->st[1] = NULL;
    k_ops[q4x_run_plan(t->run)->node[ev->node].op].cpu(c);
    /* a store may hide it from the output; the state keeps all of it */
    return memcmp(t->again, ev->data, count) != 0 ||
           memcmp(st.f, ev->call->st[0]->f, (size_t)(st.rows * st.cols) * sizeof(float)) != 0;
}

/* Run the op of this event again with other levers. *ret 1: its output is another; -1: it cannot be run again. */
static int run_again(q4x_tapset *t, const q4x_node_event *ev, const k_levers *lv, int *ret, q4x_err *err) {
    const q4x_plan *p = q4x_run_plan(t->run);
    const q4x_node *n = &p->node[ev->node];
    const k_state *st = n->nst ? ev->call->st[0] : NULL, *before = NULL;
    const q4x_rows_kind kind = n->nst == 1 ? p->state[n->st[0]].rows_kind : Q4X_ROWS_FIXED;
    const size_t count = (size_t)ev->nrows * (size_t)ev->cols;
    int64_t from = 0, to = 0;
    if (kind != Q4X_ROWS_FIXED) {
        from = ev->call->pos0 / (kind == Q4X_ROWS_BLOCK ? p->d.ratio : 1) * st->cols;
        to = st->rows * st->cols;
    } else if (n->nst && n->op == K_OP_gdn_core) {
        before = ev->call->st[1]; /* the run shows it for gdn_core alone */
    }
    *ret = -1;
    if ((n->nst && kind == Q4X_ROWS_FIXED && !before) ||
        q4x_arm_plant(q4x_run_arm(t->run), n->name, q4x_run_nforward(t->run)))
        return 0;
    int rc = room(t, count, before ? (size_t)(before->cap * before->cols) : (size_t)(to - from), err);
    if (rc) return rc;
    k_call c = *ev->call;
    c.lv = lv;
    if (n->op == K_OP_matmul && k_gemm_of(&c) != K_BY_OWN) return 0; /* a library's, which the host has not */
    c.out = t->again;
    if (kind != Q4X_ROWS_FIXED) {
        *ret = run_appending(t, ev, &c, from, to);
    } else if (before) {
        *ret = run_on_copy(t, ev, &c, before);
    } else {
        k_ops[n->op].cpu(&c);
        *ret = memcmp(t->again, ev->data, count * sizeof(float)) != 0;
    }
    return 0;
}

int q4x_tap_witness_wants(const q4x_tapset *t, int32_t node, const k_levers *with) {
    k_levers lv;
    for (int k = 0; k < q4x_run_arm(t->run)->nitems; k++)
        if (decides(t, k, node, with, &lv)) return 1;
    return 0;
}

int q4x_tap_witness(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err) {
    const int nitems = q4x_run_arm(t->run)->nitems;
    for (int k = 0; k < nitems; k++) {
        k_levers lv;
        int differs, rc;
        if (!decides(t, k, ev->node, ev->call->lv, &lv)) continue;
        t->lever[k].reached = 1;
        if ((rc = run_again(t, ev, &lv, &differs, err))) return rc;
        if (differs > 0) moved(t, k, ev->node, q4x_run_nforward(t->run));
        if (differs < 0) t->lever[k].untried = 1;
    }
    return 0;
}

/* The best of the last logit row under these levers; -1: no memory. */
static int32_t best_of(const q4x_tapset *t, const k_levers *lv) {
    const int32_t V = q4x_run_plan(t->run)->d.V, act = k_follow(lv->logits, lv->act);
    int32_t rows, best[2] = {-1, -1};
    const float *row = q4x_run_logits(t->run, &rows);
    float *rounded = malloc(3 * (size_t)V * sizeof *rounded);
    if (!rounded) return -1;
    row += (int64_t)(rows - 1) * V;
    for (int32_t i = 0; i < V; i++) rounded[i] = k_rd(row[i], act);
    k_topk(rounded, V, V < 2 ? 1 : 2, lv->tie, best, rounded + V);
    free(rounded);
    return best[0];
}

int q4x_tap_witness_choice(q4x_tapset *t, q4x_err *err) {
    const q4x_arm *a = q4x_run_arm(t->run);
    const q4x_plan *p = q4x_run_plan(t->run);
    const int32_t f = q4x_run_nforward(t->run) - 1; /* which is over */
    const char *node = p->node[p->logits].name;
    for (int k = 0; k < a->nitems; k++) {
        const q4x_lever *l = &q4x_levers[a->item[k].lever];
        k_levers with, lv;
        int32_t top[2];
        float val[2];
        if (t->lever[k].moved || l->field == (size_t)-1) continue;
        /* the choice rounds as its node does, whose op reads the dtype for that alone */
        if (!q4x_plan_reads_lever(p, p->logits, l)) continue;
        q4x_arm_resolve(a, node, f, &with);
        q4x_arm_resolve_without(a, k, node, f, &lv);
        if (!memcmp((const char *)&with + l->field, (const char *)&lv + l->field, sizeof(int32_t))) continue;
        t->lever[k].reached = 1;
        int32_t best = best_of(t, &lv);
        if (best < 0) return q4x_fail(err, Q4X_E_NOMEM, "taps: no memory to choose again");
        if (best != q4x_run_choose(t->run, top, val)) moved(t, k, p->logits, f);
    }
    return 0;
}

int q4x_tap_witness_states(const q4x_tapset *t) {
    const q4x_arm *a = q4x_run_arm(t->run);
    for (int k = 0; k < a->nitems; k++)
        if (!t->lever[k].moved && q4x_levers[a->item[k].lever].field != (size_t)-1 &&
            q4x_lever_scope(&q4x_levers[a->item[k].lever], k_ops[K_OP_gdn_core].name))
            return 1;
    return 0;
}

static int has_moved(const q4x_tapset *t, int k) {
    return t->lever[k].moved || q4x_run_planted(t->run, k);
}

/* Asks for the first value, which is what is anyway. */
static int is_default(const q4x_tapset *t, int k) {
    const q4x_item *it = &q4x_run_arm(t->run)->item[k];
    return !it->plant[0] && !it->value && !t->lever[k].reached;
}

int q4x_tapset_inert(const q4x_tapset *t, int k) {
    return !has_moved(t, k) && !t->lever[k].untried && !is_default(t, k);
}

json_t *q4x_tap_witness_json(const q4x_tapset *t) {
    const q4x_arm *a = q4x_run_arm(t->run);
    json_t *list = json_array();
    for (int k = 0; k < a->nitems; k++) {
        const q4x_tap_lever *l = &t->lever[k];
        char text[128];
        q4x_item_text(&a->item[k], text, sizeof text);
        json_t *row = json_pack("{s:s, s:s}", "item", text, "outcome",
                                has_moved(t, k)          ? "moved"
                                : is_default(t, k)       ? "default"
                                : q4x_tapset_inert(t, k) ? "inert"
                                                         : "not measured");
        if (row && l->moved) {
            json_object_set_new(row, "node", json_string(t->node[l->node].name));
            json_object_set_new(row, "forward", json_integer(l->forward));
        }
        if (json_array_append_new(list, row)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}
