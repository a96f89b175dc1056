/* tap_select.c: which nodes a tap set keeps. */
#include "lib/tap_int.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/names.h"

/* "0-3,47" into keep[layers]. */
static int parse_layers(const char *list, int32_t layers, char *keep, q4x_err *err) {
    for (const char *p = list;;) {
        char *end;
        long a = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : -1, b = a;
        if (a >= 0 && *end == '-') b = isdigit((unsigned char)end[1]) ? strtol(end + 1, &end, 10) : -1;
        if (a < 0 || b < a || (*end && *end != ','))
            return q4x_fail(err, Q4X_E_ARG, "--layer '%s': expected numbers and ranges like 0-3,47", list);
        if (b >= layers)
            return q4x_fail(err, Q4X_E_ARG, "--layer '%s': layer %ld, expected 0 to %d", list, b, layers - 1);
        for (long l = a; l <= b; l++) keep[l] = 1;
        if (!*end) return 0;
        p = end + 1;
    }
}

/* Kept whatever is chosen: the ends of the model. */
static int always(const q4x_plan *p, int32_t i) {
    const char *name = p->node[i].name;
    return !strcmp(name, "emb") || !strcmp(name, "wide") || !strcmp(name, "out") || i == p->logits;
}

/* And the nodes that read nothing but ids: two arms have equal inputs there in every comparable forward, so what is
 * added there is what all that follows inherits. */
static int gathers(const q4x_plan *p, int32_t i) {
    const q4x_node *n = &p->node[i];
    for (int32_t k = 0; k < n->nin; k++)
        if (n->in[k] != Q4X_IN_IDS && !p->node[n->in[k]].is_ids) return 0;
    return !n->is_ids;
}

/* Where arms that differ in such a lever part. What every product reads would keep nearly all nodes. A number (eps) is
 * left out: nearly every norm reads it, and a norm is recorded when it is asked for. */
int q4x_tap_reads_choice(const char *word) {
    double lo, hi;
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        if (l->field == (size_t)-1 || q4x_lever_scope(l, k_ops[K_OP_matmul].name) || q4x_lever_range(l, &lo, &hi))
            continue;
        if (q4x_lever_scope(l, word)) return 1;
    }
    return 0;
}

/* A node whose rows a state keeps that is recorded itself: what is kept can be held against it. */
static int is_kept(const q4x_tapset *t, int32_t i) {
    const q4x_plan *p = t->plan;
    for (int32_t k = i + 1; k < p->nnodes; k++) {
        const q4x_node *n = &p->node[k];
        int in;
        if (!n->nst || k_op_keeps(n->op, &in) == K_KEEPS_MIXED || n->in[in] != i) continue;
        if (t->tap[t->nplan + n->st[0]].kind == K_STATE_MADE) return 1;
    }
    return 0;
}

/* Mark the nodes that one glob matches within the kept layers. Returns how many there are; *any: with all layers. */
static int apply_glob(const q4x_tapset *t, const char *glob, const char *layer_keep, int *any) {
    int hits = 0;
    *any = 0;
    for (int32_t i = 0; i < t->nnodes; i++) {
        int32_t layer = t->node[i].layer;
        if (!q4x_node_match(glob, t->node[i].name)) continue;
        ++*any;
        if (layer >= 0 && !layer_keep[layer]) continue;
        t->tap[i].want = 1;
        hits++;
    }
    return hits;
}

/* Every glob must match something; those that do not are named together. */
static int apply_globs(const q4x_tapset *t, const q4x_tap_opts *o, const char *layer_keep, q4x_err *err) {
    char missing[160] = "", *glob = malloc(strlen(o->nodes) + 1);
    int rc = 0, outside = 1;
    size_t at = 0;
    if (!glob) return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
    for (const char *p = o->nodes; q4x_next_word(&p, glob, strlen(o->nodes) + 1);) {
        int any;
        if (!*glob) TRY(q4x_fail(err, Q4X_E_ARG, "--node '%s': a glob is empty", o->nodes));
        if (apply_glob(t, glob, layer_keep, &any)) continue;
        outside = outside && any;
        if (at < sizeof missing)
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%s", at ? ", " : "", glob);
    }
    if (at && outside)
        rc = q4x_fail(err, Q4X_E_ARG, "--node: no node matches %s in the layers of --layer '%s'", missing, o->layers);
    else if (at)
        rc = q4x_fail(err, Q4X_E_ARG, "--node: no node matches %s; `q4x info --nodes MODEL` lists them", missing);
done:
    free(glob);
    return rc;
}

int q4x_tap_choose(q4x_tapset *t, const q4x_tap_opts *o, q4x_err *err) {
    const q4x_plan *p = t->plan;
    int rc = 0;
    char *keep = calloc((size_t)p->d.L + 1, 1);
    if (!keep) return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
    if (o->layers)
        TRY(parse_layers(o->layers, p->d.L, keep, err));
    else
        memset(keep, 1, (size_t)p->d.L);
    for (int32_t i = 0; i < t->nnodes; i++) {
        int32_t layer = t->node[i].layer;
        if (!o->nodes && t->node[i].is_public && (layer < 0 || keep[layer])) t->tap[i].want = 1;
        if (i < p->nnodes && always(p, i)) t->tap[i].want = 1;
        if (i < p->nnodes && gathers(p, i)) t->tap[i].want = t->tap[i].gather = 1;
        if (o->bands && (layer < 0 || keep[layer]) &&
            (t->tap[i].kind == K_STATE_MADE ||
             (i < p->nnodes && (is_kept(t, i) || q4x_tap_reads_choice(q4x_plan_lever_word(p, i))))))
            t->tap[i].want = 1;
    }
    if (o->nodes) TRY(apply_globs(t, o, keep, err));
done:
    free(keep);
    return rc;
}
