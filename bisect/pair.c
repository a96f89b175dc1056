#include "bisect/pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/align.h"

typedef struct {
    const char *name;
    int32_t i;
} named;

static int cmp_named(const void *x, const void *y) {
    return strcmp(((const named *)x)->name, ((const named *)y)->name);
}

static void *grab(size_t n, size_t size) {
    return calloc(n ? n : 1, size);
}

static int32_t find(const named *v, int32_t n, const char *name) {
    named key = {name, 0};
    const named *hit = bsearch(&key, v, (size_t)n, sizeof *v, cmp_named);
    return hit ? hit->i : -1;
}

/* tapped[n]: forward 0 has a tap of node n (forwards are uniform by then). */
static char *tapped_nodes(const q4x_dump *d) {
    char *t = grab((size_t)d->nnodes, 1);
    for (int32_t i = 0; t && i < d->forwards[0].ntaps; i++) t[d->forwards[0].taps[i].node] = 1;
    return t;
}

/* Node of B for each node of A, and what only one of them records. */
static int match_nodes(bis_pair *p, q4x_err *err) {
    int rc = Q4X_E_NOMEM;
    const q4x_dump *a = p->a, *b = p->b;
    named *nb = grab((size_t)b->nnodes, sizeof *nb);
    char *ha = tapped_nodes(a), *hb = tapped_nodes(b), *used = grab((size_t)b->nnodes, 1);
    p->to_b = grab((size_t)p->nn, sizeof *p->to_b);
    p->only_a = grab((size_t)p->nn, sizeof *p->only_a);
    p->only_b = grab((size_t)b->nnodes, sizeof *p->only_b);
    if (!nb || !ha || !hb || !used || !p->to_b || !p->only_a || !p->only_b) goto done;
    for (int32_t i = 0; i < b->nnodes; i++) nb[i] = (named){b->nodes[i].name, i};
    qsort(nb, (size_t)b->nnodes, sizeof *nb, cmp_named);
    for (int32_t n = 0; n < p->nn; n++) {
        int32_t m = p->to_b[n] = find(nb, b->nnodes, a->nodes[n].name);
        if (ha[n] && (m < 0 || !hb[m])) p->only_a[p->nonly_a++] = n;
        if (m >= 0 && ha[n] && hb[m]) used[m] = 1;
    }
    for (int32_t m = 0; m < b->nnodes; m++)
        if (hb[m] && !used[m]) p->only_b[p->nonly_b++] = m;
    rc = 0;
done:
    free(nb);
    free(ha);
    free(hb);
    free(used);
    return rc ? q4x_fail(err, rc, "out of memory for %d nodes", p->nn) : 0;
}

static int same_inputs(const bis_pair *p, const q4x_dump_node *x, const q4x_dump_node *y) {
    if (strcmp(x->op ? x->op : "", y->op ? y->op : "") || x->nin != y->nin || x->nst != y->nst) return 0;
    for (int32_t i = 0; i < x->nin; i++)
        if ((x->in[i] < 0 ? -1 : p->to_b[x->in[i]]) != y->in[i]) return 0;
    for (int32_t i = 0; i < x->nst; i++)
        if (p->to_b[x->st[i]] != y->st[i]) return 0;
    return 1;
}

/* Copy the inputs of node n, from the arm that records them, into A's index space. */
static int take_inputs(bis_pair *p, int32_t n, const q4x_dump_node *k, const int32_t *from_b) {
    p->in[n] = grab((size_t)k->nin, sizeof(int32_t));
    p->st[n] = grab((size_t)k->nst, sizeof(int32_t));
    if (!p->in[n] || !p->st[n]) return -1;
    for (int32_t i = 0; i < k->nin; i++) {
        int32_t j = k->in[i];
        if (j >= 0 && from_b) j = from_b[j];
        if (j >= 0 || k->in[i] == Q4X_IN_IDS) p->in[n][p->nin[n]++] = j;
    }
    for (int32_t i = 0; i < k->nst; i++) {
        int32_t j = from_b ? from_b[k->st[i]] : k->st[i];
        if (j >= 0) p->st[n][p->nst[n]++] = j;
    }
    return 0;
}

static int graph(bis_pair *p, bis_reason *why, char where[240], q4x_err *err) {
    const size_t nn = (size_t)p->nn;
    int rc = Q4X_E_NOMEM;
    int32_t *from_b = grab((size_t)p->b->nnodes, sizeof *from_b);
    p->nin = grab(nn, sizeof *p->nin);
    p->nst = grab(nn, sizeof *p->nst);
    p->in = grab(nn, sizeof *p->in);
    p->st = grab(nn, sizeof *p->st);
    p->nwriter = grab(nn, sizeof *p->nwriter);
    p->writer = grab(nn, sizeof *p->writer);
    p->heads_differ = grab(nn, sizeof *p->heads_differ);
    if (!from_b || !p->nin || !p->nst || !p->in || !p->st || !p->nwriter || !p->writer || !p->heads_differ) goto done;
    for (int32_t m = 0; m < p->b->nnodes; m++) from_b[m] = -1;
    for (int32_t n = 0; n < p->nn; n++)
        if (p->to_b[n] >= 0) from_b[p->to_b[n]] = n;
    for (int32_t n = 0; n < p->nn; n++) {
        const q4x_dump_node *x = &p->a->nodes[n], *y = p->to_b[n] < 0 ? NULL : &p->b->nodes[p->to_b[n]];
        int gx = x->nin + x->nst > 0, gy = y && y->nin + y->nst > 0;
        if (gx && gy && *why == BIS_R_none && !same_inputs(p, x, y)) {
            *why = BIS_R_graph_differs;
            snprintf(where, 240, "%s", x->name);
        }
        if (take_inputs(p, n, gx || !gy ? x : y, gx || !gy ? NULL : from_b)) goto done;
        p->heads_differ[n] = y && x->heads.axis && (x->heads.gguf != 0) != (y->heads.gguf != 0);
    }
    for (int32_t n = 0; n < p->nn; n++)
        for (int32_t i = 0; i < p->nst[n]; i++) {
            int32_t s = p->st[n][i], k = p->nwriter[s];
            int32_t *w = realloc(p->writer[s], sizeof *w * (size_t)(k + 1));
            if (!w) goto done;
            p->writer[s] = w;
            w[p->nwriter[s]++] = n;
        }
    rc = 0;
done:
    free(from_b);
    return rc ? q4x_fail(err, rc, "out of memory for %d nodes", p->nn) : 0;
}

static int index_taps(bis_pair *p, q4x_err *err) {
    size_t n = (size_t)p->nf * (size_t)p->nn;
    p->ta = grab(n, sizeof *p->ta);
    p->tb = grab(n, sizeof *p->tb);
    p->eq = grab(n, 1);
    int32_t *from_b = grab((size_t)p->b->nnodes, sizeof *from_b);
    int rc = 0;
    if (!p->ta || !p->tb || !p->eq || !from_b) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "out of memory for %d x %d taps", p->nf, p->nn);
        goto done;
    }
    for (int32_t m = 0; m < p->b->nnodes; m++) from_b[m] = -1;
    for (int32_t k = 0; k < p->nn; k++)
        if (p->to_b[k] >= 0) from_b[p->to_b[k]] = k;
    for (int32_t f = 0; f < p->nf; f++) {
        q4x_forward *x = BIS_FA(p, f), *y = BIS_FB(p, f);
        for (int32_t i = 0; i < x->ntaps; i++) p->ta[bis_at(p, f, x->taps[i].node)] = &x->taps[i];
        for (int32_t i = 0; i < y->ntaps; i++)
            if (from_b[y->taps[i].node] >= 0) p->tb[bis_at(p, f, from_b[y->taps[i].node])] = &y->taps[i];
        for (int32_t k = 0; k < p->nn; k++) {
            size_t at = bis_at(p, f, k);
            if (!p->ta[at] || !p->tb[at]) p->ta[at] = p->tb[at] = NULL;
        }
    }
done:
    free(from_b);
    return rc;
}

/* Equality of every tap of the comparable forwards. */
static int equality(bis_pair *p, q4x_err *err) {
    int rc = 0;
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            size_t at = bis_at(p, f, n);
            if (!p->ta[at]) continue;
            bis_eq e = q4x_hash_eq(&p->ta[at]->bits, &p->tb[at]->bits) ? BIS_SAME : BIS_DIFF;
            if (p->heads_differ[n]) TRY(bis_align_equal(p, f, n, &e, err));
            p->eq[at] = (uint8_t)e;
            if (e == BIS_UNKNOWN)
                p->unaligned++;
            else
                p->compared++;
            p->identical += e == BIS_SAME;
        }
done:
    return rc;
}

static bis_reason counts_line_up(const bis_pair *p, char where[240]) {
    const q4x_dump *a = p->a, *b = p->b;
    if (a->nforwards != b->nforwards) {
        snprintf(where, 240, "%d and %d forwards", a->nforwards, b->nforwards);
        return BIS_R_forward_count_differs;
    }
    for (int32_t f = 1; f < a->nforwards; f++)
        if (a->forwards[f].n_ids != b->forwards[f].n_ids) {
            snprintf(where, 240, "forward %d: %d and %d ids", f, a->forwards[f].n_ids, b->forwards[f].n_ids);
            return BIS_R_forward_lengths_differ;
        }
    return BIS_R_none;
}

static void measure_structure(bis_pair *p) {
    for (int32_t n = 0; n < p->nn; n++) {
        const q4x_dump_node *k = &p->a->nodes[n];
        if (k->layer >= p->layers) p->layers = k->layer + 1;
        p->nstates += k->is_state != 0;
        p->npublic += k->is_public && !k->is_state;
    }
}

static int build(bis_pair *p, int partial_ok, bis_reason *why, char where[240], q4x_err *err) {
    int rc = 0;
    bis_reason r = bis_check_dump(p->a, "A", where);
    if (r == BIS_R_none) r = bis_check_dump(p->b, "B", where);
    if (r != BIS_R_none) goto done;
    measure_structure(p);
    r = counts_line_up(p, where);
    /* forwards beyond the shorter dump have no partner; the reason says so and the pair stops there */
    p->nf = p->a->nforwards < p->b->nforwards ? p->a->nforwards : p->b->nforwards;
    TRY(match_nodes(p, err));
    if (r == BIS_R_none && p->nonly_a + p->nonly_b > 0 && !partial_ok) {
        r = BIS_R_keys_differ;
        snprintf(where, 240, "%d nodes only in A, %d only in B, first %s", p->nonly_a, p->nonly_b,
                 p->nonly_a ? p->a->nodes[p->only_a[0]].name : p->b->nodes[p->only_b[0]].name);
    }
    TRY(graph(p, &r, where, err));
    TRY(index_taps(p, err));
    TRY(bis_comparable(p, err));
    if (r == BIS_R_none) r = bis_check_shapes(p, where);
    if (r == BIS_R_none) TRY(equality(p, err));
done:
    *why = r;
    return rc;
}

int bis_pair_new(q4x_dump *a, q4x_dump *b, int partial_ok, bis_pair **ret, bis_reason *ret_why, char where[240],
                 q4x_err *err) {
    bis_pair *p = calloc(1, sizeof *p);
    if (!p) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for a pair");
    p->a = a;
    p->b = b;
    p->nn = a->nnodes;
    where[0] = 0;
    int rc = build(p, partial_ok, ret_why, where, err);
    if (rc)
        bis_pair_free(p);
    else
        *ret = p;
    return rc;
}

void bis_pair_free(bis_pair *p) {
    if (!p) return;
    for (int32_t n = 0; n < p->nn; n++) {
        if (p->in) free(p->in[n]);
        if (p->st) free(p->st[n]);
        if (p->writer) free(p->writer[n]);
    }
    free(p->to_b);
    free(p->only_a);
    free(p->only_b);
    free(p->ta);
    free(p->tb);
    free(p->eq);
    free(p->nin);
    free(p->in);
    free(p->nst);
    free(p->st);
    free(p->nwriter);
    free(p->writer);
    free(p->heads_differ);
    free(p->excluded);
    free(p);
}

int bis_logits_equal(const q4x_forward *a, const q4x_forward *b) {
    if (!a->logits || !b->logits || a->vocab != b->vocab || a->n_logits != b->n_logits) return 0;
    size_t n = (size_t)a->vocab * (size_t)a->n_logits;
    for (size_t i = 0; i < n; i++) {
        if (isnan(a->logits[i]) && isnan(b->logits[i])) continue;
        if (memcmp(&a->logits[i], &b->logits[i], sizeof(float))) return 0;
    }
    return 1;
}
