/* tap_describe.c: the plan and the arm as a dump records them. */
#include "lib/tap_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "lib/version.h"

static void node_levers(const q4x_tapset *t, int32_t i, char *buf, size_t size) {
    const q4x_plan *p = t->plan;
    k_levers lv;
    q4x_arm_resolve(t->arm, p->node[i].name, 0, &lv);
    q4x_lever_words(&lv, q4x_plan_lever_word(p, i), buf, size);
}

static int describe_node(q4x_tapset *t, int32_t i) {
    const q4x_plan *p = t->plan;
    const q4x_node *n = &p->node[i];
    q4x_dump_node *d = &t->node[i];
    char words[160];
    node_levers(t, i, words, sizeof words);
    t->tap[i].parts = q4x_plan_parts(p, i);
    *d = (q4x_dump_node){.name = strdup(n->name),
                         .op = strdup(k_ops[n->op].name),
                         .layer = n->layer,
                         .is_public = n->is_public,
                         .is_ids = n->is_ids,
                         .alias = n->op == K_OP_alias ? n->in[0] : -1,
                         .nin = n->nin,
                         .nst = n->nst,
                         .heads = n->heads,
                         .levers = strdup(words)};
    d->in = malloc((size_t)(n->nin + 1) * sizeof *d->in);
    d->st = malloc((size_t)(n->nst + 1) * sizeof *d->st);
    if (!d->name || !d->op || !d->levers || !d->in || !d->st) return 1;
    memcpy(d->in, n->in, (size_t)n->nin * sizeof *d->in);
    d->nst = 0;
    for (int32_t k = 0; k < n->nst; k++)
        for (int32_t s = 0; s < t->nnodes - t->nplan; s++)
            if (t->state[s] == n->st[k]) d->st[d->nst++] = t->nplan + s;
    return 0;
}

int q4x_tap_by_head(const q4x_state_desc *sd) {
    const q4x_heads *h = &sd->heads;
    return h->axis == 2 && h->off == 0 && h->nv > 0 && sd->rows == (int64_t)h->nv * h->width;
}

/* What its ops leave in it: the worst that can be said of any of them. */
static k_state_kind state_kind(const q4x_plan *p, int32_t s) {
    k_state_kind kind = K_STATE_NONE;
    int seen = 0;
    for (int32_t i = 0; i < p->nnodes; i++)
        for (int32_t k = 0; k < p->node[i].nst; k++) {
            k_bands_fn bands;
            if (p->node[i].st[k] != s) continue;
            k_state_kind of = k_op_state(p->node[i].op, &bands);
            if (of == K_STATE_NONE || (seen && of != kind)) return K_STATE_NONE;
            kind = of;
            seen = 1;
        }
    return kind;
}

static int describe_state(q4x_tapset *t, int32_t s) {
    const q4x_state_desc *sd = &t->plan->state[t->state[s]];
    q4x_dump_node *d = &t->node[t->nplan + s];
    *d = (q4x_dump_node){.name = strdup(sd->name),
                         .op = strdup("state"),
                         .layer = sd->layer,
                         .is_state = 1,
                         .is_ids = sd->is_ids,
                         .alias = -1,
                         .heads = sd->heads,
                         .levers = strdup(""),
                         .in = malloc(sizeof(int32_t)),
                         .st = malloc(sizeof(int32_t))};
    if (q4x_tap_by_head(sd)) d->heads.width = 1;
    t->tap[t->nplan + s].kind = state_kind(t->plan, t->state[s]);
    return !d->name || !d->op || !d->levers || !d->in || !d->st;
}

int q4x_tap_describe(q4x_tapset *t, q4x_err *err) {
    const q4x_plan *p = t->plan;
    int bad = 0;
    t->nplan = t->nnodes = p->nnodes;
    t->state = calloc((size_t)(p->nstates + 1), sizeof *t->state);
    t->node = calloc((size_t)(p->nnodes + p->nstates), sizeof *t->node);
    t->tap = calloc((size_t)(p->nnodes + p->nstates), sizeof *t->tap);
    if (!t->state || !t->node || !t->tap) return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
    for (int32_t s = 0; s < p->nstates; s++) t->state[t->nnodes++ - t->nplan] = s;
    for (int32_t i = 0; i < t->nplan; i++) bad |= describe_node(t, i);
    for (int32_t s = 0; s < t->nnodes - t->nplan; s++) bad |= describe_state(t, s);
    return bad ? q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory") : 0;
}

void q4x_tap_undescribe(q4x_tapset *t) {
    for (int32_t i = 0; t->node && i < t->nnodes; i++) {
        free(t->node[i].name);
        free(t->node[i].op);
        free(t->node[i].in);
        free(t->node[i].st);
        free(t->node[i].levers);
    }
    free(t->node);
    free(t->state);
}

static json_t *model_json(const q4x_net *n, const char hex[33]) {
    const q4x_model *m = q4x_net_model(n);
    json_t *shards = json_array();
    for (int i = 0; i < q4x_model_nshards(m); i++) {
        const q4x_shard *s = q4x_model_shard(m, i);
        json_array_append_new(shards, json_pack("{s:s, s:I}", "path", s->path, "size", (json_int_t)s->size));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:o}", "path", q4x_model_path(m), "arch", q4x_net_plan(n)->arch,
                     "container", q4x_model_container(m) == Q4X_GGUF ? "gguf" : "hf", "fingerprint", hex, "nshards",
                     q4x_model_nshards(m), "shards", shards);
}

/* Levers of the whole arm: value of each where no scope narrows it, then the scoped items as given. */
static json_t *arm_json(const q4x_arm *a) {
    json_t *levers = json_object(), *scoped = json_array();
    k_levers lv;
    q4x_arm whole = *a;
    whole.nitems = 0;
    for (int i = 0; i < a->nitems; i++)
        if (!a->item[i].glob[0] && a->item[i].forward < 0) whole.item[whole.nitems++] = a->item[i];
    q4x_arm_resolve(&whole, "", 0, &lv);
    char buf[64];
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        int32_t v = 0;
        if (l->field == (size_t)-1) continue;
        memcpy(&v, (const char *)&lv + l->field, sizeof v);
        json_object_set_new(levers, l->name, json_string(q4x_lever_value(l, v, buf, sizeof buf)));
    }
    for (int i = 0; i < a->nitems; i++) {
        const q4x_item *it = &a->item[i];
        if (!it->glob[0]) continue;
        char text[160];
        q4x_item_text(it, text, sizeof text);
        json_array_append_new(scoped, json_string(text));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "label", a->label, "device", a->cuda ? "cuda" : "cpu", "spec",
                     a->spec, "profile", a->profile, "levers", levers, "scoped", scoped);
}

/* Which GPU, by whose driver: its bits are the CPU's, but for a library's. NULL: on the host, or it does not say. */
static json_t *gpu_json(const k_dev *d) {
    k_dev_info info;
    k_dev_desc desc;
    char capability[32];
    if (!d || k_dev_describe(d->index, &desc)) return NULL;
    k_dev_query(&info);
    snprintf(capability, sizeof capability, "%d.%d", desc.major, desc.minor);
    json_t *o = json_pack("{s:s, s:s, s:i, s:i}", "name", desc.name, "capability", capability, "driver", info.driver,
                          "runtime", info.runtime);
    const int cublas = k_dev_gemm_version(d);
    if (o && cublas) json_object_set_new(o, "cublas", json_integer(cublas));
    return o;
}

int q4x_tap_header(const q4x_tapset *t, const q4x_net *n, json_t *header, q4x_err *err) {
    static const char *const MODES[] = {"hash", "sketch", "full"};
    char hex[33];
    int rc = q4x_model_fingerprint(q4x_net_model(n), hex, err);
    if (rc) return rc;
    json_t *tool = q4x_build_tool(); /* who computed: without it no two dumps can claim the same arithmetic */
    if (!tool || json_object_set_new(header, "tool", tool))
        return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory for the header");
    json_t *add = json_pack("{s:i, s:i, s:s, s:[I, I], s:b, s:b, s:o, s:o, s:o*, s:{s:i}}", "format", Q4X_DUMP_VERSION,
                            "vocabulary_version", Q4X_VOCABULARY_VERSION, "mode", MODES[t->o.mode], "rows",
                            (json_int_t)t->o.row0, (json_int_t)t->o.nrows, "bands", t->o.bands, "nonfinite_counted", 1,
                            "model", model_json(n, hex), "arm", arm_json(t->arm), "gpu",
                            gpu_json(q4x_run_device(t->run)), "qsa", "ratio", q4x_net_dims(n)->ratio);
    if (!add || json_object_update(header, add)) rc = q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory for the header");
    json_decref(add);
    return rc;
}
