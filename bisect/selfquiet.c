/* selfquiet.c: pairs of arms without a fault, of which the judge must name no node (selftest). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/selftest.h"
#include "kernels/k.h"
#include "lib/gguf.h"
#include "lib/io.h"
#include "lib/model.h"

/* Does a node differ that reads what the experts of the first layer weighed, or anything of a later layer? */
static int beyond_experts(const bis_pair *p) {
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            const q4x_dump_node *k = &p->a->nodes[n];
            const int weighed =
                k->layer != 0 || !strcmp(k->name, "L00.moe.weights") || !strcmp(k->name, "L00.moe.routed");
            if (weighed && p->eq[bis_at(p, f, n)] == BIS_DIFF) return 1;
        }
    return 0;
}

static int as_expected(const bis_quiet *q, const bis_case *c, int64_t differ) {
    const bis_answer w = bis_answer_of(c);
    if (!c->compared || !c->pair || c->pair->compared < 1) return 0;
    if (q->kind == BIS_Q_EQUAL) return w == BIS_A_SAME && differ == 0;
    if (differ < 1 || (w != BIS_A_WITHIN && w != BIS_A_TIE && w != BIS_A_TOKENS)) return 0;
    return q->kind != BIS_Q_TIED || !beyond_experts(c->pair);
}

int bis_quiet_pair(const q4x_net *net, const char *dir, const bis_quiet *q, bis_trial *ret, q4x_err *err) {
    int rc;
    q4x_dump *a = NULL, *b = NULL;
    bis_case *c = NULL;
    *ret = (bis_trial){0};
    snprintf(ret->what, sizeof ret->what, "null: %s", q->what);
    TRY(bis_selftest_dump(net, q->a, dir, q->kind != BIS_Q_EQUAL, &a, err));
    TRY(bis_selftest_dump(net, q->b, dir, q->kind != BIS_Q_EQUAL, &b, err));
    bis_request rq = {.a = a, .b = b};
    TRY(bis_judge(&rq, &c, err));
    const int64_t all = c->pair ? c->pair->compared : 0, differ = c->pair ? all - c->pair->identical : 0;
    const char *first = c->compared && c->pair && c->map.first_f >= 0 ? c->pair->a->nodes[c->map.first_n].name : NULL;
    snprintf(ret->verdict, sizeof ret->verdict, "%s", bis_verdict_name(c->verdict));
    snprintf(ret->found, sizeof ret->found, "%lld of %lld differ%s%.40s", (long long)differ, (long long)all,
             first ? ", first " : "", first ? first : "");
    ret->good = as_expected(q, c, differ);
done:
    bis_case_free(c);
    q4x_dump_free(a);
    q4x_dump_free(b);
    return rc;
}

/* ---- an exact tie of experts that weigh nothing ---- */

static const char router[] = "blk.0.ffn_gate_inp.weight";

/* A router by which one expert takes all: scores s, -s, 0, 0, .. with |s| so large that exp(-|s|) is 0. Whatever the
 * token, expert 0 or 1 has weight 1, and the other places go to experts that tie at score 0, with weight 0. */
static void fill_router(float *w, int64_t D, int64_t E) {
    memset(w, 0, (size_t)(D * E) * sizeof *w);
    for (int64_t j = 0; j < D; j++) {
        w[j] = j * 7 % 11 < 5 ? 1e6f : -1e6f;
        w[D + j] = -w[j];
    }
}

/* Copy the model with that router in its first layer. */
static int write_tied(const char *model, const char *path, q4x_err *err) {
    int rc;
    q4x_map map = {.fd = -1};
    q4x_model *m = NULL; /* a view of that map */
    q4x_out *out = NULL;
    float *w = NULL;
    TRY(q4x_map_open(model, &map, err));
    TRY(q4x_gguf_parse_mem(map.data, map.size, model, &m, err));
    const q4x_tensor *t = q4x_model_find(m, router);
    if (!t || t->type != K_T_F32 || t->ndim != 2 || t->ne[1] < 2) {
        rc = q4x_fail(err, Q4X_E_UNSUPPORTED,
                      "%.160s: %s: expected an F32 matrix of two rows or more, to tie its experts", model, router);
        goto done;
    }
    w = malloc(t->bytes);
    if (!w) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "selftest: no memory for a router");
        goto done;
    }
    fill_router(w, t->ne[0], t->ne[1]);
    const uint64_t at = (uint64_t)((const uint8_t *)t->data - map.data), end = at + t->bytes;
    TRY(q4x_out_open(path, &out, err));
    TRY(q4x_out_write(out, map.data, at, err));
    TRY(q4x_out_write(out, w, t->bytes, err));
    TRY(q4x_out_write(out, map.data + end, map.size - end, err));
    q4x_out *whole = out;
    out = NULL;
    rc = q4x_out_close(whole, err);
done:
    q4x_out_abort(out);
    free(w);
    q4x_model_close(m);
    q4x_map_close(&map);
    return rc;
}

static int tied_experts(const char *model, const char *dir, bis_trial *ret, q4x_err *err) {
    static const bis_quiet q = {"an exact tie at weight 0", "cpu/1", "cpu/1:topk.tie=highest", BIS_Q_TIED};
    int rc;
    char path[4096];
    q4x_net *net = NULL;
    snprintf(path, sizeof path, "%s/tied.gguf", dir);
    TRY(write_tied(model, path, err));
    TRY(q4x_net_open(path, &net, err));
    TRY(bis_quiet_pair(net, dir, &q, ret, err));
done:
    q4x_net_close(net);
    unlink(path);
    return rc;
}

int bis_selftest_quiet(const char *model, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad, q4x_err *err) {
    static const bis_quiet pair[] = {
        {"the same arm again", "cpu/1", "cpu/1", BIS_Q_EQUAL},
        {"1 thread against 3", "cpu/1", "cpu/3", BIS_Q_EQUAL},
        {"act=bf16 against f32", "cpu/1", "cpu/1:act=bf16", BIS_Q_HONEST},
        {"gdn=chunk64", "cpu/1", "cpu/1:gdn=chunk64", BIS_Q_HONEST},
        {"dot=serial", "cpu/1", "cpu/1:dot=serial", BIS_Q_HONEST},
    };
    enum { NPAIRS = (int)(sizeof pair / sizeof *pair) };
    int rc, bad = 0;
    bis_trial t;
    q4x_net *net = NULL;
    TRY(q4x_net_open(model, &net, err));
    for (int i = 0; i <= NPAIRS; i++) {
        if (i < NPAIRS)
            TRY(bis_quiet_pair(net, dir, &pair[i], &t, err));
        else
            TRY(tied_experts(model, dir, &t, err));
        bad += !t.good;
        fn(ctx, &t);
    }
    *ret_bad = bad;
done:
    q4x_net_close(net);
    return rc;
}
